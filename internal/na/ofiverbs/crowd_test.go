package ofiverbs

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// TestCrowdOfIdleConnections calls a server once from each of many clients of one host, which keep their connections. Those that have been idle for longest
// give way, and a client that has lost its connection makes another one for its next call.
// parity: N05
func TestCrowdOfIdleConnections(t *testing.T) {
	const limit = 40
	book, trail := hostquota.NewBook(hostquota.Limits{hostquota.Connections: limit}), audit.New(nil)
	server := openServer(t, Config{Quota: book, Audit: trail})
	var clients []*Endpoint
	for range limit + limit/2 {
		c := openEndpoint(t, Config{})
		ask(t, c, lookup(t, c, server), 1, nil)
		clients = append(clients, c)
		if used := book.Used(hostquota.Connections); used > limit {
			t.Fatalf("%d connections are counted, the limit is %d", used, limit)
		}
	}
	if n := counted(trail, audit.Evicted, causeIdle); n < limit/2 {
		t.Errorf("%d evictions are counted, want %d at least", n, limit/2)
	}
	first := clients[0]
	eventually(t, "the end of the oldest connection", func() bool { return first.Stats().Open == 0 })
	ask(t, first, lookup(t, first, server), 2, nil)
	if n := first.Stats().Connections; n != 2 {
		t.Errorf("the first client has made %d connections, want another one", n)
	}
}

// TestBusyConnectionsStay checks that connections with requests that are being handled do not give way. The host that has used up its share
// gets no further connection.
// parity: N05
func TestBusyConnectionsStay(t *testing.T) {
	const limit = 40
	book, trail := hostquota.NewBook(hostquota.Limits{hostquota.Connections: limit}), audit.New(nil)
	requests := make(chan na.Addr, limit)
	server := openEndpoint(t, Config{Quota: book, Audit: trail, Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		m.From.(na.Holder).Hold(1)
		requests <- m.From
		return nil
	})})
	kept, refused := 0, 0
	for range limit {
		c := openEndpoint(t, Config{})
		sent := newCall()
		c.SendRequest(&sent.op, lookup(t, c, server), 1, request(c, nil))
		if err := sent.park(t); err != nil {
			refused++
			continue
		}
		from := <-requests
		t.Cleanup(func() { from.(na.Holder).Hold(-1) })
		kept++
	}
	if refused == 0 || kept < limit/2 {
		t.Errorf("%d connections are kept and %d refused", kept, refused)
	}
	if n := counted(trail, audit.Refused, causeShare); n != uint64(refused) {
		t.Errorf("%d refusals are counted, want %d", n, refused)
	}
	if n, open := counted(trail, audit.Evicted, causeIdle), server.Stats().Open; n != 0 || open != kept {
		t.Errorf("%d connections gave way and %d are open, want %d", n, open, kept)
	}
}

// TestEvictionSparesCalls ends idle connections while calls are made one after the other. A connection that has a call under way stays, and
// a call that begins while one ends makes another connection, so that every call succeeds.
// parity: N05
func TestEvictionSparesCalls(t *testing.T) {
	a, b := openEndpoint(t, Config{}), openServer(t, Config{})
	to := lookup(t, a, b)
	ask(t, a, to, 1, nil)
	c := a.connections()[0]
	waits := newCall()
	a.RecvExpected(&waits.op, to, 1000, make([]byte, 1))
	if c.evict() || c.dead.Load() {
		t.Fatal("a connection with a call under way gave way")
	}
	a.Cancel(&waits.op)
	waits.want(t, na.Canceled)
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
	// Between two calls the connection is idle for a moment, in which the other goroutine may not run.
	for n := 0; (n < 100 || evicted.Load() == 0 && n < 100_000) && !t.Failed(); n++ {
		ask(t, a, to, uint32(n), []byte("x"))
		if n >= 100 {
			runtime.Gosched()
		}
	}
	close(stop)
	wg.Wait()
	if evicted.Load() == 0 {
		t.Error("no connection gave way, so nothing was tested")
	}
}

