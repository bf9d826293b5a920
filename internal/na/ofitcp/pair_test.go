package ofitcp

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

func TestMain(m *testing.M) {
	serveIfAsked()
	serveRawIfAsked()
	goleak.VerifyTestMain(m)
}

// patience is how long tests wait for what must happen.
var patience = patienceHere()

// patienceHere returns 8 seconds in a worker of the fuzzer, because that ends after 10 seconds with one input without a report.
func patienceHere() time.Duration {
	if slices.Contains(os.Args, "-test.fuzzworker") {
		return 8 * time.Second
	}
	return 20 * time.Second
}

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

// handlerFunc makes a handler of a function.
type handlerFunc func(m *na.Message) na.Task

func (f handlerFunc) Request(m *na.Message) na.Task { return f(m) }

// taskFunc makes a task of a function.
type taskFunc func()

func (f taskFunc) Run() { f() }

// openEndpoint opens an endpoint on the loopback and closes it with the test.
func openEndpoint(t testing.TB, cfg Config) *Endpoint {
	t.Helper()
	if cfg.Address == "" {
		cfg.Address = "ofi+tcp://127.0.0.1:0"
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

// echo answers every request with its bytes, as a task.
type echo struct {
	e    *Endpoint
	pool sync.Pool
}

type echoTask struct {
	h    *echo
	op   na.Op
	from na.Addr
	tag  uint32
	msg  []byte
}

func (h *echo) Request(m *na.Message) na.Task {
	t, _ := h.pool.Get().(*echoTask)
	if t == nil {
		t = &echoTask{h: h, msg: make([]byte, 0, 8192)}
		t.op.Done = t
	}
	t.from, t.tag = m.From, m.Tag
	t.msg = append(t.msg[:h.e.Limits().ResponseRoom], m.Data...)
	return t
}

func (t *echoTask) Run()              { t.h.e.SendExpected(&t.op, t.from, t.tag, t.msg) }
func (t *echoTask) Complete(_ *na.Op) { t.h.pool.Put(t) }

// openEcho opens an endpoint that echoes.
func openEcho(t testing.TB, cfg Config) *Endpoint {
	t.Helper()
	h := new(echo)
	cfg.Listen = true
	started := make(chan struct{})
	cfg.Handler = handlerFunc(func(m *na.Message) na.Task {
		<-started
		return h.Request(m)
	})
	h.e = openEndpoint(t, cfg)
	close(started)
	return h.e
}

// addrOf returns the address of to for from.
func addrOf(t testing.TB, from, to *Endpoint) na.Addr {
	t.Helper()
	a, err := from.Lookup(to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// client makes calls one after the other.
type client struct {
	e          *Endpoint
	to         na.Addr
	tag        uint32
	send, recv *call
	msg, buf   []byte
}

func newClient(e *Endpoint, to na.Addr, firstTag uint32) *client {
	return &client{e: e, to: to, tag: firstTag, send: newCall(), recv: newCall(),
		msg: make([]byte, e.Limits().RequestRoom, e.Limits().RequestRoom+e.Limits().MaxRequest), buf: make([]byte, 8192)}
}

// call sends data and returns the answer, which is valid until the next call.
func (c *client) call(t testing.TB, data []byte) ([]byte, error) {
	t.Helper()
	c.tag++
	c.e.RecvExpected(&c.recv.op, c.to, c.tag, c.buf)
	c.msg = append(c.msg[:c.e.Limits().RequestRoom], data...)
	c.e.SendRequest(&c.send.op, c.to, c.tag, c.msg)
	c.e.Drive(c.to, &c.recv.ev)
	err := c.recv.park(t)
	if serr := c.send.park(t); serr != nil {
		return nil, serr
	}
	return c.buf[:max(0, c.recv.op.N)], err
}

func (c *client) must(t testing.TB, data []byte) {
	t.Helper()
	got, err := c.call(t, data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatalf("answer of %d bytes differs from the %d sent", len(got), len(data))
	}
}

func TestCall(t *testing.T) {
	server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
	c := newClient(cl, addrOf(t, cl, server), 0)
	for i := range 200 {
		c.must(t, bytes.Repeat([]byte{byte(i)}, i*20))
	}
}

// TestNoSpin: without spinning everything is done by goroutines parked in the poller.
// parity: H15 G75
func TestNoSpin(t *testing.T) {
	server, cl := openEcho(t, Config{Spin: -1}), openEndpoint(t, Config{Spin: -1})
	c := newClient(cl, addrOf(t, cl, server), 0)
	for i := range 50 {
		c.must(t, bytes.Repeat([]byte{byte(i)}, i))
	}
}

// TestLargeMessages has messages that do not fit where small ones are read to, mixed with small ones.
func TestLargeMessages(t *testing.T) {
	cfg := Config{MaxRequest: 200_000, MaxResponse: 200_000}
	server, cl := openEcho(t, cfg), openEndpoint(t, cfg)
	to := addrOf(t, cl, server)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			c := newClient(cl, to, uint32(g)<<16)
			c.buf = make([]byte, cfg.MaxResponse)
			for _, n := range []int{1, stageBytes - 41, stageBytes - 40, stageBytes - 39, stageBytes - 24, stageBytes, stageBytes + 1, 65536, 199_984, 3} {
				c.must(t, random(n, uint64(n+g)))
			}
		})
	}
	wg.Wait()
	c := newClient(cl, to, 1<<20)
	c.e.SendRequest(&c.send.op, to, 1, make([]byte, cl.Limits().RequestRoom+cl.Limits().MaxRequest+1))
	wantKind(t, c.send.park(t), na.Truncated)
}

func TestConcurrentCalls(t *testing.T) {
	server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, cl, server)
	calls := 200
	if invariants.Race {
		calls = 60
	}
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			c := newClient(cl, to, uint32(g)<<16)
			for i := range calls {
				c.must(t, bytes.Repeat([]byte{byte(i + g)}, i*7+g))
			}
		})
	}
	wg.Wait()
	if s := cl.Stats(); s.Connections != 1 {
		t.Errorf("%d connections, want 1", s.Connections)
	}
}

// random returns n bytes that are not twice the same.
func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = rng.Read(b) // never fails
	return b
}

// expose registers memory and returns how a peer's endpoint sees it.
func expose(t testing.TB, owner, user *Endpoint, b []byte, access na.Access) (na.Memory, na.RemoteMemory) {
	t.Helper()
	m, err := owner.Register(b, access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	r, err := user.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	return m, r
}

func TestTransfer(t *testing.T) {
	a, b := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, b, a)
	for _, size := range []int{1, 100, 4096, 70_000, 1 << 20, 1<<20 + 1, 17<<20 + 5} {
		src := random(size, uint64(size))
		dst := make([]byte, size)
		_, from := expose(t, a, b, src, na.ReadOnly)
		c := newCall()
		b.Get(&c.op, to, []na.Fragment{{Remote: from, Local: dst}})
		if err := c.wait(t, b, to); err != nil || c.op.N != int64(size) {
			t.Fatalf("get of %d: %d, %v", size, c.op.N, err)
		}
		if !bytes.Equal(src, dst) {
			t.Fatalf("get of %d: bytes differ", size)
		}
		back := make([]byte, size)
		_, into := expose(t, a, b, back, na.WriteOnly)
		b.Put(&c.op, to, []na.Fragment{{Remote: into, Local: dst}})
		if err := c.wait(t, b, to); err != nil || c.op.N != int64(size) {
			t.Fatalf("put of %d: %d, %v", size, c.op.N, err)
		}
		if !bytes.Equal(src, back) {
			t.Fatalf("put of %d: bytes differ", size)
		}
	}
}
