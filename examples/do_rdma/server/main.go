// Command server is the server of the do_rdma example. For each request it pulls a few bytes out of the client's memory
// and prints them:
//
//	server [-device NAME] [ADDRESS]
//
// The server listens at ADDRESS, tcp://127.0.0.1:1234 if it is not given, and runs until it is interrupted. In the tutorial nothing in main
// waits for that, because an engine of the C++ library waits in its destructor; Go programs wait explicitly. The server prints its address
// to standard error, because an ADDRESS may leave the choice of the port to the system. An ADDRESS of ofi+verbs needs an RDMA device,
// which -device names (software: the software device); without -device the server uses the first device that fits ADDRESS.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cinnabar"
	dordma "cinnabar/examples/do_rdma"
	"cinnabar/examples/internal/rdma"
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
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { _, _ = fmt.Fprintf(stderr, "Usage: %s [-device name] [address]\n", args[0]) }
	device := flags.String("device", "", rdma.Usage)
	if err := flags.Parse(args[1:]); err != nil {
		return 1 // Parse has printed the error
	}
	switch flags.NArg() {
	case 0:
	case 1:
		address = flags.Arg(0)
	default:
		flags.Usage()
		return 1
	}
	if err := serve(ctx, address, *device, stdout, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// serve answers requests until ctx ends.
func serve(ctx context.Context, address, device string, stdout, stderr io.Writer) error {
	dev, err := rdma.Open(address, device, stderr)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the engine is closed
	engine, err := cinnabar.Listen(ctx, address, &cinnabar.Config{
		MaxHandlers: maxHandlers,
		Device:      dev,
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
