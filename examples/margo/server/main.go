// Command server serves calls that lend it memory, until a client ends it.
//
//	server [-f FILE] [-p KIND] [-hang DURATION] ADDRESS
//
// ADDRESS is where to listen, such as ofi+tcp://127.0.0.1:0. The address that it got is printed, and with -f written to FILE. With
// -p the handlers have a pool of that kind: fifo_wait, prio_wait or earliest_first. A client may have the server write
// down its state, in a file of the temporary directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"cinnabar"
	"cinnabar/examples/margo"
	margolib "cinnabar/margo"
)

var (
	file = flag.String("f", "", "write the address to this file")
	kind = flag.String("p", "", "have a pool of this kind for the handlers")
	hang = flag.Duration("hang", 5*time.Second, "how long the procedure that hangs does nothing")
)

func main() {
	flag.Parse()
	os.Exit(margo.Main(run))
}

func run(ctx context.Context, stdout io.Writer) error {
	if flag.NArg() != 1 {
		return errors.New("usage: server [-f FILE] [-p KIND] [-hang DURATION] ADDRESS")
	}
	engine, err := cinnabar.Listen(ctx, flag.Arg(0), config(*kind))
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // Wait has returned its error already
	s := &server{engine, stdout}
	for _, err := range []error{margo.My.Handle(engine, s.my), margo.Hang.Handle(engine, s.hang), margo.ServeShutdown(engine)} {
		if err != nil {
			return err
		}
	}
	if *file != "" {
		if err := os.WriteFile(*file, []byte(engine.Addr()), 0o600); err != nil {
			return err
		}
	}
	return margo.Wait(ctx, engine, stdout)
}

// config has one pool for everything, if a kind is asked for.
func config(kind string) *cinnabar.Config {
	cfg := &cinnabar.Config{AllowRemoteShutdown: true}
	if kind == "" {
		return cfg
	}
	cfg.Pools, cfg.RPCPool = []cinnabar.PoolConfig{{Name: "rpc", Kind: cinnabar.PoolKind(kind)}}, "rpc"
	return cfg
}

// server has the handlers.
type server struct {
	engine *cinnabar.Engine
	stdout io.Writer
}

func (s *server) my(ctx context.Context, in margo.In) (margo.Out, error) {
	_, _ = fmt.Fprintf(s.stdout, "call with %d\n", in.Value)
	if in.Dump != 0 {
		if err := s.dump(); err != nil {
			return margo.Out{}, err
		}
	}
	return margo.Out{}, margo.Pull(ctx, s.engine, in.Data)
}

// dump writes the state of the engine to a file.
func (s *server) dump() error {
	f, err := os.CreateTemp("", "margo-server-*.txt")
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(s.stdout, "state written to", f.Name())
	return errors.Join(margolib.DumpState(s.engine, f), f.Close())
}

// hang answers late, or not at all if its caller has gone meanwhile.
func (s *server) hang(ctx context.Context, in margo.Lent) (margo.Out, error) {
	_, _ = fmt.Fprintf(s.stdout, "call with %d, which hangs\n", in.Value)
	if err := margolib.Sleep(ctx, *hang); err != nil {
		return margo.Out{}, err
	}
	return margo.Out{}, margo.Pull(ctx, s.engine, in.Data)
}
