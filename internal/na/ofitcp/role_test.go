package ofitcp

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// TestStuckTask: while a task blocks, the connection's other requests are handled and its reads answered.
// parity: G73
func TestStuckTask(t *testing.T) {
	release := make(chan struct{})
	h := new(echo)
	var stuck atomic.Int32
	started := make(chan struct{})
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		if bytes.HasPrefix(m.Data, []byte("stuck")) {
			return taskFunc(func() {
				stuck.Add(1)
				<-release
			})
		}
		return h.Request(m)
	})})
	h.e = server
	close(started)
	cl := openEndpoint(t, Config{})
	to := addrOf(t, cl, server)
	_, from := expose(t, server, cl, []byte("memory"), na.ReadOnly)
	for i := range 5 {
		op := newCall()
		cl.SendRequest(&op.op, to, uint32(1000+i), append(make([]byte, cl.Limits().RequestRoom), "stuck"...))
		if err := op.park(t); err != nil {
			t.Fatal(err)
		}
		c := newClient(cl, to, uint32(i*10))
		c.must(t, []byte("hello"))
		if got := newClientGet(t, cl, to, from, 6); string(got) != "memory" {
			t.Errorf("got %q", got)
		}
	}
	if n := stuck.Load(); n != 5 {
		t.Errorf("%d tasks are stuck, want 5", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := server.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close with stuck tasks: %v", err)
	}
	close(release)
}

// sendBatch sends the requests 0 to 99 at once to an endpoint that echoes them. Those for which other reports true are given to task
// instead.
func sendBatch(t *testing.T, other func(tag uint32) bool, task func()) (*raw, *rawConn) {
	t.Helper()
	h := new(echo)
	started := make(chan struct{})
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		if other(m.Tag) {
			return taskFunc(task)
		}
		return h.Request(m)
	})})
	h.e = server
	close(started)
	r := newRaw(t)
	c, _ := r.dial(server, 1)
	var b []byte
	for tag := range uint32(100) {
		b = append(b, r.rawRequest(tag, []byte("hello"))...)
	}
	c.write(b)
	return r, c
}

// TestBatchOfTasks: requests that come together, one of which blocks: the others are answered all the same.
func TestBatchOfTasks(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	_, c := sendBatch(t, func(tag uint32) bool { return tag == 50 }, func() { <-release })
	seen := map[uint64]bool{}
	for range 99 {
		m, _ := c.message()
		seen[m.tag] = true
	}
	if len(seen) != 99 || seen[50] {
		t.Errorf("%d answers, that of the blocked one: %t", len(seen), seen[50])
	}
}

// TestGoexit: tasks that end their goroutine end nothing else, alone or in a batch.
func TestGoexit(t *testing.T) {
	r, c := sendBatch(t, func(tag uint32) bool { return tag%10 == 5 }, runtime.Goexit)
	for range 90 {
		c.message()
	}
	for tag := range uint32(20) {
		c.write(r.rawRequest(10*tag+5, nil))
		r.ping(c, 10*tag)
	}
}

// TestGoexitLast sends requests together, the last of which ends its goroutine. The collected answers to the others leave nevertheless.
func TestGoexitLast(t *testing.T) {
	h := new(echo)
	started := make(chan struct{})
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		if m.Tag%10 == 9 {
			return taskFunc(runtime.Goexit)
		}
		return h.Request(m)
	})})
	h.e = server
	close(started)
	r := newRaw(t)
	c, _ := r.dial(server, 1)
	for range 10 {
		var b []byte
		for tag := range uint32(10) {
			b = append(b, r.rawRequest(tag, []byte("hello"))...)
		}
		c.write(b)
		for range 9 {
			c.message()
		}
	}
}

// TestNestedCall: a task that calls on, back to where the request came from, over the same connection.
func TestNestedCall(t *testing.T) {
	var a, b *Endpoint
	var nested sync.Pool
	ready := make(chan struct{})
	b = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-ready
		from, tag := m.From, m.Tag
		data := bytes.Clone(m.Data)
		return taskFunc(func() {
			c, _ := nested.Get().(*client)
			if c == nil {
				c = newClient(b, from, 1<<20)
			}
			got, err := c.call(t, data)
			if err != nil {
				t.Errorf("nested call: %v", err)
			}
			op := newCall()
			b.SendExpected(&op.op, from, tag, append(make([]byte, b.Limits().ResponseRoom), got...))
			if err := op.wait(t, b, from); err != nil {
				t.Errorf("answer: %v", err)
			}
			nested.Put(c)
		})
	})})
	a = openEcho(t, Config{})
	close(ready)
	c := newClient(a, addrOf(t, a, b), 0)
	for i := range 300 {
		c.must(t, bytes.Repeat([]byte{byte(i)}, i))
	}
}

