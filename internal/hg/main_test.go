package hg

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/codes"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is one process of a test.
type node struct {
	*Class
	ep *natest.Endpoint
}

// open starts a process on a network. It is closed at the end of the test, and must then hold nothing.
func open(t testing.TB, n *natest.Network, cfg Config) *node {
	t.Helper()
	c := New(cfg)
	ep := n.Open(c)
	c.Attach(ep)
	c.Serve()
	t.Cleanup(func() { closeEmpty(t, c, ep) })
	return &node{c, ep}
}

// closeEmpty closes a Class and checks that nothing is left of calls, requests, transfers and memory.
func closeEmpty(t testing.TB, c *Class, ep *natest.Endpoint) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	s := c.Stats()
	if s.CallsActive != 0 || s.RequestsActive != 0 || s.TransfersActive != 0 || s.ResponsesUnsent != 0 || s.OverflowBytes != 0 {
		t.Errorf("after Close: calls %d, requests %d, transfers %d, unsent %d, overflow bytes %d; want none",
			s.CallsActive, s.RequestsActive, s.TransfersActive, s.ResponsesUnsent, s.OverflowBytes)
	}
	if n := ep.Registered(); n != 0 {
		t.Errorf("after Close: %d pieces of memory are exposed, want 0", n)
	}
}

// handler makes a Dispatcher of a function that runs as the task of each request and frees it.
type handler func(r *Request)

func (h handler) Dispatch(r *Request) na.Task { return &task{h, r} }
func (handler) Unknown(ID) codes.Code         { return 0 }

type task struct {
	h handler
	r *Request
}

func (t *task) Run() {
	t.h(t.r)
	t.r.Free()
}

// echo answers with the input.
func echo(r *Request) {
	if !r.OneWay() {
		_ = r.Respond(context.Background(), append(r.Output(), r.Input()...))
	}
}

// at returns the address of another process as this one knows it.
func (n *node) at(t testing.TB, other *natest.Endpoint) na.Addr {
	t.Helper()
	a, err := n.ep.Lookup(other.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// call makes one call and returns a copy of the output.
func call(t testing.TB, from *node, to na.Addr, id ID, input []byte) ([]byte, error) {
	t.Helper()
	k := from.NewCall()
	defer k.Free()
	k.Start(to, id, CallOptions{}, append(k.Input(), input...))
	err := k.Wait(t.Context())
	return append([]byte(nil), k.Output()...), err
}

// codeFrom returns the code of an error of this package; it fails the test if err is not one.
func codeFrom(t testing.TB, err error) codes.Code {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("error %v (%T), want *Error", err, err)
	}
	return e.Code
}

// elapse lets time go by in a bubble of testing/synctest.
func elapse(d time.Duration) { <-time.NewTimer(d).C }
