package sm

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/internal/na"
)

// signal is a Completer that a test waits for.
type signal struct {
	op na.Op
	ev na.Event
	ch chan struct{}
}

func newSignal() *signal {
	s := &signal{ch: make(chan struct{}, 1)}
	s.op.Done = s
	return s
}

func (s *signal) Complete(*na.Op) {
	s.ev.Set()
	s.ch <- struct{}{}
}

// wait returns how the operation ended.
func (s *signal) wait(t testing.TB) error {
	t.Helper()
	await(t, "the end of an operation", s.ch)
	s.ev.Reset()
	return s.op.Err
}

// taskFunc is a task.
type taskFunc func()

func (f taskFunc) Run() { f() }

// echo answers requests with what they bring. It implements na.Handler.
type echo struct {
	ep       atomic.Pointer[Endpoint]
	requests atomic.Int64
	pool     sync.Pool
	direct   bool // answers from Request, not from a task
}

type echoAnswer struct {
	h    *echo
	op   na.Op
	from na.Addr
	tag  uint32
	buf  []byte
}

func (a *echoAnswer) Run() { a.h.ep.Load().SendExpected(&a.op, a.from, a.tag, a.buf) }

func (a *echoAnswer) Complete(*na.Op) {
	a.from = nil
	a.h.pool.Put(a)
}

func (h *echo) Request(m *na.Message) na.Task {
	h.requests.Add(1)
	a, _ := h.pool.Get().(*echoAnswer)
	if a == nil {
		a = &echoAnswer{h: h}
		a.op.Done = a
	}
	a.from, a.tag, a.buf = m.From, m.Tag, append(a.buf[:0], m.Data...)
	if h.direct {
		a.Run()
		return nil
	}
	return a
}

// testPrefix keeps tests away from other programs' regions. It is the same in each run, so that a run removes what one has
// left that was killed.
const testPrefix = "cinnabar_smtest"

// privatePrefix is one that other runs do not use at the same time.
func privatePrefix(name string) string { return fmt.Sprintf("%s_%d%s", testPrefix, os.Getpid(), name) }

// open opens an endpoint that is closed at the end of the test.
func open(t testing.TB, cfg Config) *Endpoint {
	t.Helper()
	watch(t)
	if cfg.Prefix == "" {
		cfg.Prefix = testPrefix
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	ep, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, ep) })
	return ep.(*Endpoint)
}

// shut closes an endpoint.
func shut(t testing.TB, ep na.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	if err := ep.Close(ctx); err != nil {
		t.Errorf("%v\n%s", err, traces())
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// serve opens an endpoint that echoes.
func serve(t testing.TB, cfg Config) (*Endpoint, *echo) {
	t.Helper()
	h := &echo{}
	cfg.Listen, cfg.Handler = true, h
	e := open(t, cfg)
	h.ep.Store(e)
	return e, h
}

// lookup finds a server.
func lookup(t testing.TB, e *Endpoint, s string) na.Addr {
	t.Helper()
	a, err := e.Lookup(s)
	if err != nil {
		t.Fatal(err)
	}
	return resolved(t, a)
}

// resolved returns the process that an address stands for, which may be a name.
func resolved(t testing.TB, a na.Addr) na.Addr {
	t.Helper()
	n, ok := a.(na.Named)
	if !ok {
		return a
	}
	a, err := n.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// caller makes calls, one at a time.
type caller struct {
	e          *Endpoint
	to         na.Addr
	tag        uint32
	send, recv *signal
	buf        []byte
}

func newCaller(e *Endpoint, to na.Addr) *caller {
	return &caller{e: e, to: to, send: newSignal(), recv: newSignal(), buf: make([]byte, bufferSize)}
}

// call sends a request and returns the answer, which is valid until the next call.
func (c *caller) call(t testing.TB, msg []byte) ([]byte, error) {
	t.Helper()
	c.tag++
	c.e.RecvExpected(&c.recv.op, c.to, c.tag, c.buf)
	c.e.SendRequest(&c.send.op, c.to, c.tag, msg)
	if err := c.send.wait(t); err != nil {
		c.e.Cancel(&c.recv.op)
		_ = c.recv.wait(t)
		return nil, err
	}
	c.e.Drive(c.to, &c.recv.ev)
	if err := c.recv.wait(t); err != nil {
		return nil, err
	}
	return c.buf[:c.recv.op.N], nil
}

func TestEcho(t *testing.T) {
	server, h := serve(t, Config{})
	client := open(t, Config{})
	c := newCaller(client, lookup(t, client, server.own.String()))
	for _, n := range []int{0, 1, 40, 255, 256, 257, 4095, 4096, 0, 1000} {
		want := bytes.Repeat([]byte{byte(n), byte(n >> 3), 7}, n/3+1)[:n]
		got, err := c.call(t, want)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
	if n := h.requests.Load(); n != 10 {
		t.Errorf("%d requests, want 10", n)
	}
}

// bench makes calls of n bytes, one at a time.
func bench(b *testing.B, server string, n int) {
	client := open(b, Config{})
	to := lookup(b, client, server)
	send, recv := newSignal(), newSignal()
	msg, buf := make([]byte, n), make([]byte, bufferSize)
	b.ReportAllocs()
	for tag := uint32(1); b.Loop(); tag++ {
		send.ev.Reset()
		recv.ev.Reset()
		client.RecvExpected(&recv.op, to, tag, buf)
		client.SendRequest(&send.op, to, tag, msg)
		client.Drive(to, &recv.ev)
		<-send.ch
		<-recv.ch
		if recv.op.Err != nil {
			b.Fatal(recv.op.Err)
		}
	}
}

func BenchmarkPingPong(b *testing.B) {
	b.Run("process", func(b *testing.B) {
		server, _ := serve(b, Config{})
		bench(b, server.own.String(), 64)
	})
	for _, n := range []int{64, 1024, 4096} {
		b.Run(fmt.Sprintf("processes/%d", n), func(b *testing.B) {
			s := start(b, "server")
			bench(b, s.expect("ready "), n)
		})
	}
}
