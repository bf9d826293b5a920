package cinnabar

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"cinnabar/codes"
)

var long = NewRPC[addIn, addOut]("long")

// handleLong registers a handler of the long form.
func handleLong(t *testing.T, server *Engine, h func(*Call[addIn, addOut])) {
	t.Helper()
	must(t, long.HandleCall(server, h))
}

// TestRespondEarly answers before the handler is done.
// parity: G36
func TestRespondEarly(t *testing.T) {
	server, ep := pair(t, nil)
	goOn, over := make(chan struct{}), make(chan struct{})
	handleLong(t, server, func(c *Call[addIn, addOut]) {
		defer close(over)
		if err := c.Respond(c.Context(), addOut{Sum: c.In.X}); err != nil {
			t.Error(err)
		}
		<-goOn
		err := c.Respond(c.Context(), addOut{})
		if err == nil || !strings.Contains(err.Error(), "answered already") || codes.Of(err) != codes.InvalidArg {
			t.Errorf("second answer: %v", err)
		}
		if err := c.Fail(codes.Busy); codes.Of(err) != codes.InvalidArg {
			t.Errorf("failure after an answer: %v", err)
		}
	})
	out, err := long.Call(patient(t), ep, addIn{X: 8})
	if err != nil || out.Sum != 8 {
		t.Errorf("call = %+v, %v", out, err)
	}
	close(goOn)
	soon(t, "handler", over)
}

// TestRespondLate answers from another goroutine when the handler has returned.
// parity: G28 G36
func TestRespondLate(t *testing.T) {
	server, ep := pair(t, nil)
	calls := make(chan *Call[addIn, addOut], 1)
	handleLong(t, server, func(c *Call[addIn, addOut]) { calls <- c })
	for i := range int32(3) {
		p := long.Start(patient(t), ep, addIn{X: i})
		c := soon(t, "call", calls)
		runtime.GC() // the program holds the call, so nothing happens
		if info := InfoFrom(c.Context()); info.RPC != "long" || !info.Server {
			t.Errorf("info %+v", info)
		}
		var want codes.Code
		if i == 2 {
			want = codes.Busy
			must(t, c.Fail(codes.Busy))
		} else {
			must(t, c.Respond(c.Context(), addOut{Sum: i}))
		}
		if out, err := p.Wait(); codes.Of(err) != want || err == nil && out.Sum != i {
			t.Errorf("call = %+v, %v", out, err)
		}
	}
}

// TestRespondRace lets many goroutines answer one call.
// parity: G36
func TestRespondRace(t *testing.T) {
	server, ep := pair(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers, begun := 0, make(chan struct{}, 1)
	handleLong(t, server, func(c *Call[addIn, addOut]) {
		defer func() { begun <- struct{}{} }() // the first answer may be there before the last goroutine
		for range 8 {
			wg.Go(func() {
				if c.Respond(c.Context(), addOut{Sum: 1}) == nil {
					mu.Lock()
					defer mu.Unlock()
					answers++
				}
			})
		}
	})
	for range 50 {
		if _, err := long.Call(patient(t), ep, addIn{}); err != nil {
			t.Fatal(err)
		}
		soon(t, "handler", begun)
		wg.Wait()
	}
	if answers != 50 {
		t.Errorf("%d of 50 calls answered", answers)
	}
}

// TestLostCall checks that a call which the program loses is answered all the same.
// parity: G94
func TestLostCall(t *testing.T) {
	server, ep := pair(t, nil)
	handleLong(t, server, func(*Call[addIn, addOut]) {})
	p := long.Start(patient(t), ep, addIn{})
	for over := false; !over; {
		runtime.GC()
		select {
		case <-p.Done():
			over = true
		default:
			runtime.Gosched()
		}
	}
	_, err := p.Wait()
	wantCode(t, err, codes.OtherError, "long")
}

// TestGoexit checks that the caller of a handler which ends its goroutine has an answer.
// parity: G44
func TestGoexit(t *testing.T) {
	server, ep := pair(t, nil)
	exit := NewRPC[struct{}, struct{}]("exit")
	must(t, exit.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		runtime.Goexit()
		return struct{}{}, nil
	}))
	for range 3 {
		_, err := exit.Call(patient(t), ep, struct{}{})
		wantCode(t, err, codes.OtherError, "exit")
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
}

// TestPanic checks that a handler that panics hurts only its own call.
// parity: G44
func TestPanic(t *testing.T) {
	panics.Reset()
	var text strings.Builder
	var mu sync.Mutex
	server, ep := pair(t, &Config{Logger: slog.New(slog.NewTextHandler(lockedWriter{&mu, &text}, nil))})
	must(t, add.Handle(server, func(_ context.Context, in addIn) (addOut, error) {
		switch in.X {
		case 1:
			panic("sorry")
		case 2:
			var p *addIn
			in = *p
		}
		return addOut{Sum: in.X + in.Y}, nil
	}))
	handleLong(t, server, func(*Call[addIn, addOut]) { panic("sorry too") })
	for range 2 {
		callAdd2 := func(x int32) error { _, err := add.Call(patient(t), ep, addIn{X: x}); return err }
		for x := range int32(2) {
			wantCode(t, callAdd2(x+1), codes.OtherError, "add")
		}
		_, err := long.Call(patient(t), ep, addIn{})
		wantCode(t, err, codes.OtherError, "long")
		for range 20 { // until the RPC is trusted, so that the second round panics in a task
			must(t, callAdd2(0))
		}
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
	mu.Lock()
	defer mu.Unlock()
	for _, word := range []string{"sorry", "nil pointer", "call_test.go"} {
		if !strings.Contains(text.String(), word) {
			t.Errorf("the log does not say %q", word)
		}
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *strings.Builder
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
