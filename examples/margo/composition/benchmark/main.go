// Command benchmark compares a service that is called directly with the same service behind a delegator, and then ends
// both.
//
//	benchmark [-address ADDRESS] DELEGATOR DATA-XFER N
//
// DELEGATOR and DATA-XFER are the addresses that the daemons of the two services printed, or the same address twice if one has both; N
// is how many calls are made to each. ADDRESS is the own address, at which data-xfer reaches the memory of this process;
// without it the program picks one of the delegator's protocol.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"cinnabar"
	"cinnabar/examples/margo"
)

var address = flag.String("address", "", "the own address")

func main() {
	flag.Parse()
	os.Exit(margo.Main(run))
}

func run(ctx context.Context, stdout io.Writer) error {
	if flag.NArg() != 3 {
		return errors.New("usage: benchmark [-address ADDRESS] DELEGATOR DATA-XFER N")
	}
	n, err := strconv.Atoi(flag.Arg(2))
	if err != nil || n < 1 {
		return fmt.Errorf("%q calls; at least 1 is needed", flag.Arg(2))
	}
	own := *address
	if own == "" {
		own = flag.Arg(0)
	}
	engine, err := margo.Open(own)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // nothing is left to lose
	b := &bench{engine: engine, n: n, stdout: stdout, service: flag.Arg(1)}
	if b.delegator, err = engine.Lookup(flag.Arg(0)); err != nil {
		return err
	}
	if b.direct, err = engine.Lookup(b.service); err != nil {
		return err
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.end(ctx)
}

// bench is a run.
type bench struct {
	engine            *cinnabar.Engine
	delegator, direct *cinnabar.Endpoint
	service           string // address of direct, as it was given
	n                 int
	stdout            io.Writer
}

// measure has memory of this process written to in both ways.
func (b *bench) measure(ctx context.Context) error {
	memory, err := b.engine.Alloc(cinnabar.WriteOnly, margo.ReadSize)
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }() // the servers are done with it
	self := b.engine.Addr()
	if _, err := fmt.Fprintln(b.stdout, "call      min  average  max"); err != nil {
		return err
	}
	err = b.report(ctx, "direct", func(ctx context.Context) error {
		_, err := margo.Read.Call(ctx, b.direct.Provider(margo.ProviderID), margo.ReadIn{Client: &self, Data: memory.Handle()})
		return err
	})
	if err != nil {
		return err
	}
	return b.report(ctx, "composed", func(ctx context.Context) error {
		to := b.delegator.Provider(margo.ProviderID)
		_, err := margo.Delegate.Call(ctx, to, margo.DelegateIn{Service: &b.service, Data: memory.Handle()})
		return err
	})
}

// report makes the calls, one after the other, and prints how long they take.
func (b *bench) report(ctx context.Context, name string, call func(context.Context) error) error {
	var least, most, total time.Duration
	for i := range b.n {
		start := time.Now()
		one, cancel := context.WithTimeout(ctx, margo.Patience)
		err := call(one)
		cancel()
		if err != nil {
			return err
		}
		took := time.Since(start)
		if i == 0 || took < least {
			least = took
		}
		most, total = max(most, took), total+took
	}
	_, err := fmt.Fprintf(b.stdout, "%-8s  %v  %v  %v\n", name, least, total/time.Duration(b.n), most)
	return err
}

// end ends the servers.
func (b *bench) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, margo.Patience)
	defer cancel()
	_, err := margo.Shutdown.Call(ctx, b.delegator, margo.None{})
	if err == nil && !b.delegator.Equal(b.direct) {
		_, err = margo.Shutdown.Call(ctx, b.direct, margo.None{})
	}
	return err
}
