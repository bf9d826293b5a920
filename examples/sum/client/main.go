// Command client is the client of the sum example: it calls the server four times and prints the results.
//
//	client [-device NAME] ADDRESS
//
// ADDRESS is the line that the server printed, such as ofi+tcp://127.0.0.1:1234 or na+sm://4711-0. The server may be that of this example or the C
// server of Margo's tutorial. An ADDRESS of ofi+verbs needs an RDMA device, which -device names (software: the software device); without
// -device the client uses the first device with an active port.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"cinnabar"
	"cinnabar/examples/internal/rdma"
	"cinnabar/examples/sum"
	"cinnabar/regmem"
)

const (
	calls    = 4
	patience = 10 * time.Second // for one call
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { _, _ = fmt.Fprintf(stderr, "Usage: %s [-device name] <server address>\n", args[0]) }
	device := flags.String("device", "", rdma.Usage)
	if err := flags.Parse(args[1:]); err != nil {
		return 1 // Parse has printed the error
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return 0 // as the tutorial's client
	}
	if err := callAll(ctx, flags.Arg(0), *device, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// callAll makes the calls, one after the other.
func callAll(ctx context.Context, address, device string, stderr io.Writer) error {
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
	for range calls {
		ret, err := call(ctx, engine, server)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(stderr, "[debug] Got response: %d\n", ret)
	}
	return nil
}

// call exposes the values for as long as the call takes.
func call(ctx context.Context, engine *cinnabar.Engine, server *cinnabar.Endpoint) (int32, error) {
	values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5}
	local, err := engine.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
	if err != nil {
		return 0, err
	}
	defer func() { _ = local.Close() }() // the result is there
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := sum.RPC.Call(ctx, server, sum.In{N: int32(len(values)), Data: local.Handle()})
	return out.Ret, err
}
