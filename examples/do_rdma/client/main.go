// Command client is the client of the do_rdma example: it exposes a few bytes and sends the server a handle to them.
//
//	client [-answer] [-grace TIME] [-device NAME] [ADDRESS]
//
// ADDRESS is the server's, tcp://127.0.0.1:1234 if it is not given. The server sends no message when it has pulled the bytes, so the memory
// stays exposed for the grace TIME, 1 second if it is not given, or until the client is interrupted. If the server is pulling at the end
// of that time, the client ends after the pull. With -answer the client requests a response, as in the newer form of the tutorial, and ends
// when the response has come. It prints nothing. An ADDRESS of ofi+verbs needs an RDMA device, which -device names (software: the software
// device); without -device the client uses the first device with an active port.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"cinnabar"
	dordma "cinnabar/examples/do_rdma"
	"cinnabar/examples/internal/rdma"
)

const patience = 10 * time.Second // until the request has left

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second ^C ends the process at once
	code := run(ctx, os.Args, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "Usage: %s [-answer] [-grace time] [-device name] [address]\n", args[0])
	}
	answer := flags.Bool("answer", false, "ask for a response, as the newer form of the tutorial does")
	grace := flags.Duration("grace", time.Second, "how long the memory stays exposed")
	device := flags.String("device", "", rdma.Usage)
	if err := flags.Parse(args[1:]); err != nil {
		return 1 // Parse has printed the error
	}
	address := dordma.Address
	switch flags.NArg() {
	case 0:
	case 1:
		address = flags.Arg(0)
	default:
		flags.Usage()
		return 1
	}
	if err := send(ctx, address, *device, *answer, *grace, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// send makes the request and keeps the memory exposed until the response has come, or for the grace time if none is asked for.
func send(ctx context.Context, address, device string, answer bool, grace time.Duration, stderr io.Writer) error {
	protocol, _, _ := strings.Cut(address, "://")
	dev, err := rdma.Open(protocol, device, stderr)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the engine is closed
	engine, err := cinnabar.Open(ctx, protocol, &cinnabar.Config{Device: dev})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // there is nothing left to lose
	server, err := engine.Lookup(address)
	if err != nil {
		return err
	}
	memory, err := engine.Expose(cinnabar.ReadOnly, []byte(dordma.Text))
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }() // a pull that has not begun by now fails
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if answer {
		_, err := dordma.Answered.Call(limited, server, memory.Handle())
		return err
	}
	if err := dordma.RPC.Send(limited, server, memory.Handle()); err != nil {
		return err
	}
	wait(ctx, grace)
	return nil
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