// TestEvictionByPeer has two endpoints call each other, and both end each connection that they find idle. Neither loses a request that is under
// way when the other side ends the connection.
// parity: N05
func TestEvictionByPeer(t *testing.T) {
	ends := []*Endpoint{openServer(t, Config{}), openServer(t, Config{})}
	for _, e := range ends {
		e.askTime = patience // because a busy machine may take long to answer
	}
	var evicted atomic.Int64
	var rounds [2]atomic.Int64 // of the evictors
	stop := make(chan struct{})
	var callers, evictors sync.WaitGroup
	for i, e := range ends {
		to := lookup(t, e, ends[1-i])
		callers.Go(func() {
			for n := 0; n < 20 && !t.Failed(); n++ {
				for seen := rounds[i].Load(); rounds[i].Load() == seen; { // so that the connection is idle at times
					runtime.Gosched()
				}
				sent, answer := newCall(), newCall()
				e.RecvExpected(&answer.op, to, uint32(n), make([]byte, 1))
				e.SendRequest(&sent.op, to, uint32(n), request(e, []byte("x")))
				for _, c := range []*call{answer, sent} {
					if err := c.wait(t, e, to); err != nil {
						t.Errorf("endpoint %d, call %d: %v", i, n, err)
					}
				}
			}
		})
		evictors.Go(func() {
			for !rundown.IsClosed(stop) {
				for _, c := range e.connections() {
					if c.evict() {
						evicted.Add(1)
					}
				}
				rounds[i].Add(1)
				runtime.Gosched()
			}
		})
	}
	callers.Wait()
	close(stop)
	evictors.Wait()
	if evicted.Load() == 0 {
		t.Error("no connection gave way, so nothing was tested")
	}
}

// TestQuestionOfEviction checks the question and the answers of an eviction packet by packet, with a peer that claims to be of this package: it ends
// the connection, or answers that it does not, or is silent. Requests that begin after the question leave after an answer, or over another connection.
// parity: N05
func TestQuestionOfEviction(t *testing.T) {
	for _, name := range []string{"ends", "refuses", "silent", "silent but for packets"} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, Config{KeepAlive: -1, SendTimeout: -1}, nil, func(t *testing.T, f *faulty) {
				c, rc := idleNative(t, f)
				begin := time.Now()
				evicted := make(chan bool)
				go func() { evicted <- c.evict() }()
				if m := rc.next(t); m.kind != kindCredit || m.asks != askEnd {
					t.Fatalf("the endpoint sends %+v, and not the question", m)
				}
				sent, answer := f.request(7)
				want, after := true, time.Duration(0)
				switch name {
				case "ends":
					if err := rc.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err != nil {
						t.Error(err)
					}
				case "refuses":
					want = false
					rc.ask(t, askNot)
				case "silent":
					want, after = false, askTime // because of the request, which waits for an answer
				case "silent but for packets":
					want, after = false, askTime
					rc.credit(t, 1)
				}
				if got, took := <-evicted, time.Since(begin); got != want || took != after {
					t.Errorf("evicted after %v: %t, want %t after %v", took, got, want, after)
				}
				switch name {
				case "ends":
					f.accept(1)
				case "refuses":
					if m := rc.next(t); m.kind != kindRequest || m.tag != 7 {
						t.Errorf("%+v comes", m)
					}
				default:
					f.e.Cancel(&answer.op)
					f.e.Cancel(&sent.op)
					sent.want(t, na.Canceled)
					if !c.evict() {
						t.Error("the connection stays when the peer is asked again")
					}
					return
				}
				sent.want(t, 0)
				f.e.Cancel(&answer.op)
				answer.want(t, na.Canceled)
			})
		})
	}
}

// TestAnswerToEviction asks an endpoint for the end of a connection: one with a call under way stays, and the same one ends when the call is over.
// parity: N05
func TestAnswerToEviction(t *testing.T) {
	withFaults(t, Config{KeepAlive: -1}, nil, func(t *testing.T, f *faulty) {
		_, rc := idleNative(t, f)
		_, answer := f.request(7)
		rc.ask(t, askEnd)
		for asks := false; !asks; {
			asks = rc.next(t).asks == askNot
		}
		f.e.Cancel(&answer.op)
		answer.want(t, na.Canceled)
		rc.ask(t, askEnd)
		<-rc.vc.Done()
		sent, second := f.request(8)
		f.accept(1)
		sent.want(t, 0)
		f.e.Cancel(&second.op)
		second.want(t, na.Canceled)
	})
}

// idleNative returns an idle connection of the endpoint, and its other end: a peer that says that it is a program of this package.
func idleNative(t *testing.T, f *faulty) (*conn, *rawConn) {
	t.Helper()
	rc, err := f.peer.dial(t, f.e, appendExtension(appendRequest(nil, f.peer.cmRequest()), verbs.RemoteAddr{}))
	if err != nil {
		t.Fatal(err)
	}
	rc.credit(t, 10)
	if m := rc.next(t); m.kind != kindCredit {
		t.Fatalf("%+v comes", m)
	}
	synctest.Wait()
	return f.e.connections()[0], rc
}