// TestHandOver has waiters come and go, so that connections change between them and the background.
// parity: G73
func TestHandOver(t *testing.T) {
	server := openEcho(t, Config{})
	cl := openEndpoint(t, Config{Spin: 20 * time.Microsecond})
	to := addrOf(t, cl, server)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			c := newClient(cl, to, uint32(g)<<20)
			for i := range 300 {
				if (i/10+g)%3 == 0 { // without driving
					c.tag++
					cl.RecvExpected(&c.recv.op, to, c.tag, c.buf)
					cl.SendRequest(&c.send.op, to, c.tag, c.msg)
					if err := errors.Join(c.recv.park(t), c.send.park(t)); err != nil {
						t.Error(err)
					}
					continue
				}
				c.must(t, []byte{byte(i)})
				if i%50 == 0 {
					pause := time.NewTimer(3 * time.Millisecond) // long enough for the watcher
					<-pause.C
				}
			}
		})
	}
	wg.Wait()
}

// TestParkedClient: a client whose connection nobody drives any more still takes what comes.
// parity: H14 G72 G75 D30
func TestParkedClient(t *testing.T) {
	got := make(chan string, 1)
	cl := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		got <- string(m.Data)
		return nil
	})})
	var from na.Addr
	var mu sync.Mutex
	h := new(echo)
	ready := make(chan struct{})
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-ready
		mu.Lock()
		from = m.From
		mu.Unlock()
		return h.Request(m)
	})})
	h.e = server
	close(ready)
	c := newClient(cl, addrOf(t, cl, server), 0)
	for range 20 {
		c.must(t, []byte("claim the connection"))
		mu.Lock()
		to := from
		mu.Unlock()
		op := newCall()
		server.SendRequest(&op.op, to, 1, append(make([]byte, server.Limits().RequestRoom), "unasked"...))
		if s := <-got; s != "unasked" {
			t.Fatalf("got %q", s)
		}
		if err := op.park(t); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyClients: 1,024 clients on one endpoint, each with a call, and then nobody does anything.
// parity: H128
func TestManyClients(t *testing.T) {
	clients := uint64(1024)
	if invariants.Race {
		clients = 200 // more are no other races
	}
	if n := openFiles(t); n < 5*clients+100 {
		t.Skipf("the limit of open files is %d; %d clients in one process need more than %d", n, clients, 5*clients+100)
	}
	server := openEcho(t, Config{})
	peers := make([]*client, clients)
	var wg sync.WaitGroup
	for i := range peers {
		e := openEndpoint(t, Config{})
		peers[i] = newClient(e, addrOf(t, e, server), 0)
	}
	for _, c := range peers {
		wg.Go(func() { c.must(t, []byte("hello")) })
	}
	wg.Wait()
	if s := server.Stats(); s.Open != int(clients) || s.RequestsReceived != clients {
		t.Errorf("%+v", s)
	}
	if testing.Short() {
		return
	}
	goroutines := runtime.NumGoroutine()
	if limit := 4*int(clients) + 50; goroutines > limit { // listener and connection of each client, and the server's
		t.Errorf("%d goroutines, want at most %d", goroutines, limit)
	}
	// The runtime's own wake-ups take up to 1.3 ms beside other programs. One wake-up of each client takes more than this limit.
	const limit = 3 * time.Millisecond
	least := time.Hour // a window in which nothing else goes on in this process, such as a collection
	for range 10 {
		before := cpuTime(t)
		window := time.NewTimer(300 * time.Millisecond)
		<-window.C
		if least = min(least, cpuTime(t)-before); least < time.Millisecond/4 {
			break
		}
	}
	t.Logf("idle: %v in 300 ms", least)
	if least > limit {
		t.Errorf("idle, but %v of processor time were used in 300 ms, limit %v", least, limit)
	}
	for _, c := range peers {
		wg.Go(func() { c.must(t, []byte("again")) })
	}
	wg.Wait()
}

// TestNothingLeaks opens and closes endpoints with connections; goleak sees to the goroutines.
// parity: H02 D40
func TestNothingLeaks(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("descriptors cannot be counted here: %v", err)
		}
		return len(entries)
	}
	one := func() {
		server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
		c := newClient(cl, addrOf(t, cl, server), 0)
		c.must(t, []byte("x"))
		closeEndpoint(t, cl)
		closeEndpoint(t, server)
	}
	one()
	before, goroutines := count(), runtime.NumGoroutine()
	for range 50 {
		one()
	}
	if after := count(); after > before+3 {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if n := runtime.NumGoroutine(); n > goroutines+3 {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
}

// TestClaimOfDeadConnection: the claim of a connection that has ended ends too, although the read role of such a connection stays held.
func TestClaimOfDeadConnection(t *testing.T) {
	a, b := openEcho(t, Config{}), openEcho(t, Config{})
	newClient(a, addrOf(t, a, b), 0).must(t, []byte("x"))
	c := a.peer(b.self).conn.Load()
	closeEndpoint(t, b)
	until(t, "the connection is dead and has its role held", func() bool { return c.dead.Load() && c.role.held.Load() })
	until(t, "the watcher has no connection", a.watch.Idle) // then the test may call Look
	c.role.claim.Take()
	until(t, "the claim has ended", func() bool {
		c.Look()
		return !c.role.claim.Taken()
	})
}

// TestForgotten: peers that nobody holds are not kept.
func TestForgotten(t *testing.T) {
	server := openEcho(t, Config{})
	for range 20 {
		cl := openEndpoint(t, Config{})
		newClient(cl, addrOf(t, cl, server), 0).must(t, []byte("x"))
		closeEndpoint(t, cl)
	}
	for range 200 {
		runtime.GC()
		if server.peers.Len() < 10 {
			return
		}
		runtime.Gosched()
	}
	t.Error("peers that are gone are kept")
}

// TestEndpointCollected: nothing of a closed endpoint stays in memory.
func TestEndpointCollected(t *testing.T) {
	open := func() (server, cl weak.Pointer[Endpoint]) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var list [2]*Endpoint
		for i := range list {
			e, err := Open(ctx, Config{Address: "ofi+tcp://127.0.0.1:0", Listen: true, Handler: handlerFunc(func(*na.Message) na.Task { return nil })})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = e.Close(ctx) }()
			list[i] = e
		}
		op := newCall()
		list[0].SendRequest(&op.op, addrOf(t, list[0], list[1]), 1, make([]byte, list[0].Limits().RequestRoom))
		if err := op.wait(t, list[0], list[0].Addr()); err != nil {
			t.Fatal(err)
		}
		return weak.Make(list[0]), weak.Make(list[1])
	}
	a, b := open()
	for range 100 {
		runtime.GC()
		if a.Value() == nil && b.Value() == nil {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("kept: %t and %t", a.Value() != nil, b.Value() != nil)
}

// until waits for a state that this process reaches by itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// driveWhile has a goroutine drive in vain, with a policy that lets it spin without end, while send sends for the peer, and requires that
// drive returns.
func driveWhile(t *testing.T, send func(c *rawConn, stop chan struct{})) {
	t.Helper()
	e, r := openEndpoint(t, Config{Spin: time.Hour}), newRaw(t)
	first := r.send(e, 1, "")
	c := r.accept(1)
	if err := first.park(t); err != nil {
		t.Fatal(err)
	}
	to := r.lookup(e)
	own := to.(*peer).conn.Load()
	stop, seen := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		func() {
			defer close(seen)
			until(t, "driver", func() bool { return own.role.held.Load() && own.role.claim.Taken() })
		}()
		send(c, stop)
	})
	back := make(chan struct{})
	go func() {
		defer close(back)
		for last := false; ; { // more than once, because the other goroutine may miss a driver on a busy machine
			own.drive(new(na.Event), false)
			if last {
				return
			}
			select {
			case <-seen:
				last = true
			default:
			}
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-back:
	case <-timer.C:
		t.Error("Drive does not return")
	}
	close(stop)
	_ = c.Close()
	wg.Wait()
	<-back
}

