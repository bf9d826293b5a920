package cinnabar

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/sm"
)

// lend is the argument of an RPC whose server reaches for the caller's memory after the caller has given up.
type lend struct {
	Memory BulkHandle
	Push   bool
}

var (
	lateRPC  = NewRPC[lend, struct{}]("late")
	probeRPC = NewRPC[lend, struct{}]("probe")
)

// lateServer serves lateRPC: each handler says that it has begun, waits for a word on goOn, and then transfers.
type lateServer struct {
	e      *Engine
	begun  chan struct{}
	blocks chan struct{} // a handler of block has begun
	goOn   chan struct{}
	done   chan error
	got    chan []byte // what a pull has read
}

// overTCP makes an engine that is reached over ofi+tcp, whatever the network of the other tests is.
func overTCP(t *testing.T, cfg *Config) *Engine {
	t.Helper()
	e, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	return opened(t, e, err)
}

// lateText is what the memory of the tests has.
const lateText = "the quick brown fox jumps over the lazy dog"

func newLateServer(t *testing.T, addr string) *lateServer {
	t.Helper()
	e, err := Listen(t.Context(), addr, withDeviceFor(t, addr, nil))
	opened(t, e, err)
	s := &lateServer{e: e, begun: make(chan struct{}, 100), blocks: make(chan struct{}, 100), goOn: make(chan struct{}), done: make(chan error, 100), got: make(chan []byte, 100)}
	must(t, lateRPC.Handle(e, func(ctx context.Context, in lend) (struct{}, error) {
		s.begun <- struct{}{}
		<-s.goOn
		err := s.reach(ctx, in)
		s.done <- err
		return struct{}{}, err
	}))
	must(t, probeRPC.Handle(e, func(ctx context.Context, in lend) (struct{}, error) { return struct{}{}, s.reach(ctx, in) }))
	must(t, add.Handle(e, handleAdd))
	must(t, block.Handle(e, func(ctx context.Context, in struct{}) (struct{}, error) {
		s.blocks <- struct{}{}
		return handleBlock(ctx, in)
	}))
	t.Cleanup(func() { close(s.goOn) })
	return s
}

// reach pulls from the memory, or pushes noise to it.
func (s *lateServer) reach(ctx context.Context, in lend) error {
	remote := in.Memory.On(InfoFrom(ctx).Peer)
	local := bytes.Repeat([]byte{'#'}, int(remote.Len()))
	b, err := s.e.Expose(ReadWrite, local)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	if in.Push {
		_, err = remote.Push(ctx, b)
		return err
	}
	if _, err = remote.Pull(ctx, b); err == nil {
		s.got <- local
	}
	return err
}

// giveUp makes a call of lateRPC and gives it up when its handler runs.
func giveUp(t *testing.T, s *lateServer, to Target, in lend) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := lateRPC.Start(ctx, to, in)
	soon(t, "the handler", s.begun)
	cancel()
	_, err := p.Wait()
	wantCode(t, err, codes.Canceled)
}

// nobodyHurt checks that the connection has survived: a call that was under way is still.
func nobodyHurt(t *testing.T, innocent *Pending[struct{}]) {
	t.Helper()
	select {
	case <-innocent.Done():
		_, err := innocent.Wait()
		t.Fatalf("a call that has nothing to do with it ended: %v", err)
	default:
		innocent.cancel()
		_, _ = innocent.Wait()
	}
}

// TestLateAccess closes memory that was lent to a call which was given up, before the server reaches for it.
func TestLateAccess(t *testing.T) {
	makers := map[string]func(e *Engine, mode Mode) (*Bulk, []byte, error){
		"own slice": func(e *Engine, mode Mode) (*Bulk, []byte, error) {
			mem := []byte(strings.Repeat(lateText, 1000))
			b, err := e.Expose(mode, mem)
			return b, mem, err
		},
		"segments": func(e *Engine, mode Mode) (*Bulk, []byte, error) {
			mem := []byte(strings.Repeat(lateText, 1000))
			b, err := e.Expose(mode, mem[:7], mem[7:5000], mem[5000:])
			return b, mem, err
		},
		"alloc": func(e *Engine, mode Mode) (*Bulk, []byte, error) {
			b, err := e.Alloc(mode, int64(1000*len(lateText)))
			if err != nil {
				return nil, nil, err
			}
			copy(b.Bytes(), strings.Repeat(lateText, 1000))
			return b, nil, nil
		},
	}
	for name, mk := range makers {
		for _, mode := range []Mode{ReadOnly, WriteOnly, ReadWrite} {
			for _, push := range []bool{false, true} {
				if !mode.allows(map[bool]Mode{false: ReadOnly, true: WriteOnly}[push]) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%v/push=%v", name, mode, push), func(t *testing.T) {
					s := newLateServer(t, "ofi+tcp://127.0.0.1")
					client := overTCP(t, &Config{NoEager: true})
					ep := reach(t, client, s.e)
					innocent := block.Start(t.Context(), ep, struct{}{})
					b, mem, err := mk(client, mode)
					must(t, err)
					giveUp(t, s, ep, lend{b.Handle(), push})
					must(t, b.Close())
					clear(mem) // the program uses its slice for something else
					if n := memoryHeld(client); !push && n == 0 {
						t.Error("what is kept does not count towards MaxMemory")
					}
					s.goOn <- struct{}{}
					must(t, soon(t, "the late access", s.done))
					if push {
						if bytes.Contains(mem, []byte("#")) {
							t.Error("a late write has reached memory that was closed")
						}
					} else if got := soon(t, "the bytes", s.got); string(got) != strings.Repeat(lateText, 1000) {
						t.Errorf("a late read got %.40q", got)
					}
					callAdd(t, ep) // its answer comes behind the late one
					nobodyHurt(t, innocent)
					wantNothingKept(t, client)
				})
			}
		}
	}
}

