// Command client calls the services of the multiplex example, each provider by its id, and then ends the server.
//
//	client ADDRESS
//
// ADDRESS is the line that the server printed.
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
		return errors.New("usage: client ADDRESS")
	}
	ctx, cancel := context.WithTimeout(ctx, margo.Patience)
	defer cancel()
	engine, err := margo.Open(os.Args[1])
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // nothing is left to lose
	server, err := engine.Lookup(os.Args[1])
	if err != nil {
		return err
	}
	for _, target := range []struct {
		service *margo.Service
		id      uint16
	}{{margo.Service1, 1}, {margo.Service1, 2}, {margo.Service2, 3}} {
		for _, rpc := range []*cinnabar.RPC[margo.Lent, margo.Out]{target.service.Thing, target.service.OtherThing} {
			if err := call(ctx, engine, rpc, server.Provider(target.id)); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(stdout, "%s at provider %d: done\n", rpc.Name(), target.id); err != nil {
				return err
			}
		}
	}
	_, err = margo.Shutdown.Call(ctx, server, margo.None{})
	return err
}

// call lends memory for as long as the call takes.
func call(ctx context.Context, engine *cinnabar.Engine, rpc *cinnabar.RPC[margo.Lent, margo.Out], to cinnabar.Target) error {
	lent, err := margo.Lend(engine)
	if err != nil {
		return err
	}
	defer func() { _ = lent.Close() }() // the server is done with it
	_, err = rpc.Call(ctx, to, margo.Lent{Data: lent.Handle()})
	return err
}
