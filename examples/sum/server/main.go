// Command server is the server of the sum example. It answers 16 calls and then ends itself:
//
//	server [-device NAME] [ADDRESS]
//
// The server listens at ADDRESS, such as ofi+tcp://127.0.0.1:1234 or na+sm; without it the server picks an interface and a free port.
// It prints the address that clients need as the C server of Margo's tutorial does. Its clients may be the client of this example or the
// tutorial's. An ADDRESS of ofi+verbs needs an RDMA device, which -device names (software: the software device); without -device the
// server uses the first device that fits ADDRESS.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/internal/rdma"
	"cinnabar/examples/sum"
	"cinnabar/regmem"
)

// The client says how many values there are, so there is a limit, and one for the calls that are served at a time.
const (
	maxValues   = 4 << 20 // 16 MiB
	maxHandlers = 16
	patience    = 30 * time.Second // for the calls under way when the server is interrupted
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second ^C ends the process at once
	code := run(ctx, os.Args, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	address := "tcp"
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
	if err := serve(ctx, address, *device, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// serve answers calls until there have been enough, or ctx ends.
func serve(ctx context.Context, address, device string, stderr io.Writer) error {
	dev, err := rdma.Open(address, device, stderr)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the engine is closed
	engine, err := cinnabar.Listen(ctx, address, &cinnabar.Config{MaxHandlers: maxHandlers, Device: dev})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // Err has returned its error already
	s := &server{engine: engine}
	if err := sum.RPC.Handle(engine, s.sum); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stderr, "[info] Server running at address %s\n\n", engine.Addr())
	select {
	case <-engine.Done(): // by the last call
		return engine.Shutdown(ctx)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return engine.Shutdown(drain)
}

// server counts its calls.
type server struct {
	engine *cinnabar.Engine
	calls  atomic.Int32
}

// sum answers one call. The last one ends the engine, which still sends the answer: Shutdown returns at once to a handler.
func (s *server) sum(ctx context.Context, in sum.In) (sum.Out, error) {
	out, err := s.add(ctx, in)
	if s.calls.Add(1) == sum.Calls {
		_ = s.engine.Shutdown(ctx) // serve learns how it ends
	}
	return out, err
}

// add pulls the client's values and adds them up.
func (s *server) add(ctx context.Context, in sum.In) (sum.Out, error) {
	if in.N < 0 || in.N > maxValues {
		return sum.Out{}, fmt.Errorf("%w: %d values; between 0 and %d can be summed", codes.InvalidArg, in.N, maxValues)
	}
	if have, want := in.Data.Len(), 4*int64(in.N); have < want {
		return sum.Out{}, fmt.Errorf("%w: %d values announced, which are %d bytes, but only %d exposed", codes.InvalidArg, in.N, want, have)
	}
	values := make([]int32, in.N)
	local, err := s.engine.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
	if err != nil {
		return sum.Out{}, err
	}
	defer func() { _ = local.Close() }() // the answer does not depend on it
	if _, err := in.Data.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err != nil {
		return sum.Out{}, err
	}
	var out sum.Out
	for _, v := range values {
		out.Ret += v
	}
	return out, nil
}
