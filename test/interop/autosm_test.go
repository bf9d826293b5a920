//go:build linux

package interop

import (
	"strings"
	"testing"

	"cinnabar/internal/na/sm"
)

// TestAutoSM runs, with shared memory beside TCP on both sides, what other tests run over TCP: the two sides have combined addresses and
// reach each other over shared memory, in both roles, with bulk handles of both networks. Memory of more than 1,024 segments is left out,
// because Mercury registers none with auto_sm.
// parity(peer): N06 H127
func TestAutoSM(t *testing.T) {
	hgPeer.executable(t)
	keepFiles(t)
	for _, n := range []named{
		{"MercuryCToC", TestMercuryCToC},
		{"MercuryClientC", TestMercuryClientC},
		{"MercuryServerC", TestMercuryServerC},
		{"MercuryGoToGo", TestMercuryGoToGo},
		{"MercuryBoundClientC", TestMercuryBoundClientC},
		{"MercuryBoundServerC", TestMercuryBoundServerC},
		{"MercuryRelay", TestMercuryRelay},
		{"EmptySegmentsAtC", TestEmptySegmentsAtC},
		{"ManySegmentsAtC", TestManySegmentsAtC},
		{"Networks", testCarriedBySharedMemory},
		{"MargoCToC", testMargoCSharing},
		{"MargoClientC", testMargoClientSharing},
		{"MargoServerC", testMargoServerSharing},
	} {
		t.Run(n.name, func(t *testing.T) {
			sharing = true
			defer func() { sharing = false }()
			n.run(t)
		})
	}
}

// testCarriedBySharedMemory checks that the calls travel over shared memory, in both roles.
func testCarriedBySharedMemory(t *testing.T) {
	s := listen(t, mercury, nil).serveMercury(t)
	client := startPeer(t, hgPeer)
	for _, addr := range []string{client.addr, s.Addr()} {
		if !strings.HasPrefix(addr, "uid://"+sm.HostID()+"#na+sm://") {
			t.Errorf("an address is %s", addr)
		}
	}
	to, err := s.Lookup(client.addr)
	if err != nil {
		t.Fatal(err)
	}
	before := s.Stats()
	if out, err := s.rpc.sum.Call(t.Context(), to, sumIn{A: 1, B: 2}); err != nil || out != (sumOut{3}) {
		t.Errorf("the sum is %+v, %v", out, err)
	}
	after := s.Stats()
	if sent, shared := after.RequestsSent-before.RequestsSent, after.RequestsShared-before.RequestsShared; sent == 0 || shared != sent {
		t.Errorf("%d of %d requests travel over shared memory", shared, sent)
	}
	client.aim(s.Addr())
	client.start("sum a=1 b=2 count=100 inflight=16")
	if got := client.result("sum"); !got.has("ret=0 value=3 count=100 ok=100") {
		t.Errorf("%s says %q", client.name, got)
	}
	client.stop()
}

// margoSharing are the options of a margo_peer with shared memory beside TCP.
func margoSharing() []string { return margoConfig(`"auto_sm":true`) }

// testMargoCSharing shows that the steps of the tests below are right over shared memory: both sides are C.
func testMargoCSharing(t *testing.T) {
	server, client := startPeer(t, margoPeer, margoSharing()...), startPeer(t, margoPeer, margoSharing()...)
	client.aim(server.addr)
	runSteps(client, margoSteps, moveSteps)
	server.expect("event notify seq=1")
	server.expect("event notify seq=2")
	server.expect("event slow")
	client.stop()
	server.stop()
}

// testMargoClientSharing calls a Go server from a client on Margo over shared memory.
func testMargoClientSharing(t *testing.T) {
	s := listen(t, margo, nil).serveMargo(t)
	client := startPeer(t, margoPeer, margoSharing()...)
	client.aim(s.Addr())
	runSteps(client, margoSteps, moveSteps)
	s.takeNotes(t)
	client.stop()
}

// testMargoServerSharing calls a server on Margo from a Go client over shared memory. The server calls the client back.
func testMargoServerSharing(t *testing.T) {
	q := startPeer(t, margoPeer, margoSharing()...)
	s := listen(t, margo, nil).serveMargo(t)
	callMargo(aim(t, margo, s.Engine, q.addr))
	q.expect("event slow")
	q.stop()
	if n := s.Stats(); n.RequestsShared != n.RequestsSent {
		t.Errorf("%d of %d requests travel over shared memory", n.RequestsShared, n.RequestsSent)
	}
}