// memoryHeld returns the bytes that the engine holds for its peers.
func memoryHeld(e *Engine) int64 {
	for _, q := range e.Stats().Security.Quotas {
		if q.Resource == "bytes of memory" {
			return q.Used
		}
	}
	return -1
}

// wantNothingKept waits until the engine has no kept memory any more.
func wantNothingKept(t *testing.T, e *Engine) {
	t.Helper()
	waitFor(t, func() bool { return memoryHeld(e) == 0 })
}

// lentToLate makes an engine that has lent a slice to a call which was given up, and has closed it.
func lentToLate(t *testing.T, s *lateServer, cfg Config, size int) (client *Engine, ep *Endpoint, innocent *Pending[struct{}]) {
	t.Helper()
	cfg.NoEager = true
	client = overTCP(t, &cfg)
	ep = reach(t, client, s.e)
	innocent = block.Start(t.Context(), ep, struct{}{})
	soon(t, "the handler of the innocent call", s.blocks)
	b, err := client.Expose(ReadOnly, make([]byte, size))
	must(t, err)
	giveUp(t, s, ep, lend{Memory: b.Handle()})
	must(t, b.Close())
	return client, ep, innocent
}

// wantLateError checks the error of a call whose connection ended because of a late access.
func wantLateError(t *testing.T, p *Pending[struct{}], texts ...string) {
	t.Helper()
	_, err := p.Wait()
	wantCode(t, err, codes.ProtocolError)
	for _, text := range append(texts, "exposed for the call late,", "ago", "the request of this call has left, and may have been executed") {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error lacks %q: %v", text, err)
		}
	}
}

// TestLateAccessExpires has a server come later than Config.LateAccess allows.
func TestLateAccessExpires(t *testing.T) {
	s := newLateServer(t, "ofi+tcp://127.0.0.1")
	client, ep, innocent := lentToLate(t, s, Config{LateAccess: time.Millisecond}, 5000)
	wantNothingKept(t, client)
	s.goOn <- struct{}{}
	if err := soon(t, "the late access", s.done); err == nil {
		t.Error("memory is served after Config.LateAccess")
	}
	wantLateError(t, innocent, "memory of 5000 bytes", "it was kept for 1ms (Config.LateAccess)")
	callAdd(t, ep) // over a new connection
}

// TestLateAccessOff has no memory kept.
func TestLateAccessOff(t *testing.T) {
	s := newLateServer(t, "ofi+tcp://127.0.0.1")
	client, _, innocent := lentToLate(t, s, Config{LateAccess: -1}, 5000)
	if n := memoryHeld(client); n != 0 {
		t.Errorf("%d bytes are kept", n)
	}
	s.goOn <- struct{}{}
	wantLateError(t, innocent, "Config.LateAccess is negative")
}

// TestLateAccessBeyondBudget lends more than Config.MaxMemory lets the engine keep.
func TestLateAccessBeyondBudget(t *testing.T) {
	s := newLateServer(t, "ofi+tcp://127.0.0.1")
	_, ep, innocent := lentToLate(t, s, Config{MaxMemory: 32 << 20}, 33<<20)
	s.goOn <- struct{}{}
	wantLateError(t, innocent, "there is no room to keep it", "(Config.MaxMemory)")
	callAdd(t, ep)
}

