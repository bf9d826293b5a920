package ofitcp

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// on returns a raw peer on another address of the loopback, which counts as another host.
func on(t *testing.T, n byte) *raw {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the loopback has one address")
	}
	return newRawOn(t, net.IPv4(127, 0, 0, n))
}

// held lists connections of raw peers.
type held []*rawConn

// TestCrowdOfIdleConnections: one host opens connections without end and keeps them. Those that have been idle for longest
// give way, other hosts find room, and lose nothing.
func TestCrowdOfIdleConnections(t *testing.T) {
	const limit = 40
	book := hostquota.NewBook(hostquota.Limits{hostquota.Connections: limit})
	e := openEcho(t, Config{Quota: book})
	innocent := on(t, 3)
	c, _ := innocent.dial(e, 1)
	innocent.ping(c, 1)
	var kept held
	for range 3 * limit {
		r := on(t, 2)
		k, m := r.dial(e, 1)
		if m.typ != cmResponse {
			t.Fatalf("answer %+v", m)
		}
		kept = append(kept, k)
		if used := book.Used(hostquota.Connections); used > limit {
			t.Fatalf("%d connections are counted, the limit is %d", used, limit)
		}
	}
	innocent.ping(c, 2)
	for n := range byte(4) {
		r := on(t, 10+n)
		k, m := r.dial(e, 1)
		if m.typ != cmResponse {
			t.Fatalf("a newcomer's answer is %+v", m)
		}
		r.ping(k, 1)
	}
	kept[0].closed() // the oldest has given way
	if counted(e, audit.Evicted, causeIdle) == 0 {
		t.Error("no eviction is counted")
	}
	innocent.ping(c, 3)
}

// TestBusyConnectionsStay: connections with requests that are being handled do not give way. A host that has its share of
// them is refused more, before its request is answered, and others are not.
func TestBusyConnectionsStay(t *testing.T) {
	const limit = 40
	book := hostquota.NewBook(hostquota.Limits{hostquota.Connections: limit})
	e, requests := openHeldWith(t, Config{Quota: book})
	var kept held
	refused := 0
	for range limit {
		r := on(t, 2)
		k, m := r.dial(e, 1)
		if m.typ == cmNack {
			refused++
			continue
		}
		k.write(r.rawRequest(1, nil))
		from := <-requests
		from.(na.Holder).Hold(1)
		t.Cleanup(func() { from.(na.Holder).Hold(-1) })
		kept = append(kept, k)
	}
	if refused == 0 || len(kept) < limit/2 {
		t.Errorf("%d connections are kept and %d refused", len(kept), refused)
	}
	if n := counted(e, audit.Refused, causeShare); n != uint64(refused) {
		t.Errorf("%d refusals are counted, want %d", n, refused)
	}
	if n := counted(e, audit.Evicted, causeIdle); n != 0 {
		t.Errorf("%d connections gave way", n)
	}
	r := on(t, 3)
	if _, m := r.dial(e, 1); m.typ != cmResponse {
		t.Errorf("another host's answer is %+v", m)
	}
	until(t, "the connections are open", func() bool { return e.Stats().Open == len(kept)+1 }) // a peer has its answer before
}

// TestConnectionsAreCountedOnce: the units that connections hold are given back, however the connections end.
func TestConnectionsAreCountedOnce(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 1000})
	a, b := openEcho(t, Config{Quota: book}), openEcho(t, Config{Quota: book})
	newClient(a, addrOf(t, a, b), 0).must(t, []byte("x"))
	newClient(a, a.Addr(), 0).must(t, []byte("to itself"))
	r := newRaw(t)
	c, _ := r.dial(a, 1)
	_, _ = r.dial(a, 1)              // refused
	r.dialOnly(a).write([]byte("x")) // never complete
	_ = c.Close()
	silent := newRaw(t) // never answers the connection request
	gone := silent.send(a, 1, "x")
	silent.acceptOnly().cm()
	closeEndpoint(t, a)
	closeEndpoint(t, b)
	wantKind(t, gone.park(t), na.Closed)
	for _, what := range []hostquota.Resource{hostquota.Connections, hostquota.Handshakes} {
		if n := book.Used(what); n != 0 {
			t.Errorf("%d %v are counted at the end", n, what)
		}
	}
}

// TestHalfOpenOfOneHost: a host that opens connections and says nothing loses its own oldest, not those of others.
func TestHalfOpenOfOneHost(t *testing.T) {
	const limit = 32
	e := openEcho(t, Config{Quota: hostquota.NewBook(hostquota.Limits{hostquota.Handshakes: limit})})
	innocent := on(t, 3)
	slow := innocent.dialOnly(e)
	until(t, "the slow connection", func() bool { return e.cfg.Quota.Used(hostquota.Handshakes) == 1 })
	attacker := on(t, 2)
	first := attacker.dialOnly(e)
	for range 3 * limit {
		attacker.dialOnly(e)
	}
	first.closed()
	slow.write(appendCM(nil, innocent.request(1)))
	if m := slow.cm(); m.typ != cmResponse {
		t.Errorf("answer %+v", m)
	}
	innocent.ping(slow, 1)
}

// TestEvictionSparesCalls ends idle connections while calls are made one after the other. A connection that has a call under
// way stays, and a call that begins while one ends makes another connection, so that every call succeeds.
func TestEvictionSparesCalls(t *testing.T) {
	a, b := openEcho(t, Config{}), openEcho(t, Config{})
	to := addrOf(t, a, b)
	waits := newCall()
	newClient(a, to, 0).must(t, []byte("x"))
	c := a.peer(b.self).conn.Load()
	a.RecvExpected(&waits.op, to, 1000, make([]byte, 1))
	if c.evict() || c.dead.Load() {
		t.Fatal("a connection with a call under way gave way")
	}
	a.Cancel(&waits.op)
	wantKind(t, waits.park(t), na.Canceled)
	var evicted atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, c := range a.connections() {
				if c.evict() {
					evicted.Add(1)
				}
			}
			runtime.Gosched()
		}
	})
	calls := newClient(a, to, 0)
	// Between two calls the connection is idle for a moment, in which the other goroutine may not run.
	for n := 0; (n < 300 || evicted.Load() == 0 && n < 100_000) && !t.Failed(); n++ {
		if _, err := calls.call(t, []byte("x")); err != nil {
			t.Errorf("call %d: %v", n, err)
		}
		if n >= 300 {
			runtime.Gosched()
		}
	}
	close(stop)
	wg.Wait()
	if evicted.Load() == 0 {
		t.Error("no connection gave way, so nothing was tested")
	}
}

// TestUnwrittenAnswerKeepsConnection has a peer read nothing until the socket is full. The connection holds collected answers
// that no operation stands for any more, so it is not idle.
func TestUnwrittenAnswerKeepsConnection(t *testing.T) {
	e := openEcho(t, Config{})
	r := newRaw(t)
	k, _ := r.dial(e, 1)
	r.ping(k, 1)
	c := e.connections()[0]
	until(t, "the connection is idle", c.idle)
	c.mu.Lock()
	c.cork = append(c.cork, "an answer"...)
	c.mu.Unlock()
	c.wmu.Lock()
	c.fill()
	if c.evict() {
		t.Error("a connection with an answer that is not written gave way")
	}
	c.wmu.Unlock()
}
