package ofiverbs

import (
	"bytes"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/rundown"
)

// TestDriverStaysAway has a driver claim a connection and not come back. The goroutine of the connection polls again, so that a response
// arrives although no caller drives for it.
func TestDriverStaysAway(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	c := client.connections()[0]
	for tag := uint32(2); tag < 10; tag++ {
		c.claim.Take()
		if !client.watcher.Add(&c.turns.watch) {
			t.Fatal("the watcher is closed")
		}
		if err := start(t, client, to, tag).park(t); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDriversTogether has several goroutines call over one connection, of which one at a time may spin. All calls return: no goroutine waits
// for a driver that has its response and has left.
func TestDriversTogether(t *testing.T) {
	const callers, calls = 6, 200
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := range calls {
				ask(t, client, to, uint32(1+i*calls+n), []byte{byte(i), byte(n)})
			}
		})
	}
	wg.Wait()
}

// TestClaimEndsWhileDriverPolls ends the claim on a connection while a driver polls, as a look of the watcher does that began just before the
// driver came. The driver then gets its message and leaves. The goroutine of the connection polls from then on, so that a response for which
// no goroutine drives arrives.
func TestClaimEndsWhileDriverPolls(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{Progress: progress.NewFixed(time.Second)})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	c := client.connections()[0]
	for tag := uint32(2); tag < 10; tag++ {
		ev, left := driver(client, to)
		for !c.polledByDriver() && !rundown.IsClosed(left) { // it is closed after driveTime at the latest
			runtime.Gosched()
		}
		c.handBack()
		ev.Set()
		<-left
		if err := start(t, client, to, tag).park(t); err != nil {
			t.Fatal(err)
		}
	}
}

// driver starts a goroutine that drives for ev. left is closed when it has left.
func driver(e *Endpoint, to na.Addr) (ev *na.Event, left chan struct{}) {
	ev, left = new(na.Event), make(chan struct{})
	go func() {
		defer close(left)
		e.Drive(to, ev)
	}()
	return ev, left
}

func (c *conn) polledByDriver() bool { return c.wanted.Load() > 0 && c.claim.Taken() }

// TestClaimLastsWhileDriverPolls polls by a driver for several looks of the watcher. They do not end its claim, because that would wake the
// goroutine of the connection for nothing.
func TestClaimLastsWhileDriverPolls(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{Progress: progress.NewFixed(time.Second)})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	c := client.connections()[0]
	for began := time.Now(); ; {
		if time.Since(began) > patience {
			t.Fatal("no driver has polled during three looks of the watcher")
		}
		ev, left := driver(client, to)
		for !c.polledByDriver() && !rundown.IsClosed(left) {
			runtime.Gosched()
		}
		o := countLooks{most: 3}
		o.add(t, client)
		for o.looks.Load() < o.most && !rundown.IsClosed(left) {
			runtime.Gosched()
		}
		taken := c.claim.Taken()
		polled := c.wanted.Load() > 0 && o.looks.Load() >= o.most
		ev.Set()
		<-left
		if polled && !taken {
			t.Fatal("the watcher has ended the claim of a driver that polls")
		}
		if polled {
			return
		}
	}
}

// countLooks depends on a watcher for some looks.
type countLooks struct {
	most, byWaiters int32
	looks, waiters  atomic.Int32 // waiters: looks of spinning waiters
	watch           progress.Watch
}

func (o *countLooks) add(t *testing.T, e *Endpoint) {
	t.Helper()
	o.watch.Init(o)
	if !e.watcher.Add(&o.watch) {
		t.Fatal("the watcher is closed")
	}
}

func (o *countLooks) Look() bool {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, ".(*Spin).Vain") {
			o.waiters.Add(1)
		}
	}
	o.looks.Add(1)
	return o.Depends()
}

func (o *countLooks) Depends() bool {
	return o.looks.Load() < o.most || o.waiters.Load() < o.byWaiters
}

// TestWaitersLook drives until a spinning driver has made a look of the watcher, so that no thread wakes for that look.
func TestWaitersLook(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{Progress: progress.NewFixed(time.Second)})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	o := countLooks{byWaiters: 1}
	o.add(t, client)
	for began := time.Now(); o.Depends(); {
		if time.Since(began) > patience {
			t.Fatal("all looks of the watcher were made by its own goroutine")
		}
		client.Drive(to, new(na.Event))
	}
}

// TestDriverLeavesMessages checks that a message that waits for credits counts as an operation for which the goroutine of the connection has to
// poll: a driver ends its claim when it leaves, and a handler does not get the polling.
func TestDriverLeavesMessages(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{})
	to := r.addr(t, client)
	first, second := newCall(), newCall()
	client.SendRequest(&first.op, to, 1, request(client, nil))
	peer := r.accept(t)
	peer.credit(t, 2)
	first.want(t, 0)
	client.SendRequest(&second.op, to, 2, request(client, nil)) // there is no credit for it
	c := client.connections()[0]
	c.parked.Store(true) // as does the goroutine that waits for the second request
	if !c.waitedFor() {
		t.Error("no goroutine polls for the message")
	}
	c.polling.Lock()
	c.handed = true
	if c.yieldPolling(); c.claim.Taken() {
		t.Error("a handler gets the polling")
	}
	c.polling.Unlock()
	peer.credit(t, 2)
	second.want(t, 0)
	if c.waitedFor() {
		t.Error("a message counts that was sent")
	}
}