// ask sends a question or an answer of an eviction.
func (c *rawConn) ask(t testing.TB, asks uint64) {
	t.Helper()
	p := make(packet, headerLen)
	p.putAsk(c.index, asks)
	c.put(t, p)
}

// TestCallDuringEviction begins a call when its connection has been found idle and is about to end. The call goes over the next connection.
// parity: N05
//
// +checklocksignore: it does not follow an unlock by a function value.
func TestCallDuringEviction(t *testing.T) {
	a, b := openEndpoint(t, Config{}), openServer(t, Config{})
	to := lookup(t, a, b)
	ask(t, a, to, 1, nil)
	c := a.connections()[0]
	c.peer.mu.Lock() // lost waits for it
	unlock := sync.OnceFunc(c.peer.mu.Unlock)
	defer unlock()
	evicted := make(chan struct{})
	go func() {
		defer close(evicted)
		for !c.evict() && !c.dead.Load() { // the completions of the first call may have to come yet
			runtime.Gosched()
		}
	}()
	eventually(t, "the end of the connection", c.dead.Load)
	answer, sent := newCall(), newCall()
	a.RecvExpected(&answer.op, to, 2, make([]byte, 1))
	unlock()
	<-evicted
	a.SendRequest(&sent.op, to, 2, request(a, []byte("x")))
	answer.want(t, 0)
	sent.want(t, 0)
}

// TestNewConnectionStays checks that a connection over which nothing has come yet does not count as idle for longest.
// parity: N05
func TestNewConnectionStays(t *testing.T) {
	client, server := openEndpoint(t, Config{}), openServer(t, Config{})
	ask(t, client, lookup(t, client, server), 1, nil)
	first := server.connections()[0]
	newRawPeer(t).mustDial(t, server)
	eventually(t, "two idle connections", func() bool {
		list := server.connections()
		return len(list) == 2 && list[0].idle() && list[1].idle()
	})
	if got := server.longestIdle(true); got != first {
		t.Error("the connection that has just been made gives way, and not the one that is idle for longer")
	}
}

// TestUnsentMessagesKeepConnection checks that a connection whose peer has granted no credits for a response is not idle.
func TestUnsentMessagesKeepConnection(t *testing.T) {
	server := openServer(t, Config{})
	r := newRawPeer(t)
	rc := r.mustDial(t, server)
	rc.put(t, r.request(rc, 1, "x"))
	eventually(t, "a response that waits", func() bool {
		list := server.connections()
		return len(list) == 1 && strings.Contains(list[0].report(), "credits")
	})
	if server.connections()[0].evict() {
		t.Error("a connection with an unsent response gave way")
	}
}

// TestNoRoomOnDevice opens a server on a device with room for the memory of a few connections only. Idle connections give way to new ones.
// parity: N05
func TestNoRoomOnDevice(t *testing.T) {
	const clients, room = 10, 3
	inner := memdev.Open(memdev.Config{})
	scarce := &scarceDevice{DeviceDriver: inner}
	scarce.room.Store(1 << 30)
	dev := verbs.NewDevice(scarce)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	trail := audit.New(nil)
	server := openServer(t, Config{Device: dev, Audit: trail})
	scarce.room.Store(room * mostPinned)
	of := verbs.NewDevice(inner) // the same device without the limit; dev closes it
	for range clients {
		c := openEndpoint(t, Config{Device: of})
		ask(t, c, lookup(t, c, server), 1, nil)
	}
	if n := counted(trail, audit.Evicted, causeIdle); n < clients-2*room {
		t.Errorf("%d evictions are counted, want %d at least", n, clients-2*room)
	}
}

// TestResponsesThatPeerDoesNotReceive sends requests without end from a peer that grants no credits for the responses. Its connection ends, although
// SendTimeout is off.
// parity: N05
func TestResponsesThatPeerDoesNotReceive(t *testing.T) {
	server := openServer(t, Config{SendTimeout: -1, KeepAlive: -1})
	r := newRawPeer(t)
	c := r.mustDial(t, server)
	p := r.request(c, 1, "x")
	copy(c.send.Bytes(), p)
	wrs := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{c.send.SGE(0, len(p))}}}
	sent := 0
	var wc [pollBatch]verbs.WC
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case <-c.vc.Done():
			if sent <= maxResponses {
				t.Errorf("the connection has ended after %d requests; %d may wait", sent, maxResponses)
			}
			eventually(t, "no connection", func() bool { return len(server.connections()) == 0 })
			return
		default:
		}
		if _, err := c.qp.PostSend(wrs); err == nil {
			sent++
		}
		if _, err := c.cq.Poll(wc[:]); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("the connection is open after %d requests whose responses the peer does not receive", sent)
}
