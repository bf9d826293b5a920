// Command server has three providers of two kinds of service in one process, until a client ends it.
//
//	server ADDRESS
//
// ADDRESS is where to listen, such as ofi+tcp://127.0.0.1:0. Provider 2 has a worker of its own, so that it neither delays
// the others nor is delayed by them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"cinnabar"
	"cinnabar/examples/margo"
)

func main() { os.Exit(margo.Main(run)) }

func run(ctx context.Context, stdout io.Writer) error {
	if len(os.Args) != 2 {
		return errors.New("usage: server ADDRESS")
	}
	engine, err := cinnabar.Listen(ctx, os.Args[1], &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "second", Workers: 1}}})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // Wait has returned its error already
	if err := margo.ServeShutdown(engine); err != nil {
		return err
	}
	second := cinnabar.WithPool(engine.LookupPool("second"))
	for _, err := range []error{
		register(engine, margo.Service1, 1, stdout),
		register(engine, margo.Service1, 2, stdout, second),
		register(engine, margo.Service2, 3, stdout),
	} {
		if err != nil {
			return err
		}
	}
	return margo.Wait(ctx, engine, stdout)
}

// register has a provider serve both procedures of a service.
func register(engine *cinnabar.Engine, s *margo.Service, id uint16, stdout io.Writer, opts ...cinnabar.HandleOption) error {
	p, err := engine.NewProvider(id, s.Name)
	if err != nil {
		return err
	}
	for _, rpc := range []*cinnabar.RPC[margo.Lent, margo.Out]{s.Thing, s.OtherThing} {
		err := rpc.Handle(p, func(ctx context.Context, in margo.Lent) (margo.Out, error) {
			_, _ = fmt.Fprintf(stdout, "%s at provider %d\n", rpc.Name(), id)
			return margo.Out{}, margo.Pull(ctx, engine, in.Data)
		}, opts...)
		if err != nil {
			return err
		}
	}
	return nil
}