// TestLateAccessOfAnotherPeer has a server reach for memory that is kept for another one.
func TestLateAccessOfAnotherPeer(t *testing.T) {
	first, second := newLateServer(t, "ofi+tcp://127.0.0.1"), newLateServer(t, "ofi+tcp://127.0.0.1")
	client := overTCP(t, &Config{NoEager: true})
	b, err := client.Expose(ReadOnly, make([]byte, 5000))
	must(t, err)
	there := lateRPC.Start(t.Context(), reach(t, client, second.e), lend{Memory: b.Handle()})
	soon(t, "the handler", second.begun)
	ep := reach(t, client, first.e)
	innocent := block.Start(t.Context(), ep, struct{}{})
	giveUp(t, first, ep, lend{Memory: b.Handle()})
	must(t, b.Close())
	second.goOn <- struct{}{}
	wantLateError(t, there, "it is kept for the server of that call only")
	first.goOn <- struct{}{}
	must(t, soon(t, "the late access", first.done))
	nobodyHurt(t, innocent)
	wantNothingKept(t, client)
}

// TestLateAccessForwarded has the server of a call that was given up hand the handle on. The third process has no right to
// the memory any more; the server itself has.
func TestLateAccessForwarded(t *testing.T) {
	s, third := newLateServer(t, "ofi+tcp://127.0.0.1"), newLateServer(t, "ofi+tcp://127.0.0.1")
	client := overTCP(t, &Config{NoEager: true})
	b, err := client.Expose(ReadOnly, make([]byte, 5000))
	must(t, err)
	ep := reach(t, client, s.e)
	giveUp(t, s, ep, lend{Memory: b.Handle()})
	bound := b.Bound()
	must(t, b.Close())
	local, err := third.e.Alloc(WriteOnly, 5000)
	must(t, err)
	defer func() { _ = local.Close() }()
	owner, err := bound.Owner(third.e)
	must(t, err)
	if _, err := bound.On(owner).Pull(patient(t), local); err == nil {
		t.Error("a third process has read memory that is kept for the server of a call")
	}
	s.goOn <- struct{}{}
	must(t, soon(t, "the late access", s.done))
	wantNothingKept(t, client)
}

// TestLateAccessOfTwoCalls has one memory in two calls that were given up: it is kept until both are answered.
func TestLateAccessOfTwoCalls(t *testing.T) {
	s := newLateServer(t, "ofi+tcp://127.0.0.1")
	client := overTCP(t, &Config{NoEager: true})
	ep := reach(t, client, s.e)
	innocent := block.Start(t.Context(), ep, struct{}{})
	b, err := client.Expose(ReadOnly, make([]byte, 5000))
	must(t, err)
	giveUp(t, s, ep, lend{Memory: b.Handle()})
	giveUp(t, s, ep, lend{Memory: b.Handle()})
	must(t, b.Close())
	for range 2 {
		if memoryHeld(client) != 5000 {
			t.Errorf("%d bytes are kept, want 5000", memoryHeld(client))
		}
		s.goOn <- struct{}{}
		must(t, soon(t, "a late access", s.done))
		callAdd(t, ep)
	}
	wantNothingKept(t, client)
	nobodyHurt(t, innocent)
}

// TestLateAccessEndsWithItsConnection closes either side while memory is kept.
func TestLateAccessEndsWithItsConnection(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		s := newLateServer(t, "ofi+tcp://127.0.0.1")
		client, _, innocent := lentToLate(t, s, Config{}, 5000)
		must(t, s.e.Close())
		_, err := innocent.Wait()
		if code := codes.Of(err); code != codes.HostUnreach && code != codes.Canceled { // which the handler may have answered
			t.Errorf("the call under way: %v", err)
		}
		wantNothingKept(t, client)
	})
	t.Run("client", func(t *testing.T) {
		s := newLateServer(t, "ofi+tcp://127.0.0.1")
		client, _, _ := lentToLate(t, s, Config{}, 5000)
		must(t, client.Close())
		if n := memoryHeld(client); n != 0 {
			t.Errorf("%d bytes are kept after the engine has closed", n)
		}
	})
}

