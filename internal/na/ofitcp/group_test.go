package ofitcp

import (
	"sync"
	"testing"

	"cinnabar/internal/na"
)

// group is a client with several requests at one server, which answers each at a signal of the test.
type group struct {
	client *Endpoint
	to     na.Addr
	conn   *conn
	recvs  []*call
	sends  []*call
	answer map[uint32]chan struct{}
}

const groupSize = 4

func newGroup(t *testing.T) *group {
	t.Helper()
	g := &group{answer: map[uint32]chan struct{}{}}
	for tag := range uint32(groupSize + 1) {
		g.answer[tag] = make(chan struct{})
	}
	server := startServer(t, func(e *Endpoint, from na.Addr, tag uint32, data []byte) {
		<-g.answer[tag]
		answer(t, e, from, tag, data)
	})
	g.client = openEndpoint(t, Config{Spin: patience})
	g.to = addrOf(t, g.client, server)
	g.send(0)
	close(g.answer[0])
	if err := g.recvs[0].wait(t, g.client, g.to); err != nil {
		t.Fatal(err)
	}
	g.recvs = g.recvs[1:]
	g.conn = g.to.(*peer).conn.Load()
	for tag := range uint32(groupSize) {
		g.send(tag + 1)
	}
	return g
}

func (g *group) send(tag uint32) {
	send, recv := newCall(), newCall()
	g.client.RecvExpected(&recv.op, g.to, tag, make([]byte, 64))
	g.client.SendRequest(&send.op, g.to, tag, make([]byte, g.client.Limits().RequestRoom, 256))
	g.recvs, g.sends = append(g.recvs, recv), append(g.sends, send)
}

// end lets the server answer everything, and waits for the answers.
func (g *group) end(t *testing.T, answered int) {
	t.Helper()
	for tag := uint32(answered + 1); tag <= groupSize; tag++ {
		close(g.answer[tag])
	}
	for _, op := range append(g.recvs, g.sends...) {
		if err := op.wait(t, g.client, g.to); err != nil {
			t.Error(err)
		}
	}
}

// TestGroupKeepsClaim: a goroutine that waits for several responses one after the other reads them all, and the background goroutine rests
// between them.
func TestGroupKeepsClaim(t *testing.T) {
	// The most responses in a row behind which the driver kept the claim.
	longest := 0
	until(t, "a group that keeps the claim", func() bool { // more than once, because the watcher ends the claim on a busy machine
		t.Run("Group", func(t *testing.T) { // whose end closes the endpoints, because they would take the processors from the next group
			g, run := newGroup(t), 0
			for i, recv := range g.recvs[:groupSize-1] {
				close(g.answer[uint32(i+1)])
				g.client.DriveGroup(g.to, &recv.ev)
				if run++; !recv.ev.IsSet() || !g.conn.role.claim.Taken() {
					run = 0
				}
				longest = max(longest, run)
			}
			g.end(t, groupSize-1)
		})
		return longest >= 2
	})
}

// TestUndriven: while a goroutine waits without driving, a goroutine that drives for a group leaves the connection to the background goroutine. That
// ends when no operation but that of the next driver waits.
func TestUndriven(t *testing.T) {
	for name, announce := range map[string]func(g *group){
		"announced": func(g *group) { g.client.Undriven(g.to) },
		"a driver that finds the role taken": func(g *group) {
			until(t, "the role", func() bool { return g.conn.role.held.CompareAndSwap(false, true) })
			g.client.Drive(g.to, &g.recvs[1].ev)
			g.conn.release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t)
			announce(g)
			if !g.conn.role.undriven.Load() {
				t.Fatal("the connection does not know that a goroutine waits without driving")
			}
			var wg sync.WaitGroup
			wg.Go(func() { close(g.answer[1]) })
			for !g.recvs[0].ev.IsSet() {
				g.client.DriveGroup(g.to, &g.recvs[0].ev)
			}
			if g.conn.role.claim.Taken() {
				t.Error("the driver keeps the claim, although another goroutine waits without driving")
			}
			wg.Wait()
			g.end(t, 1)
			g.answer[0] = make(chan struct{})
			g.recvs, g.sends = nil, nil
			g.send(0)
			close(g.answer[0])
			g.client.DriveGroup(g.to, &g.recvs[0].ev)
			if g.recvs[0].ev.IsSet() && g.conn.role.undriven.Load() {
				t.Error("the goroutine that waited without driving has its message, and the connection still expects it")
			}
			g.end(t, groupSize)
		})
	}
}

var _ na.GroupDriver = (*Endpoint)(nil)
