package sm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// jointEnds waits for the end of the goroutine of joint.
func jointEnds(t *testing.T) {
	t.Helper()
	eventually(t, "the end of the joint receiver", func() bool { return !joint.running.Load() })
}

// waitJointly waits for an operation of g while it seems that another caller drives another conn, and checks that joint then receives from the conn
// of g.
func (g *group) waitJointly(t *testing.T, recv *signal) {
	t.Helper()
	eventually(t, "a caller joins", func() bool {
		eventually(t, "the role", g.conn.enter)
		g.conn.takeClaim() // so that the poller does not keep the role, without which the caller would receive by itself
		g.conn.leave()
		joint.driver.Store(g.conn.serial + 1)
		defer joint.driver.Store(0)
		g.client.Drive(g.to, &recv.ev)
		return g.conn.role.joined.Load()
	})
	if recv.ev.IsSet() {
		t.Fatal("the server has not answered, and the call is over")
	}
}

// TestJointReceives waits while it seems that another caller drives another conn. The joint receiver receives the message, and the server has no
// reason to write to the doorbell.
func TestJointReceives(t *testing.T) {
	g := newGroup(t, time.Hour)
	for _, recv := range g.recvs {
		g.waitJointly(t, recv)
		if g.conn.ext.sleep.Load() != 0 && joint.running.Load() { // it may have ended because the peer shares the processor
			t.Error("the server is asked to ring its doorbell")
		}
		g.server.answer(1)
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, g.client)
	jointEnds(t)
}

