//go:build linux

package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
)

// soon bounds how long this side may take to notice that the other is gone.
const soon = 10 * time.Second

// failed checks that a call ended because of its peer, and says so.
func failed(t *testing.T, what string, err error, addr, rpc string) {
	t.Helper()
	switch codes.Of(err) {
	case codes.HostUnreach, codes.IOError, codes.Canceled:
	default:
		t.Errorf("%s: %v; want an error about the peer", what, err)
		return
	}
	if s := err.Error(); !strings.Contains(s, addr) || !strings.Contains(s, rpc) {
		t.Errorf("%s: %q names not both %s and %s", what, s, addr, rpc)
	}
}

// TestServerKilled kills a C server that has a call, and starts it again at the same address.
// parity(peer): H58 Y02 D01
func TestServerKilled(t *testing.T) {
	q := startPeer(t, hgPeer)
	c := dial(t, mercury, q.addr, nil)
	call := c.rpc.hold.Start(limited(t, patience), c.to, none{})
	q.expect("event hold") // the server has it
	began := time.Now()
	q.Kill()
	_, err := call.Wait()
	failed(t, "a call at a server that was killed", err, q.addr, "hold")
	if took := time.Since(began); took > soon {
		t.Errorf("the call ended %v after its server", took)
	}
	_, err = c.rpc.void.Call(limited(t, patience), c.to, none{})
	failed(t, "a call at an address where nobody listens", err, q.addr, "void")

	again := startPeer(t, hgPeer, "--init", q.addr)
	if out, err := c.rpc.sum.Call(limited(t, patience), c.to, sumIn{1, 2}); err != nil || out.Ret != 3 {
		t.Errorf("sum at the server that was started again is %d, %v; want 3", out.Ret, err)
	}
	again.stop()
}

// TestServerFrozen stops a C server and lets it go on.
// parity(peer): Y02
func TestServerFrozen(t *testing.T) {
	q := startPeer(t, hgPeer)
	c := dial(t, mercury, q.addr, nil)
	c.pipeline(10, 1)
	q.Suspend()
	_, err := c.rpc.void.Call(limited(t, 200*time.Millisecond), c.to, none{})
	if codes.Of(err) != codes.Timeout {
		t.Errorf("a call at a frozen server: %v; want %v", err, codes.Timeout)
	}
	q.Resume()
	c.pipeline(100, 10)
	q.stop()
}

