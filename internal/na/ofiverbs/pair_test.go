package ofiverbs

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long tests wait for events that must come.
const patience = 20 * time.Second

// call is an operation that a test waits for.
type call struct {
	op na.Op
	ev na.Event
}

func newCall() *call {
	c := new(call)
	c.op.Done = c
	return c
}

// Complete implements [na.Completer].
func (c *call) Complete(*na.Op) { c.ev.Set() }

// wait drives and parks until the operation is over.
func (c *call) wait(t testing.TB, e *Endpoint, a na.Addr) error {
	t.Helper()
	e.Drive(a, &c.ev)
	return c.park(t)
}

// park waits without driving.
func (c *call) park(t testing.TB) error {
	t.Helper()
	if ch := c.ev.Park(); ch != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-ch:
		case <-timer.C:
			if !c.ev.Unpark() {
				t.Fatal("operation does not complete")
			}
		}
	}
	c.ev.Reset()
	return c.op.Err
}

// want checks the kind of the operation's error; 0: none.
func (c *call) want(t testing.TB, kind na.Kind) {
	t.Helper()
	if err := c.park(t); na.KindOf(err) != kind || kind == 0 && err != nil {
		t.Errorf("completed with %v, want kind %q", err, kind)
	}
}

// handlerFunc makes a handler of a function.
type handlerFunc func(m *na.Message) na.Task

func (f handlerFunc) Request(m *na.Message) na.Task { return f(m) }

// taskFunc makes a task of a function.
type taskFunc func()

func (f taskFunc) Run() { f() }

// openDevice opens a software device and closes it with the test.
func openDevice(t testing.TB) *verbs.Device {
	t.Helper()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	return dev
}

// openEndpoint opens an endpoint on the loopback, with a device of its own unless cfg has one, and closes it with the test.
func openEndpoint(t testing.TB, cfg Config) *Endpoint {
	t.Helper()
	if cfg.Device == nil {
		cfg.Device = openDevice(t)
	}
	if cfg.Address == "" {
		cfg.Address = "ofi+verbs://127.0.0.1:0"
	}
	e, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEndpoint(t, e) })
	return e
}

func closeEndpoint(t testing.TB, e *Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// openServer opens an endpoint that answers each request with its bytes.
func openServer(t testing.TB, cfg Config) *Endpoint {
	t.Helper()
	s := &echo{}
	cfg.Listen, cfg.Handler = true, s
	s.e = openEndpoint(t, cfg)
	return s.e
}

// echo answers every request with its bytes.
type echo struct{ e *Endpoint }

// Request implements [na.Handler].
func (h *echo) Request(m *na.Message) na.Task {
	from, tag, msg := m.From, m.Tag, bytes.Clone(m.Data)
	return taskFunc(func() { h.e.SendExpected(&newCall().op, from, tag, msg) })
}

// lookup returns the address of to as e sees it.
func lookup(t testing.TB, e, to *Endpoint) na.Addr {
	t.Helper()
	a, err := e.Lookup(to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request returns a message with room for the transport.
func request(e *Endpoint, data []byte) []byte {
	return append(make([]byte, e.Limits().RequestRoom), data...)
}

// ask sends a request with data, and checks that the response has the same bytes.
func ask(t testing.TB, e *Endpoint, to na.Addr, tag uint32, data []byte) {
	t.Helper()
	sent, answer := newCall(), newCall()
	buf := make([]byte, e.Limits().MaxResponse)
	e.RecvExpected(&answer.op, to, tag, buf)
	e.SendRequest(&sent.op, to, tag, request(e, data))
	if err := answer.wait(t, e, to); err != nil {
		t.Fatalf("response: %v", err)
	}
	if err := sent.park(t); err != nil {
		t.Fatalf("request: %v", err)
	}
	if got := buf[:answer.op.N]; !bytes.Equal(got, data) {
		t.Fatalf("the response has %d bytes, not those of the request, %d", len(got), len(data))
	}
}

// noise returns n random bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b) // never fails
	return b
}

// eventually waits until cond holds.
func eventually(t testing.TB, opName string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-timer.C:
			t.Fatalf("not within %v: %s", patience, opName)
		}
	}
}
