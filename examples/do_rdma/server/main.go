// Command server is the server of the do_rdma example. For each request it pulls a few bytes out of the client's memory
// and prints them:
//
//	server [ADDRESS]
//
// ADDRESS is where to listen, tcp://127.0.0.1:1234 if it is not given. The server runs until it is interrupted. In the
// tutorial nothing in main waits for that, because an engine of the C++ library did so when it went out of scope; Go
// programs wait explicitly. The address goes to standard error, for ADDRESSes that leave the port to
// the system.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cinnabar"
	dordma "cinnabar/examples/do_rdma"
)

const (
	maxHandlers = 16               // requests served at a time
	patience    = 10 * time.Second // for a pull, and for those under way when the server is interrupted
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second ^C ends the process at once
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	address := dordma.Address
	switch len(args) {
	case 1:
	case 2:
		address = args[1]
	default:
		_, _ = fmt.Fprintf(stderr, "Usage: %s [address]\n", args[0])
		return 1
	}
	if err := serve(ctx, address, stdout, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// serve answers requests until ctx ends.
func serve(ctx context.Context, address string, stdout, stderr io.Writer) error {
	engine, err := cinnabar.Listen(ctx, address, &cinnabar.Config{
		MaxHandlers: maxHandlers,
		Logger:      slog.New(slog.NewTextHandler(stderr, nil)), // a handler's error has nowhere else to go
	})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // Shutdown has returned its error already
	err = dordma.RPC.Handle(engine, func(ctx context.Context, remote cinnabar.BulkHandle) error {
		return receive(ctx, engine, remote, stdout)
	})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stderr, "Server running at address %s\n", engine.Addr())
	<-ctx.Done()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return engine.Shutdown(drain)
}

// receive pulls as many bytes as there is room for. The local memory is smaller than the remote one, so its size counts.
func receive(ctx context.Context, engine *cinnabar.Engine, remote cinnabar.BulkHandle, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	buf := make([]byte, dordma.Room)
	local, err := engine.Expose(cinnabar.WriteOnly, buf)
	if err != nil {
		return err
	}
	defer func() { _ = local.Close() }() // the pull is over
	n, err := remote.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "Server received bulk: %s\n", buf[:n])
	return err
}
