package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"cinnabar"
	"cinnabar/codes"
)

// slow is an engine that serves a call, which has its answer when the test closes end.
type slow struct {
	engine *cinnabar.Engine
	end    chan struct{}
	done   chan error   // of the call
	quick  func() error // makes another call, which is answered at once
}

func newSlow(t *testing.T) *slow {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Shut(client); Shut(e) })
	ep, err := client.Lookup(e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	s := &slow{engine: e, end: make(chan struct{}), done: make(chan error, 1)}
	running := make(chan struct{})
	served := func(name string, handle func()) (call func() error) {
		rpc := cinnabar.NewRPC[struct{}, struct{}](name)
		if err := rpc.Handle(e, func(context.Context, struct{}) (struct{}, error) { handle(); return struct{}{}, nil }); err != nil {
			t.Fatal(err)
		}
		return func() error {
			_, err := rpc.Call(t.Context(), ep, struct{}{})
			return err
		}
	}
	s.quick = served("quick", func() {})
	call := served("slow", func() { close(running); <-s.end })
	go func() { s.done <- call() }()
	<-running
	return s
}

// ended returns a context that a signal has ended.
func ended(t *testing.T, s os.Signal) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(SignalError{s})
	return ctx
}

// TestDrain ends a server by SIGTERM in the middle of a call. The call gets its answer, and further calls are refused.
func TestDrain(t *testing.T) {
	s := newSlow(t)
	var stderr bytes.Buffer
	drained := make(chan error, 1)
	go func() { drained <- Streams{Err: &stderr}.Drain(ended(t, syscall.SIGTERM), s.engine) }()
	for err := s.quick(); !errors.Is(err, codes.Permission); err = s.quick() { // until the engine refuses requests
		if err != nil {
			t.Fatalf("a call to an engine that ends: %v", err)
		}
	}
	close(s.end)
	if err := <-s.done; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := <-drained; err != nil || stderr.Len() > 0 {
		t.Errorf("%v, %q", err, &stderr)
	}
}

// TestDrainInterrupted ends a server by SIGINT in the middle of a call that does not end. A person waits, so the call is cut short.
func TestDrainInterrupted(t *testing.T) {
	s := newSlow(t)
	var stderr bytes.Buffer
	err := Streams{Err: &stderr}.Drain(ended(t, os.Interrupt), s.engine)
	if got, ok := errors.AsType[SignalError](err); !ok || got.Signal != os.Interrupt {
		t.Errorf("%v, want the signal", err)
	}
	if !strings.Contains(stderr.String(), "1 of their requests unanswered") {
		t.Errorf("standard error has %q", &stderr)
	}
	close(s.end)
	if err := <-s.done; err == nil {
		t.Error("the call has an answer")
	}
}