// TestJointDissolves sends no message during the spin of the joint receiver. The joint receiver ends and leaves its conns to the pollers, which
// later messages wake.
func TestJointDissolves(t *testing.T) {
	g := newGroup(t, time.Millisecond)
	for _, recv := range g.recvs {
		g.waitJointly(t, recv)
		jointEnds(t)
		eventually(t, "the end of the claim", func() bool { return !g.conn.role.claim.Taken() })
		g.server.answer(1)
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJointAlone sends messages to one conn only. The joint receiver ends, because the caller of that conn receives faster by itself.
func TestJointAlone(t *testing.T) {
	g := newGroup(t, time.Hour)
	g.waitJointly(t, g.recvs[0])
	g.server.answer(groupSize)
	for _, recv := range g.recvs {
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
	}
	for tag := uint32(1000); joint.running.Load(); tag++ {
		recv := g.call(t, tag)
		g.server.answer(1)
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
		if tag > 1000+10*jointAlone {
			t.Fatal("the joint receiver goes on for a single conn")
		}
	}
}

// steady returns a policy by which spins do not end because the peer shares the processor.
func steady(t *testing.T) *progress.Policy {
	t.Helper()
	if err := progress.Latency.Check(runtime.NumCPU()); err != nil {
		t.Skip(err)
	}
	return progress.New(progress.Latency)
}

// end ends the calls of g.
func (g *group) end(t *testing.T) {
	t.Helper()
	g.client.Undriven(g.to)
	g.server.answer(groupSize)
	for _, recv := range g.recvs {
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}

// counter is a handler that counts requests and does not answer them.
type counter struct{ requests atomic.Int64 }

// Request implements [na.Handler].
func (h *counter) Request(*na.Message) na.Task {
	h.requests.Add(1)
	return nil
}

// TestJointEndsDespiteRequests has two peers go on sending requests after the calls of this process have ended. The joint receiver ends, because
// it would otherwise keep the right to spin for as long as the peers send.
func TestJointEndsDespiteRequests(t *testing.T) {
	var groups [2]*group
	var handlers [len(groups)]counter
	for i := range groups {
		groups[i] = newGroupOf(t, Config{Progress: steady(t), Handler: &handlers[i]})
	}
	for _, g := range groups {
		g.end(t)
	}
	tag := uint32(1000)
	eventually(t, "the joint receiver outlives the calls", func() bool { // it may end if this process gets no processor
		for _, g := range groups {
			tag++
			recv := g.call(t, tag)
			g.waitJointly(t, recv)
			g.server.answer(1)
			if err := recv.wait(t); err != nil {
				t.Fatal(err)
			}
		}
		return joint.running.Load()
	})
	for n := int64(1); joint.running.Load(); n++ {
		for _, g := range groups {
			send := newSignal()
			g.server.ep.Load().SendRequest(&send.op, *g.server.client.Load(), uint32(n), []byte("abc"))
			if err := send.wait(t); err != nil {
				t.Fatal(err)
			}
		}
		for i := range handlers {
			eventually(t, "the handler gets the request", func() bool { return handlers[i].requests.Load() == n })
		}
		if n > 10*jointUnasked {
			t.Fatal("requests keep the joint receiver, although no caller waits")
		}
	}
	for i, g := range groups { // the poller gets the requests that come from now on
		eventually(t, "the end of the claim", func() bool { return !g.conn.role.claim.Taken() })
		before := handlers[i].requests.Load()
		send := newSignal()
		g.server.ep.Load().SendRequest(&send.op, *g.server.client.Load(), 1, []byte("abc"))
		if err := send.wait(t); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a further request", func() bool { return handlers[i].requests.Load() > before })
	}
}

// receiver is an operation that calls then when it is complete.
type receiver struct {
	op   na.Op
	then func()
}

// Complete implements [na.Completer].
func (r *receiver) Complete(*na.Op) { r.then() }

// TestJointLeavesTransfers has a message begin a transfer: a worker moves the memory of the peer, because the joint receiver would keep all other
// peers waiting.
func TestJointLeavesTransfers(t *testing.T) {
	needAttach(t)
	g := newGroupOf(t, Config{Progress: steady(t)})
	g.end(t)
	ts := &g.client.transfers
	ts.mu.Lock()
	ts.moves.limit = 0 // so that a transfer for the workers is not begun
	ts.mu.Unlock()
	remote := expose(t, g.server.ep.Load(), g.client, []byte("12345678"), na.ReadOnly)
	tag := uint32(1000)
	eventually(t, "the joint receiver gets a message", func() (jointly bool) {
		get, begun := newTestOp(), make(chan struct{})
		recv := &receiver{then: func() {
			jointly = joint.receiving.Load() == g.conn
			g.client.Get(&get.Op, g.to, []na.Fragment{{Remote: remote, Local: make([]byte, 8)}})
			close(begun)
		}}
		recv.op.Done = recv
		tag++
		g.client.RecvExpected(&recv.op, g.to, tag, make([]byte, 8))
		later := g.call(t, tag+1<<16) // which its caller waits for
		send := newSignal()
		g.client.SendRequest(&send.op, g.to, tag, []byte("abc"))
		if err := send.wait(t); err != nil {
			t.Fatal(err)
		}
		g.waitJointly(t, later)
		g.server.answer(2)
		await(t, "the begin of the transfer", begun)
		g.client.Cancel(&get.Op)
		if _, err := get.wait(t); jointly && na.KindOf(err) != na.Canceled {
			t.Errorf("the transfer ended with %v before a worker began it", err)
		}
		if err := later.wait(t); err != nil {
			t.Error(err)
		}
		return jointly
	})
}

// TestJointClients has clients of one process call at the same time, while others close their endpoints between calls.
func TestJointClients(t *testing.T) {
	server, _ := serve(t, Config{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			client := open(t, Config{Progress: progress.NewFixed(200 * time.Microsecond)})
			to := lookup(t, client, server.own.String())
			for tag := range uint32(300) {
				send, recv := newSignal(), newSignal()
				client.RecvExpected(&recv.op, to, tag, make([]byte, 8))
				client.SendRequest(&send.op, to, tag, []byte("abc"))
				client.Drive(to, &recv.ev)
				if err := recv.wait(t); err != nil {
					t.Error(err)
				}
				if err := send.wait(t); err != nil {
					t.Error(err)
				}
				if i%2 == 0 && tag%100 == 99 {
					shut(t, client)
					client = open(t, Config{Progress: progress.NewFixed(200 * time.Microsecond)})
					to = lookup(t, client, server.own.String())
				}
			}
		})
	}
	wg.Wait()
	jointEnds(t)
}