// TestDriveOfSetEvent drives for an event that is set. Such a driver does not poll, so it must not count as one: the claim of an earlier driver
// would otherwise last for as long as a goroutine drives so, and nothing would poll.
func TestDriveOfSetEvent(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	eventually(t, "the watcher has no connection", client.watcher.Idle) // then the test may call Quiet
	c := client.connections()[0]
	c.claim.Quiet(true, false)
	var set na.Event
	set.Set()
	client.Drive(to, &set)
	if !c.claim.Quiet(true, false) {
		t.Error("a call of Drive that does not poll counts as a driver")
	}
}

// TestClaimWhileOperationsWait looks at a claimed connection without drivers. The claim ends at once when an operation waits, because only the goroutine of
// the connection polls for that operation, and lasts for further looks otherwise.
func TestClaimWhileOperationsWait(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	ask(t, client, lookup(t, client, server), 1, nil)
	eventually(t, "the watcher has no connection", client.watcher.Idle) // then the test may call Look
	c := client.connections()[0]
	c.claim.Drive()
	c.claim.Take()
	c.Look()
	c.Look()
	if !c.claim.Taken() {
		t.Error("the claim has ended at the second look, although nothing waits")
	}
	c.moving.Add(1)
	c.Look()
	if c.claim.Taken() {
		t.Error("the claim has not ended, although a transfer waits")
	}
	c.moving.Add(-1)
}

// TestUndriven announces a goroutine that waits without driving. The claim ends at once if no driver waits, and otherwise when that driver leaves.
func TestUndriven(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	eventually(t, "the watcher has no connection", client.watcher.Idle)
	c := client.connections()[0]
	c.claim.Take()
	client.Undriven(to)
	if c.claim.Taken() {
		t.Error("the claim has not ended, although a goroutine waits without driving")
	}
	c.claim.Take()
	c.moving.Add(1) // the operation for which that goroutine waits
	c.wanted.Add(1)
	client.Undriven(to)
	if !c.claim.Taken() || !c.waitedFor() {
		t.Error("a driver has lost its claim, or would keep it when it leaves")
	}
	c.wanted.Add(-1)
	c.moving.Add(-1)
	c.handBack()
	client.Undriven(server.Addr()) // an address without a connection
}

// TestTaskThatDrives runs a task that drives the connection of its own request until the response to the next request has arrived.
func TestTaskThatDrives(t *testing.T) {
	var server *Endpoint
	var arrived na.Event
	server = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from, tag, msg := m.From, m.Tag, bytes.Clone(m.Data)
		return taskFunc(func() {
			for tag == 2 && !arrived.IsSet() {
				server.Drive(from, &arrived)
			}
			server.SendExpected(&newCall().op, from, tag, msg)
		})
	})})
	client := openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	c := client.connections()[0]
	c.cork() // so that both requests leave at once
	var calls [2]*call
	for i := range calls {
		calls[i] = newCall()
		client.RecvExpected(&calls[i].op, to, uint32(2+i), make([]byte, 100))
		client.SendRequest(&newCall().op, to, uint32(2+i), request(client, nil))
	}
	c.uncork()
	if err := calls[1].park(t); err != nil {
		t.Error(err)
	}
	arrived.Set()
	if err := calls[0].park(t); err != nil {
		t.Error(err)
	}
}

// TestWithin has peers send the number of this process. Only a peer at an address of this host counts as an endpoint of this process.
func TestWithin(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	ask(t, client, lookup(t, client, server), 1, nil)
	c := client.connections()[0]
	c.peer.mu.Lock()
	if !c.twoEnds {
		t.Error("the ends of a connection between two endpoints of this process are not taken for that")
	}
	c.peer.mu.Unlock()
	if client.peer(netip.MustParseAddrPort("192.0.2.1:7000")).within(client.process) {
		t.Error("a remote peer with the number of this process is taken for a part of it")
	}
	if client.peer(server.self).within(client.process + 1) {
		t.Error("another process of this host is taken for this one")
	}
}

// TestPairOfConnectionThatEndsAtOnce ends a connection before upLocked makes it the connection of its peer, as Close may. Afterwards the connection
// must not count as one with both ends in this process.
func TestPairOfConnectionThatEndsAtOnce(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	p := client.peer(server.self)
	if err := p.account.Take(hostquota.Connections, 1); err != nil {
		t.Fatal(err)
	}
	c, process, err := p.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock() // as connected does
	if !client.adopt(c) {
		t.Fatal("the endpoint is closed")
	}
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		c.fail(na.Closed, nil)
	}()
	eventually(t, "the end of the goroutine of the connection", func() bool { return len(client.connections()) == 0 })
	p.upLocked(c, process)
	if !c.twoEnds {
		t.Error("both ends are in this process")
	}
	p.mu.Unlock()
	<-failed
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.twoEnds {
		t.Error("a connection that has ended stays counted")
	}
}

// TestGather starts more requests than are gathered, and waits for none of them meanwhile. All requests are sent, and all responses arrive.
func TestGather(t *testing.T) {
	const n = 3 * gatherMost
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	var calls []*call
	for tag := uint32(2); tag < 2+n; tag++ {
		answer := newCall()
		client.RecvExpected(&answer.op, to, tag, make([]byte, 100))
		client.SendRequest(&newCall().op, to, tag, request(client, nil))
		calls = append(calls, answer)
	}
	for _, answer := range calls {
		if err := answer.park(t); err != nil {
			t.Fatal(err)
		}
	}
}
