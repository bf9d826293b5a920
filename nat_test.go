package cinnabar

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/testproc"
)

func init() { peers["translated"] = peerTranslated }

// peerTranslated opens an engine at the address args[0] and makes calls and transfers by args[1], in rounds, one for each line
// of its input, which is a number of 8 bits.
func peerTranslated(args []string) error {
	own, through := args[0], args[1]
	e, err := Open(context.Background(), own, nil)
	if err != nil {
		return err
	}
	server, err := e.Lookup(through)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	into, err := e.Alloc(ReadWrite, 64<<10)
	if err != nil {
		return err
	}
	fmt.Println(e.Addr())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		with, err := strconv.ParseUint(in.Text(), 10, 8)
		if err != nil {
			return err
		}
		clear(into.Bytes())
		if _, err := paint.Call(ctx, server, paintIn{With: uint8(with), Into: into.Handle()}); err != nil {
			return err
		}
		for i, got := range into.Bytes() {
			if got != uint8(with) {
				return fmt.Errorf("byte %d is %d, want %d", i, got, with)
			}
		}
		fmt.Println("painted")
	}
	return errors.Join(in.Err(), e.Close())
}

type paintIn struct {
	With uint8
	Into BulkHandle
}

// paint is an RPC whose handler fills memory of its caller.
var paint = NewRPC[paintIn, struct{}]("paint")

func handlePaint(e *Engine) func(context.Context, paintIn) (struct{}, error) {
	return func(ctx context.Context, in paintIn) (struct{}, error) {
		mem := make([]byte, in.Into.Len())
		for i := range mem {
			mem[i] = in.With
		}
		b, err := e.Expose(ReadOnly, mem)
		if err != nil {
			return struct{}{}, err
		}
		defer func() { _ = b.Close() }()
		_, err = in.Into.On(InfoFrom(ctx).Peer).Push(ctx, b)
		return struct{}{}, err
	}
}

// relay forwards TCP connections to a target, as a port forwarding does. All of them come from one address there.
func relay(t *testing.T, target string) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	pipe := func(to, from net.Conn) {
		defer func() { _ = to.Close() }()
		_, _ = io.Copy(to, from) // until one of them is closed
	}
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			keep(in)
			out, err := (&net.Dialer{Timeout: testLimit}).Dial("tcp4", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			keep(out)
			wg.Go(func() { pipe(out, in) })
			wg.Go(func() { pipe(in, out) })
		}
	})
	return "ofi+tcp://" + ln.Addr().String()
}

// TestClientsBehindOneAddress: two processes with the same port, whose connections come from one address as behind an
// address translator, are both served, and neither ends the connection of the other. Each handler reaches the memory of
// its own caller.
func TestClientsBehindOneAddress(t *testing.T) {
	server, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
	server = opened(t, server, err)
	must(t, paint.Handle(server, handlePaint(server)))
	through := relay(t, strings.TrimPrefix(server.Addr(), "ofi+tcp://"))
	translated := func(own string) *testproc.Process {
		return testproc.Start(t, testproc.Command{Role: "translated", Args: []string{own, through}})
	}
	one := translated("ofi+tcp://127.0.0.2:0")
	port := one.Stdout.Line()
	port = port[strings.LastIndexByte(port, ':')+1:]
	clients := []*testproc.Process{one, translated("ofi+tcp://127.0.0.3:" + port)}
	clients[1].Stdout.Line()
	for round := range 30 {
		for i, c := range clients {
			c.Send(strconv.Itoa(1 + 2*round + i))
		}
		for _, c := range clients {
			if got := c.Stdout.Line(); got != "painted" {
				t.Fatal(got)
			}
		}
	}
	for _, ev := range server.Stats().Security.Events {
		if ev.Event == audit.Accepted.String() && ev.Count == uint64(len(clients)) {
			continue
		}
		t.Errorf("%s, %s: %d", ev.Event, ev.Cause, ev.Count)
	}
}
