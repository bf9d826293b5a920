package sm

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// TestCloseWhileConnecting closes clients that connect to a server whose socket is full, at all moments: operations end,
// and nobody touches a region that is unmapped.
func TestCloseWhileConnecting(t *testing.T) {
	s := start(t, "server")
	addr := s.expect("ready ")
	busy, _ := serve(t, Config{})
	s.Suspend()
	for i := range 60 {
		client := open(t, Config{})
		to := lookup(t, client, addr)
		active := newCaller(client, lookup(t, client, busy.own.String())) // keeps the poller looking at all conns
		if _, err := active.call(t, nil); err != nil {
			t.Fatal(err)
		}
		sends := make([]*signal, 4)
		for k := range sends {
			sends[k] = newSignal()
			client.SendRequest(&sends[k].op, to, uint32(k), []byte("q"))
		}
		wait := time.NewTimer(time.Duration(i%12) * 100 * time.Microsecond)
		for waiting := true; waiting; {
			select {
			case <-wait.C:
				waiting = false
			default:
				if _, err := active.call(t, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		shut(t, client)
		for _, s := range sends {
			if err := s.wait(t); err != nil && na.KindOf(err) != na.Closed {
				t.Errorf("got %v", err)
			}
		}
	}
	s.Resume()
}

// TestSendWhileClosing sends to peers that are not connected while the endpoint closes: each operation ends.
func TestSendWhileClosing(t *testing.T) {
	server, _ := serve(t, Config{})
	for range 100 {
		client := open(t, Config{})
		to := lookup(t, client, server.own.String())
		begun, ended := make(chan struct{}), make(chan struct{})
		s := newSignal()
		go func() {
			defer close(ended)
			close(begun)
			client.SendRequest(&s.op, to, 1, nil)
		}()
		await(t, "the beginning of SendRequest", begun)
		shut(t, client)
		await(t, "the return of SendRequest", ended)
		if err := s.wait(t); err != nil && na.KindOf(err) != na.Closed {
			t.Errorf("got %v", err)
		}
	}
}

// TestLastRequest has clients leave right after they have sent a request: it is served, though nothing else comes.
func TestLastRequest(t *testing.T) {
	var ran atomic.Int64
	server := open(t, Config{Listen: true, Progress: progress.New(progress.Economy), Handler: handlerFunc(func(*na.Message) na.Task {
		return taskFunc(func() { ran.Add(1) })
	})})
	for i := range int64(100) {
		client := open(t, Config{})
		send := newSignal()
		client.SendRequest(&send.op, lookup(t, client, server.own.String()), 1, nil)
		if err := send.wait(t); err != nil {
			t.Fatal(err)
		}
		shut(t, client)
		eventually(t, "the request is served", func() bool { return ran.Load() > i })
	}
	settled(t, server)
}

// TestPartingOffersTasks has the poller find, when it is about to park, that a client has left which had sent a request
// before: the poller must not park on the request.
func TestPartingOffersTasks(t *testing.T) {
	p, err := newPoller(&Endpoint{notify: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.set.Close()
	p.ep.conns.Store(new([]*conn))
	p.tasks.Offer([]na.Task{taskFunc(func() {})})
	if !p.park() {
		t.Error("parks with a task to run")
	}
}

// TestOffendedClosed closes a server with clients that have broken the protocol and live: no descriptor is left.
func TestOffendedClosed(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	round := func() {
		server, _ := serve(t, Config{})
		raws := make([]*rawClient, 20)
		for i := range raws {
			raws[i] = newRaw(t, server)
			raws[i].announce()
			raws[i].push(makeDescriptor(1, 0, 0, 9))
		}
		eventually(t, "they are found out", func() bool { return server.stats.violations.Load() == uint64(len(raws)) })
		shut(t, server)
		for _, c := range raws {
			closeAll(c.sock, c.doorbell, c.recvEvent)
			c.sock, c.doorbell, c.recvEvent = -1, -1, -1
		}
	}
	round()
	before := count()
	round()
	if after := count(); after > before+5 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestCallToClient has a server call its client, which does not listen but has a handler to say so.
func TestCallToClient(t *testing.T) {
	from := make(chan na.Addr, 1)
	server := open(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from <- m.From
		return nil
	})})
	h := &echo{}
	client := open(t, Config{Handler: h})
	h.ep.Store(client)
	send := newSignal()
	client.SendRequest(&send.op, lookup(t, client, server.own.String()), 1, nil)
	if err := send.wait(t); err != nil {
		t.Fatal(err)
	}
	c := newCaller(server, await(t, "the request", from))
	for range 10 {
		if got, err := c.call(t, []byte("back")); err != nil || string(got) != "back" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestTruncatedWhileReceiving has a region fault when an expected message is copied: whoever waits for it is told.
func TestTruncatedWhileReceiving(t *testing.T) {
	server, _ := serve(t, Config{Progress: progress.New(progress.Economy)})
	client := open(t, Config{Progress: progress.New(progress.Economy)})
	to, _ := lookup(t, client, server.own.String()).(*Addr)
	if _, err := newCaller(client, to).call(t, nil); err != nil {
		t.Fatal(err)
	}
	c := to.conn.Load()
	eventually(t, "the role", c.enter)
	recv := newSignal()
	client.RecvExpected(&recv.op, to, 77, make([]byte, bufferSize))
	const last = buffers - 1 // lies beyond what the file will have
	c.reg.bufferMap.And(^uint64(1 << last))
	out := producer(c.reg.rx(c.pair))
	out.push(makeDescriptor(77, bufferSize, last, typeExpected))
	if err := os.Truncate(server.cfg.objectPath(server.own.uri), offBuffers+last*bufferSize-8192); err != nil {
		t.Fatal(err)
	}
	c.receive(1)
	c.leave()
	if err := recv.wait(t); na.KindOf(err) != na.Unreachable {
		t.Errorf("got %v", err)
	}
}

// TestIdle has endpoints with connections use no processor when nothing happens.
func TestIdle(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	calls(t, client, server.own.String())
	calls(t, server, server.own.String())
	raw := newRaw(t, server)
	raw.announce()
	raw.request(1, []byte("C's"))
	raw.answer()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const window = 200 * time.Millisecond
	best := window
	tick := time.NewTicker(window)
	defer tick.Stop()
	for range 50 { // what the runtime and other tests do must not count
		before := used()
		<-tick.C
		if best = min(best, used()-before); best < window/50 {
			return
		}
	}
	t.Errorf("%v of %v at best", best, window)
}

// TestDriverYieldsRole has the poller want the receive role of a conn that a driver has: the driver leaves it at once, not at the end
// of its spin.
func TestDriverYieldsRole(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{Progress: progress.NewFixed(time.Hour)})
	to, _ := lookup(t, client, server.own.String()).(*Addr)
	if _, err := newCaller(client, to).call(t, nil); err != nil {
		t.Fatal(err)
	}
	c := to.conn.Load()
	eventually(t, "the role", c.enter)
	taken := make(chan bool)
	go func() { taken <- c.takeRole() }()
	eventually(t, "the wish for the role", c.role.wanted.Load)
	s := c.spins.Spin(true)
	before := client.cfg.Progress.Counters().Spins
	c.driveHeld(new(na.Event), &s)
	after := client.cfg.Progress.Counters().Spins
	s.End()
	c.leave()
	if after != before {
		t.Error("the driver spins although the poller wants the role")
	}
	if !await(t, "the role", taken) {
		t.Error("the poller has not got the role")
	}
	if c.role.wanted.Load() {
		t.Error("the poller has the role and still wants it")
	}
	c.leave()
}

// TestParkWhileHeld has the poller come to park while a driver still has the receive role, after its last look at the
// ring: the message that has come since, whose doorbell has rung in vain, is taken when the driver leaves.
func TestParkWhileHeld(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	to, _ := lookup(t, client, server.own.String()).(*Addr)
	caller := newCaller(client, to)
	if _, err := caller.call(t, nil); err != nil {
		t.Fatal(err)
	}
	c := to.conn.Load()
	for range 20 {
		eventually(t, "the role", c.enter)
		c.takeClaim()
		send, recv := newSignal(), newSignal()
		caller.tag++
		client.RecvExpected(&recv.op, to, caller.tag, make([]byte, 8))
		c.unclaim() // sees nothing
		client.SendRequest(&send.op, to, caller.tag, []byte("x"))
		if err := send.wait(t); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the poller has missed the answer", func() bool {
			return c.ext.sleep.Load() == 0 && c.role.missed.Load() && client.poll.parked.Load()
		})
		c.leave()
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}
