// Command service serves an RPC of package native with health, reflection and a graceful shutdown, or calls it at one of several servers:
//
//	service serve ofi+tcp://127.0.0.1:7794
//	service call ofi+tcp://127.0.0.1:7794 ofi+tcp://127.0.0.1:7795
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cinnabar"
	"cinnabar/balance"
	"cinnabar/native"
)

// PriceIn is an order.
type PriceIn struct {
	Item  string
	Count uint32
}

// Price is the RPC, for both sides. A call may be executed twice, because it changes nothing.
var Price = native.New[PriceIn, uint64]("price", native.Idempotent())

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(ctx, out, args[1])
	case len(args) > 1 && args[0] == "call":
		return call(ctx, out, args[1:])
	}
	return errors.New("usage: service serve ADDRESS, or service call with one ADDRESS or more")
}

// serve serves until ctx ends.
func serve(ctx context.Context, out io.Writer, addr string) error {
	e, err := cinnabar.Listen(ctx, addr, nil)
	if err != nil {
		return err
	}
	var health native.Health
	err = errors.Join(
		health.Handle(e),
		native.HandleReflection(e),
		Price.Handle(e, func(_ context.Context, in PriceIn) (uint64, error) {
			return uint64(len(in.Item)) * uint64(in.Count), nil
		}))
	if err == nil {
		_, err = fmt.Fprintln(out, e.Addr())
	}
	if err != nil {
		return errors.Join(err, e.Close())
	}
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return e.Shutdown(end) // new calls are answered codes.Draining, and calls under way end
}

// call makes a call at each of the servers.
func call(ctx context.Context, out io.Writer, addrs []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	e, err := cinnabar.Open(ctx, "ofi+tcp", nil)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	c, err := balance.New(e, &balance.Config{Resolver: balance.StaticAddrs(addrs...), Hedge: 5 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for range addrs {
		price, err := balance.Call(ctx, c, Price, PriceIn{Item: "tea", Count: 3})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, "the price is", price); err != nil {
			return err
		}
	}
	return nil
}