// TestLateAccessToPool gives a pool's buffer out again, with new keys, while the server of a call that was given up may reach for
// it by the old ones: that server finds what the buffer had, and does not disturb its next user.
func TestLateAccessToPool(t *testing.T) {
	const next = "a secret of the next user of the same buffer"
	for _, push := range []bool{false, true} {
		s := newLateServer(t, "ofi+tcp://127.0.0.1")
		client := overTCP(t, &Config{NoEager: true})
		pool := newPool(t, client, ReadWrite, 1, 5000)
		ep := reach(t, client, s.e)
		innocent := block.Start(t.Context(), ep, struct{}{})
		b, err := pool.Get(t.Context())
		must(t, err)
		copy(b.Bytes(), lateText)
		giveUp(t, s, ep, lend{b.Handle(), push})
		must(t, pool.Release(b))
		again, err := pool.TryGet() // the server does not hold the pool up
		must(t, err)
		copy(again.Bytes(), next)
		s.goOn <- struct{}{}
		must(t, soon(t, "the late access", s.done))
		if got := string(again.Bytes()[:len(next)]); got != next {
			t.Errorf("the buffer has %q", got)
		}
		if !push && !strings.HasPrefix(string(soon(t, "the bytes", s.got)), lateText) {
			t.Error("the late read has other bytes")
		}
		_, err = probeRPC.Call(patient(t), ep, lend{again.Handle(), push})
		must(t, err) // under its new keys
		must(t, pool.Release(again))
		nobodyHurt(t, innocent)
		must(t, pool.Close())
		wantNothingKept(t, client)
	}
}

// TestCloseOfPoolWithLateAccess closes a pool while one of its buffers has got new keys, and one is lent to a call that was given up.
func TestCloseOfPoolWithLateAccess(t *testing.T) {
	s := newLateServer(t, "ofi+tcp://127.0.0.1")
	client := overTCP(t, &Config{NoEager: true})
	pool := newPool(t, client, ReadOnly, 2, 5000)
	ep := reach(t, client, s.e)
	innocent := block.Start(t.Context(), ep, struct{}{})
	for i := range 2 {
		b, err := pool.Get(t.Context())
		must(t, err)
		copy(b.Bytes(), lateText)
		giveUp(t, s, ep, lend{Memory: b.Handle()})
		if i == 0 {
			must(t, pool.Release(b))
		}
	}
	must(t, pool.Close())
	for range 2 {
		s.goOn <- struct{}{}
		must(t, soon(t, "a late access", s.done))
		if !strings.HasPrefix(string(soon(t, "the bytes", s.got)), lateText) {
			t.Error("the late read has other bytes")
		}
	}
	nobodyHurt(t, innocent)
	wantNothingKept(t, client)
}

// TestTimeOutHurtsNoOtherCall is the program of a user: many calls that lend memory, and one of them runs out of time before
// the server reaches for its memory.
func TestTimeOutHurtsNoOtherCall(t *testing.T) {
	const innocents = 20
	for _, net := range []string{"ofi+tcp://127.0.0.1", "ofi+verbs://127.0.0.1", "na+sm"} {
		for name, lent := range map[string]func(e *Engine) (*Bulk, error){
			"expose": func(e *Engine) (*Bulk, error) { return e.Expose(ReadOnly, []byte(strings.Repeat(lateText, 100))) },
			"alloc":  func(e *Engine) (*Bulk, error) { return e.Alloc(ReadOnly, int64(100*len(lateText))) },
		} {
			t.Run(net+"/"+name, func(t *testing.T) {
				if err := sm.Available(); net == "na+sm" && err != nil {
					t.Skipf("no shared memory: %v", err)
				}
				s := newLateServer(t, net)
				client, err := Open(t.Context(), net, withDeviceFor(t, net, &Config{NoEager: true}))
				opened(t, client, err)
				ep := reach(t, client, s.e)
				call := func(ctx context.Context) error {
					b, err := lent(client)
					if err != nil {
						return err
					}
					defer func() { _ = b.Close() }()
					_, err = lateRPC.Call(ctx, ep, lend{Memory: b.Handle()})
					return err
				}
				results := make(chan error, innocents)
				for range innocents {
					go func() { results <- call(patient(t)) }()
				}
				for range innocents {
					soon(t, "the handlers", s.begun)
				}
				ctx, cancel := context.WithCancel(t.Context())
				slow := make(chan error, 1)
				go func() { slow <- call(ctx) }()
				soon(t, "the slow handler", s.begun)
				cancel()
				wantCode(t, soon(t, "the slow call", slow), codes.Canceled)
				for range innocents + 1 {
					s.goOn <- struct{}{}
				}
				for range innocents {
					must(t, soon(t, "an innocent call", results))
				}
			})
		}
	}
}

// TestLateCallsDoNotLeak gives many calls up and has them answered.
func TestLateCallsDoNotLeak(t *testing.T) {
	s := newLateServer(t, "ofi+tcp://127.0.0.1")
	client := overTCP(t, &Config{NoEager: true})
	ep := reach(t, client, s.e)
	for i := range 50 {
		b, err := client.Alloc(ReadWrite, 5000)
		must(t, err)
		giveUp(t, s, ep, lend{b.Handle(), i%2 == 0})
		must(t, b.Close())
	}
	for range 50 {
		s.goOn <- struct{}{}
		must(t, soon(t, "a late access", s.done))
	}
	wantNothingKept(t, client)
}