// TestDriveReturns checks that drive returns in bounded time, with each kind of input, although the policy lets it spin without end.
func TestDriveReturns(t *testing.T) {
	message := rawExpected(9, make([]byte, 500)) // for which no operation waits
	t.Run("always something to read", func(t *testing.T) {
		driveWhile(t, func(c *rawConn, stop chan struct{}) {
			b := bytes.Repeat(message, 20)
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = c.Write(b)
				}
			}
		})
	})
	t.Run("now and then", func(t *testing.T) {
		driveWhile(t, func(c *rawConn, stop chan struct{}) {
			tick := time.NewTicker(driveTime / 4)
			defer tick.Stop()
			for range 100 {
				select {
				case <-stop:
					return
				case <-tick.C:
					_, _ = c.Write(message)
				}
			}
			<-stop
		})
	})
	t.Run("nothing", func(t *testing.T) {
		driveWhile(t, func(_ *rawConn, stop chan struct{}) { <-stop })
	})
}

// TestDriverMayNotSpin: a driver that comes when others spin already does not leave a claimed connection unread.
func TestDriverMayNotSpin(t *testing.T) {
	server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, cl, server)
	c := newClient(cl, to, 0)
	c.must(t, []byte("x"))
	role := &to.(*peer).conn.Load().role
	var spins progress.Source
	spins.Init(progress.NewFixed(time.Hour), progress.Socket)
	other := spins.Spin(true)
	until(t, "the right to spin", other.Begin)
	defer other.End()
	until(t, "parked reader", func() bool { return role.bg.Load() == bgParked && !role.claim.Taken() })
	role.claim.Take() // as a driver does; without Watcher.Add, so that no look of the watcher ends the claim
	until(t, "end of the claim", func() bool {
		cl.Drive(to, new(na.Event))
		return !role.claim.Taken()
	})
	c.must(t, []byte("x"))
}

// TestTasksOfPausedConnection: requests that were read are handled also while nothing more may be read.
func TestTasksOfPausedConnection(t *testing.T) {
	h := new(echo)
	started := make(chan struct{})
	var conns atomic.Pointer[conn]
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		<-started
		c := m.From.(*origin).conn.Load()
		c.paused.Store(true)
		conns.Store(c)
		return h.Request(m)
	})})
	h.e = server
	close(started)
	r := newRaw(t)
	c, _ := r.dial(server, 1)
	for i := range uint32(10) {
		r.ping(c, i)
		conns.Load().paused.Store(false)
		conns.Load().wake()
	}
}
