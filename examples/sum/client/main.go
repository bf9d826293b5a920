// Command client is the client of the sum example: it calls the server four times and prints the results.
//
//	client ADDRESS
//
// ADDRESS is the line that the server printed, such as ofi+tcp://127.0.0.1:1234 or na+sm://4711-0. The server may be the one beside it or the C
// server of Margo's tutorial.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"cinnabar"
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
	if len(args) != 2 {
		_, _ = fmt.Fprintf(stderr, "Usage: %s <server address>\n", args[0])
		return 0 // as the tutorial's client
	}
	if err := callAll(ctx, args[1], stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// callAll makes the calls, one after the other.
func callAll(ctx context.Context, address string, stderr io.Writer) error {
	protocol, _, _ := strings.Cut(address, "://")
	engine, err := cinnabar.Open(ctx, protocol, nil)
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
