//go:build linux

package interop

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar"
)

// doomedSize is the size in bytes of transfers during which a process is killed.
const doomedSize = 64 << 20

// others is a C process that calls an engine of the test, and that the engine calls, while other processes die.
type others struct {
	*peer
	c *client
}

func startOthers(t *testing.T, s *server) *others {
	t.Helper()
	o := &others{peer: startPeer(t, hgPeer)}
	o.aim(s.Addr())
	o.check("sum a=1 b=2", "ret=0 value=3")
	o.c = aim(t, mercury, s.Engine, o.addr)
	return o
}

// served checks that the calls which the process has started have all been answered, and that the engine can call it.
func (o *others) served(t *testing.T, calls int) {
	t.Helper()
	if got := o.result("sum"); !got.has(fmt.Sprintf("ret=0 ok=%d", calls)) {
		t.Errorf("a C process that goes on says %q", got)
	}
	if out, err := o.c.rpc.sum.Call(limited(t, patience), o.c.to, sumIn{3, 4}); err != nil || out.Ret != 7 {
		t.Errorf("sum at a C process that goes on is %d, %v; want 7", out.Ret, err)
	}
}

// TestServerKilledInTransfer kills C servers that read and write memory of a Go engine and have a call of it. Both calls fail, and the engine goes on
// to serve another C process, to call it, and to serve new ones.
// parity(peer): Y02 D01
func TestServerKilledInTransfer(t *testing.T) {
	hgPeer.executable(t)
	for _, kind := range []string{"pull", "push"} {
		t.Run(kind, func(t *testing.T) {
			s := listen(t, mercury, nil)
			o := startOthers(t, s)
			for attempt := 1; !s.losesServer(t, kind, o); attempt++ {
				if attempt == 5 {
					t.Fatalf("%d transfers of %d bytes were over before their servers were killed", attempt, doomedSize)
				}
			}
			next := startPeer(t, hgPeer)
			next.aim(s.Addr())
			next.check(kind+" total=1048576", "ret=0")
			next.stop()
			o.stop()
		})
	}
}

// losesServer kills a C server in a transfer, and returns false if the transfer was over before.
func (s *server) losesServer(t *testing.T, kind string, o *others) bool {
	t.Helper()
	const calls = 200
	victim := startPeer(t, hgPeer)
	c := aim(t, mercury, s.Engine, victim.addr)
	rpc, mode := c.rpc.pull, cinnabar.ReadOnly
	if kind == "push" {
		rpc, mode = c.rpc.push, cinnabar.WriteOnly
	}
	sh := shape{total: doomedSize, segments: 1}
	b := c.expose(mode, sh, make([]byte, sh.total))
	hold := c.rpc.hold.Start(limited(t, patience), c.to, none{})
	victim.expect("event hold")
	transfer := rpc.Start(limited(t, patience), c.to, sh.in(b))
	victim.expect("event " + kind)
	o.start(fmt.Sprintf("sum a=1 b=2 count=%d inflight=2", calls))
	victim.Kill()
	began := time.Now()
	out, err := transfer.Wait()
	took := time.Since(began)
	over := err == nil && out.Ret == 0
	if !over {
		failed(t, kind+" of a server that was killed", err, victim.addr, kind)
	}
	_, err = hold.Wait()
	failed(t, "a call at a server that was killed", err, victim.addr, "hold")
	tookBoth := time.Since(began)
	t.Logf("%s: the calls failed %v and %v after the end of their server", kind, took, tookBoth)
	if tookBoth > soon {
		t.Errorf("the calls ended %v after their server", tookBoth)
	}
	must(t, b.Close())
	o.served(t, calls)
	return !over
}

// TestServerKilledWhileConnecting kills a C server that a Go engine is about to reach: it is stopped before, so that it answers no connection request.
// parity(peer): Y02 D01
func TestServerKilledWhileConnecting(t *testing.T) {
	hgPeer.executable(t)
	s := listen(t, mercury, nil)
	o := startOthers(t, s)
	victim := startPeer(t, hgPeer)
	c := aim(t, mercury, s.Engine, victim.addr)
	victim.Suspend()
	call := c.rpc.void.Start(limited(t, patience), c.to, none{})
	o.start("sum a=1 b=2 count=100 inflight=1")
	o.served(t, 100)
	victim.Kill()
	began := time.Now()
	_, err := call.Wait()
	failed(t, "a call at a server that was killed before it answered the connection request", err, victim.addr, "void")
	if took := time.Since(began); took > soon {
		t.Errorf("the call ended %v after its server", took)
	}
	o.stop()
}

// TestClientKilled kills C clients of a Go server: some time after their start, in most cases while they connect, and when the server has their call.
// The server goes on to serve another C process meanwhile.
// parity(peer): Y02
func TestClientKilled(t *testing.T) {
	hgPeer.executable(t)
	s := listen(t, mercury, nil).serveMercury(t)
	o := startOthers(t, s)
	for i := range 8 {
		victim := startPeer(t, hgPeer)
		victim.aim(s.Addr())
		victim.start("sum a=1 b=2 count=1000 inflight=8")
		o.start(fmt.Sprintf("sum a=1 b=2 count=%d inflight=1", 1+4*i)) // the time until the kill
		o.served(t, 1+4*i)
		victim.Kill()
	}
	victim := startPeer(t, hgPeer)
	victim.aim(s.Addr())
	victim.start("hold")
	<-s.holds
	victim.Kill()
	o.start("sum a=1 b=2 count=100 inflight=2")
	o.served(t, 100)
	s.mu.Lock()
	call := s.held[0]
	s.mu.Unlock()
	if err := call.Respond(limited(t, patience), none{}); err == nil {
		t.Error("the response to a client that was killed has been sent")
	}
	o.stop()
}

// TestLateClientsOfC has C clients use a Go server that has connections with as many other clients as have receive queues of their own over ofi+verbs, so
// that theirs share a queue there.
// parity(peer): N01
func TestLateClientsOfC(t *testing.T) {
	hgPeer.executable(t)
	const early, late = 64, 16
	s := listen(t, mercury, nil)
	cfg := configured(t, nil)
	for range early {
		e, err := cinnabar.Open(t.Context(), network, cfg)
		must(t, err)
		t.Cleanup(func() { closeEngine(t, e) })
		c := aim(t, mercury, e, s.Addr())
		if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{1, 2}); err != nil || out.Ret != 3 {
			t.Fatalf("sum is %d, %v; want 3", out.Ret, err)
		}
	}
	before := pinned(t)
	clients := make([]*peer, late)
	for i := range clients {
		clients[i] = startPeer(t, hgPeer)
		clients[i].aim(s.Addr())
		clients[i].check("sum a=1 b=2", "ret=0 value=3")
	}
	t.Logf("%d clients in C: %d KiB of locked memory each", late, (pinned(t)-before)/late)
	for _, q := range clients {
		q.start("sum a=1 b=2 count=200 inflight=16")
		q.start("pull total=1048576")
		q.start("push total=1048576")
	}
	for _, q := range clients[:2] {
		q.Kill() // their receives go back to the queue of the others
	}
	for _, q := range clients[2:] {
		for _, command := range []string{"sum", "pull", "push"} {
			if got := q.result(command); !got.has("ret=0") {
				t.Errorf("a client says %q", got)
			}
		}
		q.stop()
	}
}

// pinned returns the memory of this process that devices use, in KiB.
func pinned(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	must(t, err)
	for l := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(l, "VmPin:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			must(t, err)
			return n
		}
	}
	t.Fatal("no VmPin in /proc/self/status")
	return 0
}