// TestClientKilledInTransfer kills C clients while a Go server reads and writes their memory.
func TestClientKilledInTransfer(t *testing.T) {
	hgPeer.executable(t)
	for _, kind := range []string{"pull", "push"} {
		t.Run(kind, func(t *testing.T) {
			s := listen(t, mercury, nil)
			arrived, frozen, ended := make(chan string, 1), make(chan struct{}), make(chan error, 1)
			rpc, transfer, mode := s.rpc.pull, cinnabar.RemoteBulk.Pull, cinnabar.WriteOnly
			if kind == "push" {
				rpc, transfer, mode = s.rpc.push, cinnabar.RemoteBulk.Push, cinnabar.ReadOnly
			}
			must(t, rpc.Remove(s.Engine), rpc.Handle(s.Engine, func(ctx context.Context, in moveIn) (moveOut, error) {
				peer := cinnabar.InfoFrom(ctx).Peer
				arrived <- peer.String()
				<-frozen
				local, err := s.Alloc(mode, in.Bulk.Len())
				if err == nil {
					_, err = transfer(in.Bulk.On(peer), ctx, local)
					err = firstOf(err, local.Close())
				}
				ended <- err
				return moveOut{}, err
			}))
			client := startPeer(t, hgPeer)
			client.aim(s.Addr())
			client.start(fmt.Sprintf("%s total=%d", kind, 64<<20)) // more than sockets hold
			addr := <-arrived
			client.Suspend()
			close(frozen)
			began := time.Now()
			client.Kill()
			err := <-ended
			failed(t, kind+" of the memory of a client that was killed", err, addr, kind)
			if took := time.Since(began); took > soon {
				t.Errorf("the transfer ended %v after its client", took)
			}
			other := startPeer(t, hgPeer)
			other.aim(s.Addr())
			other.check("sum a=1 b=2", "ret=0 value=3")
			other.stop()
		})
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestServerReplaced closes the Go server that a C client has called and opens another at its address.
// parity(peer): H58 D06
func TestServerReplaced(t *testing.T) {
	client := startPeer(t, hgPeer)
	cfg := configured(t, nil)
	first, err := cinnabar.Listen(t.Context(), network, cfg)
	if err != nil {
		t.Fatal(err)
	}
	must(t, mercury.sum.Handle(first, func(context.Context, sumIn) (sumOut, error) { return sumOut{1}, nil }))
	addr := first.Addr()
	client.aim(addr)
	client.check("sum a=0 b=1", "ret=0 value=1")
	closeEngine(t, first)
	second, err := cinnabar.Listen(t.Context(), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine(t, second)
	must(t, mercury.sum.Handle(second, func(context.Context, sumIn) (sumOut, error) { return sumOut{2}, nil }))
	client.check("sum a=0 b=2", "ret=0 value=2")
	client.stop()
}

// TestDialEachOther makes the first calls between 100 C processes and Go engines from both sides at once, ten processes with one engine at a time.
//
// Each C process has one peer. One that has had other peers may take the wrong connection of the two: libfabric
// 2.7 recycles its connection objects with the process id of an earlier peer in them (xnet_alloc_conn), and if the
// request that lost arrives before it has looked at the answer to its own, xnet_process_connreq takes the connection
// that exists for an old one and closes it. Both sides' calls then fail, and the next ones succeed.
func TestDialEachOther(t *testing.T) {
	const connects, together = 100, 10
	for range connects / together {
		dialEachOther(t, together)
	}
}

func dialEachOther(t *testing.T, n int) {
	t.Helper()
	s := listen(t, mercury, nil)
	peers, clients := make([]*peer, n), make([]*client, n)
	for i := range n {
		peers[i] = startPeer(t, hgPeer)
		peers[i].aim(s.Addr())
		clients[i] = aim(t, mercury, s.Engine, peers[i].addr)
	}
	calls := make([]*cinnabar.Pending[sumOut], n)
	for i, c := range clients {
		peers[i].start("sum a=1 b=2")
		calls[i] = c.rpc.sum.Start(c.ctx(), c.to, sumIn{3, 4})
	}
	for i, q := range peers {
		if out, err := calls[i].Wait(); err != nil || out.Ret != 7 {
			t.Errorf("the Go side's sum is %d, %v; want 7", out.Ret, err)
		}
		if got := q.result("sum"); !got.has("ret=0 value=3") {
			t.Errorf("the C side says %q", got)
		}
		q.stop()
	}
	closeEngine(t, s.Engine)
}

// TestManyClients has C clients use one Go server at once.
func TestManyClients(t *testing.T) {
	s := listen(t, mercury, nil)
	var clients []*peer
	for range 16 {
		q := startPeer(t, hgPeer)
		q.aim(s.Addr())
		clients = append(clients, q)
	}
	for _, q := range clients {
		q.start("sum a=1 b=2 count=200 inflight=8")
		q.start("pull total=1048576")
	}
	for _, q := range clients {
		for _, command := range []string{"sum", "pull"} {
			if got := q.result(command); !got.has("ret=0") {
				t.Errorf("a client says %q", got)
			}
		}
		q.stop()
	}
}

// TestOverload has a C client send more than a Go server takes: two requests run, four wait, the others are refused. The
// client gives up those that are not answered.
func TestOverload(t *testing.T) {
	s := listen(t, mercury, &cinnabar.Config{MaxHandlers: 2, MaxQueued: 4})
	release := make(chan struct{})
	must(t, s.rpc.sum.Remove(s.Engine), s.rpc.sum.Handle(s.Engine, func(context.Context, sumIn) (sumOut, error) {
		<-release
		return sumOut{3}, nil
	}))
	q := startPeer(t, hgPeer, "--timeout", "500")
	q.aim(s.Addr())
	q.check("sum a=1 b=2 count=64 inflight=64", "ok=0 again=58 canceled=6")
	close(release)
	q.check("sum a=1 b=2", "ret=0 value=3")
	q.stop()
}
