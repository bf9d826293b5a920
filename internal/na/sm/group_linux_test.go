package sm

import (
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// groupSize is the number of calls that the tests of groups have under way.
const groupSize = 16

// gate is a handler that answers like echo, but keeps each answer until a test calls answer.
type gate struct {
	echo
	held   chan na.Task
	client atomic.Pointer[na.Addr] // the sender of the latest request
}

// Request implements [na.Handler].
func (h *gate) Request(m *na.Message) na.Task {
	h.client.Store(new(m.From))
	h.held <- h.echo.Request(m)
	return nil
}

// answer sends n of the answers that h keeps.
func (h *gate) answer(n int) {
	for range n {
		(<-h.held).Run()
	}
}

// group is a client with groupSize calls under way on one conn, which a driver has claimed. No watcher ends that claim.
type group struct {
	client *Endpoint
	to     *Addr
	conn   *conn
	server *gate
	recvs  []*signal
}

// newGroup makes a group whose client spins for spin.
func newGroup(t *testing.T, spin time.Duration) *group {
	t.Helper()
	return newGroupOf(t, Config{Progress: progress.NewFixed(spin)})
}

// newGroupOf makes a group whose client has the configuration cfg.
func newGroupOf(t *testing.T, cfg Config) *group {
	t.Helper()
	g := &group{server: &gate{held: make(chan na.Task, groupSize+1)}}
	server := open(t, Config{Listen: true, Handler: g.server})
	g.server.ep.Store(server)
	g.client = open(t, cfg)
	g.client.watch.Close()
	g.to, _ = lookup(t, g.client, server.own.String()).(*Addr)
	first := g.call(t, 1)
	g.server.answer(1)
	if err := first.wait(t); err != nil {
		t.Fatal(err)
	}
	g.conn = g.to.conn.Load()
	eventually(t, "the role", g.conn.enter)
	g.conn.takeClaim()
	g.conn.leave()
	for i := range groupSize {
		g.recvs = append(g.recvs, g.call(t, uint32(100+i)))
	}
	return g
}

// call sends a request, and returns the operation that waits for its response.
func (g *group) call(t *testing.T, tag uint32) (recv *signal) {
	t.Helper()
	send, recv := newSignal(), newSignal()
	g.client.RecvExpected(&recv.op, g.to, tag, make([]byte, 8))
	g.client.SendRequest(&send.op, g.to, tag, []byte("abc"))
	if err := send.wait(t); err != nil {
		t.Fatal(err)
	}
	return recv
}

// TestGroupKeepsClaim waits for many responses of one peer, one after the other. The waiting goroutine receives them all and keeps the claim:
// between the responses the poller is not woken, and the server has no reason to write to the doorbell.
func TestGroupKeepsClaim(t *testing.T) {
	g := newGroup(t, time.Hour)
	for i, recv := range g.recvs {
		g.server.answer(1)
		g.client.DriveGroup(g.to, &recv.ev)
		if !recv.ev.IsSet() {
			t.Fatalf("the driver of call %d has returned without its message", i)
		}
		if !g.conn.role.claim.Taken() || g.conn.ext.sleep.Load() != 0 {
			t.Fatalf("call %d has ended the claim of the group", i)
		}
		if err := recv.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGroupTakesAll calls DriveGroup once. The call receives all messages that have come, also those of the other operations.
func TestGroupTakesAll(t *testing.T) {
	g := newGroup(t, time.Hour)
	g.server.answer(groupSize)
	g.client.DriveGroup(g.to, &g.recvs[0].ev)
	for _, recv := range g.recvs {
		if !recv.ev.IsSet() {
			t.Error("a message was left in the ring")
		}
	}
}

// TestUndriven lets some goroutines wait without driving while another one drives for a group. The poller receives the messages of all.
func TestUndriven(t *testing.T) {
	for name, announce := range map[string]func(*group){
		"before the driver": func(g *group) {
			g.client.Undriven(g.to)
			g.server.answer(1)
			g.client.DriveGroup(g.to, &g.recvs[0].ev)
		},
		"after the driver": func(g *group) {
			g.server.answer(1)
			g.client.DriveGroup(g.to, &g.recvs[0].ev)
			g.client.Undriven(g.to)
		},
		"a driver that finds the role taken": func(g *group) {
			eventually(t, "the role", g.conn.enter)
			g.client.Drive(g.to, &g.recvs[1].ev)
			g.conn.leave()
			g.server.answer(1)
			g.client.DriveGroup(g.to, &g.recvs[0].ev)
		},
	} {
		g := newGroup(t, time.Hour)
		announce(g)
		if g.conn.role.claim.Taken() {
			t.Errorf("%s: the conn is still claimed", name)
		}
		g.server.answer(groupSize - 1)
		for _, recv := range g.recvs {
			if err := recv.wait(t); err != nil {
				t.Error(err)
			}
		}
		eventually(t, "the end of the waits that do not drive", func() bool { return !g.conn.role.undriven.Load() })
	}
}
