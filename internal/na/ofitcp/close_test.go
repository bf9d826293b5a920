package ofitcp

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// TestKilledPeer kills a process in the middle of transfers and calls: all of them end, and the memory is ours again.
func TestKilledPeer(t *testing.T) {
	rounds := 4
	if invariants.Race {
		rounds = 1 // the program is slow to start
	}
	for round := range rounds {
		addr, handle, kill := startKillable(t)
		e := openEndpoint(t, Config{})
		to, err := e.Lookup(addr)
		if err != nil {
			t.Fatal(err)
		}
		r, err := e.ParseHandle(handle)
		if err != nil {
			t.Fatal(err)
		}
		newClient(e, to, 0).must(t, []byte("alive"))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		local := make([][]byte, 4)
		for i := range local {
			local[i] = make([]byte, 16<<20)
			wg.Go(func() { transferUntil(t, e, to, r, local[i], i%2 == 0, stop) })
		}
		wg.Go(func() {
			c := newClient(e, to, 1<<20)
			for err := error(nil); err == nil; {
				_, err = c.call(t, []byte("call"))
			}
		})
		under := time.NewTimer(time.Duration(5+10*round) * time.Millisecond)
		<-under.C
		kill()
		wg.Wait()
		close(stop)
		for i := range local {
			fill(local[i], 0xee)
		}
		closeEndpoint(t, e)
		for i := range local {
			if !bytes.Equal(local[i], bytes.Repeat([]byte{0xee}, len(local[i]))) {
				t.Fatal("memory was written after its operation had completed")
			}
		}
	}
}

// transferUntil transfers until that fails, which it must as unreachable.
func transferUntil(t *testing.T, e *Endpoint, to na.Addr, r na.RemoteMemory, local []byte, put bool, stop chan struct{}) {
	op := newCall()
	for {
		select {
		case <-stop:
			return
		default:
		}
		frags := []na.Fragment{{Remote: r, Local: local}}
		if put {
			e.Put(&op.op, to, frags)
		} else {
			e.Get(&op.op, to, frags)
		}
		if err := op.wait(t, e, to); err != nil {
			if na.KindOf(err) != na.Unreachable {
				t.Errorf("transfer with a killed peer: %v", err)
			}
			return
		}
	}
}

// TestCloseLate closes an endpoint that has nothing to do when there is no time left to wait for tasks: none is said to run.
func TestCloseLate(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := openEndpoint(t, Config{}).Close(over); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCloseEndsOperations: Close completes what is under way, once each, and what is started afterwards fails.
func TestCloseEndsOperations(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	silent := newRaw(t) // connects never
	up, down := r.lookup(e), silent.lookup(e)
	r.connect(e)
	start := func() (ops []*call) {
		for _, to := range []na.Addr{up, down} {
			for i := range 4 {
				op := newCall()
				frags := []na.Fragment{{Remote: &remote{size: 64 << 20, access: na.ReadWrite}, Local: make([]byte, 64<<20)}}
				switch i {
				case 0:
					e.RecvExpected(&op.op, to, 9, nil)
				case 1:
					e.Get(&op.op, to, frags)
				case 2:
					e.Put(&op.op, to, frags)
				case 3:
					e.SendExpected(&op.op, to, 9, make([]byte, e.Limits().ResponseRoom))
				}
				ops = append(ops, op)
			}
		}
		return ops
	}
	ops := start()
	closeEndpoint(t, e)
	for i, op := range ops {
		if err := op.park(t); err != nil || i != 3 { // the last message may have gone before
			wantKind(t, err, na.Closed)
		}
	}
	for _, op := range start() {
		wantKind(t, op.park(t), na.Closed)
	}
	closeEndpoint(t, e) // again
	if _, err := e.Register(make([]byte, 1), na.ReadOnly); na.KindOf(err) != na.Closed {
		t.Errorf("Register after Close: %v", err)
	}
}

// TestLastWords: what an operation has sent reaches the peer although the endpoint is closed at once, with input unread.
func TestLastWords(t *testing.T) {
	got := make(chan int, 1)
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		got <- len(m.Data)
		return nil
	})})
	for range 50 {
		cl := openEndpoint(t, Config{})
		op := newCall()
		cl.SendRequest(&op.op, addrOf(t, cl, server), 1, make([]byte, cl.Limits().RequestRoom+1000))
		if err := op.park(t); err != nil {
			t.Fatal(err)
		}
		closeEndpoint(t, cl)
		if n := <-got; n != 1000 {
			t.Fatalf("%d bytes arrived", n)
		}
	}
}

// TestShutdown: new connections and requests are refused, what is under way goes on.
func TestShutdown(t *testing.T) {
	server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, cl, server)
	c := newClient(cl, to, 0)
	c.must(t, []byte("x"))
	_, from := expose(t, server, cl, []byte("memory"), na.ReadOnly)
	server.Shutdown()
	server.Shutdown()
	c.e.RecvExpected(&c.recv.op, to, 77, c.buf)
	op := newCall()
	cl.SendRequest(&op.op, to, 77, make([]byte, cl.Limits().RequestRoom))
	if got := newClientGet(t, cl, to, from, 6); string(got) != "memory" {
		t.Errorf("got %q", got)
	}
	if c.recv.ev.IsSet() {
		t.Error("a request was answered after Shutdown")
	}
	cl.Cancel(&c.recv.op)
	wantKind(t, c.recv.park(t), na.Canceled)
	other := openEndpoint(t, Config{})
	if _, err := newClient(other, addrOf(t, other, server), 0).call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("connection after Shutdown: %v", err)
	}
}

// TestCloseWithFrozenPeer: a peer that does not close its side holds Close up for a moment only.
func TestCloseWithFrozenPeer(t *testing.T) {
	e, r := openEcho(t, Config{}), newRaw(t)
	c, _ := r.dial(e, 1)
	r.ping(c, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	if err := e.Close(ctx); err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > patience/2 {
		t.Errorf("Close took %v", d)
	}
}

// TestCallsDoNotAllocate: a call in one process, both ends counted.
func TestCallsDoNotAllocate(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector has pools lose what they hold")
	}
	server, cl := openEcho(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, cl, server)
	c := newClient(cl, to, 0)
	data := bytes.Repeat([]byte{7}, 64)
	wait := func(k *call) {
		if ch := k.ev.Park(); ch != nil {
			<-ch
		}
		k.ev.Reset()
	}
	one := func() {
		c.tag = 5
		cl.RecvExpected(&c.recv.op, to, c.tag, c.buf)
		c.msg = append(c.msg[:cl.Limits().RequestRoom], data...)
		cl.SendRequest(&c.send.op, to, c.tag, c.msg)
		cl.Drive(to, &c.recv.ev)
		wait(c.recv)
		wait(c.send)
	}
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(500, one); n > 0.5 {
		t.Errorf("%.1f allocations per call, want 0", n)
	}
}
