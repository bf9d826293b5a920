// Command client makes four calls at once, each of which lends memory to the server, and then ends the server.
//
//	client [-remote] [-timeout DURATION] ADDRESS
//
// ADDRESS is the line that the server printed. It is ended by an RPC of its own, or with -remote by Margo's remote shutdown. With
// -timeout the calls are to a procedure that takes longer, have that much time, and the remote shutdown follows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/margo"
	margoface "cinnabar/margo"
)

const (
	calls = 4
	dumps = 2 // the call that has the server write down its state
)

var (
	remote  = flag.Bool("remote", false, "end the server by Margo's remote shutdown")
	timeout = flag.Duration("timeout", 0, "call the procedure that hangs, with this much time")
)

func main() {
	flag.Parse()
	os.Exit(margo.Main(run))
}

func run(ctx context.Context, stdout io.Writer) error {
	if flag.NArg() != 1 {
		return errors.New("usage: client [-remote] [-timeout DURATION] ADDRESS")
	}
	engine, err := margo.Open(flag.Arg(0))
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // nothing is left to lose
	server, err := engine.Lookup(flag.Arg(0))
	if err != nil {
		return err
	}
	results := make(chan string)
	for i := range int32(calls) {
		go func() { results <- fmt.Sprintf("call %d: %s", i, outcome(call(ctx, engine, server, i))) }()
	}
	for range calls {
		if _, err := fmt.Fprintln(stdout, <-results); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, margo.Patience)
	defer cancel()
	if *remote || *timeout > 0 {
		return margoface.ShutdownRemote(ctx, server)
	}
	_, err = margo.Shutdown.Call(ctx, server, margo.None{})
	return err
}

// outcome is a call's result in words.
func outcome(ret int32, err error) string {
	if errors.Is(err, codes.Timeout) {
		return codes.Timeout.Error()
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("result %d", ret)
}

// call lends memory for as long as the call takes.
func call(ctx context.Context, engine *cinnabar.Engine, server *cinnabar.Endpoint, value int32) (int32, error) {
	lent, err := margo.Lend(engine)
	if err != nil {
		return 0, err
	}
	defer func() { _ = lent.Close() }() // the server finds that out, if it is late
	limit := margo.Patience
	if *timeout > 0 {
		limit = *timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if *timeout > 0 {
		out, err := margo.Hang.Call(ctx, server, margo.Lent{Value: value, Data: lent.Handle()})
		return out.Ret, err
	}
	in := margo.In{Value: value, Data: lent.Handle()}
	if value == dumps && !*remote {
		in.Dump = 1
	}
	out, err := margo.My.Call(ctx, server, in)
	return out.Ret, err
}
