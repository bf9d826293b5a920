//go:build linux

package interop

import (
	"os"
	"strings"
	"testing"
)

// verbsEnv names the address of an RDMA device that both sides use, such as ofi+verbs://10.9.0.1.
const verbsEnv = "CINNABAR_INTEROP_VERBS"

// TestVerbs runs over an RDMA device what other tests run over TCP. It needs a device of InfiniBand or RoCE (a card needs the build tag rdma), because
// Mercury refuses those of iWARP, and a libfabric with the verbs provider; test/rdmavm/interop provides them.
// parity(peer): N01 H125
func TestVerbs(t *testing.T) {
	for _, p := range []*program{hgPeer, margoPeer, sumServer, sumClient, thalliumPeer, rdmaServer, rdmaClient} {
		p.executable(t)
	}
	overVerbs(t, []named{
		{"TutorialCToC", TestTutorialCToC},
		{"TutorialClientC", TestTutorialClientC},
		{"TutorialServerC", TestTutorialServerC},
		{"MercuryCToC", TestMercuryCToC},
		{"MercuryClientC", TestMercuryClientC},
		{"MercuryServerC", TestMercuryServerC},
		{"MercuryGoToGo", TestMercuryGoToGo},
		{"MercuryBoundClientC", TestMercuryBoundClientC},
		{"MercuryBoundServerC", TestMercuryBoundServerC},
		{"MercuryOpenOnly", TestMercuryOpenOnly},
		{"MercuryRelay", TestMercuryRelay},
		{"MercuryOwnClients", TestMercuryOwnClients},
		{"LateAccessOfC", TestLateAccessOfC},
		{"CancelAtC", TestCancelAtC},
		{"EmptySegmentsAtC", TestEmptySegmentsAtC},
		{"ManySegmentsAtC", TestManySegmentsAtC},
		{"ManySegmentsOfC", TestManySegmentsOfC},
		{"MessageSizes", TestMessageSizes},
		{"MargoClientC", TestMargoClientC},
		{"MargoServerC", TestMargoServerC},
		{"MargoGoToGo", TestMargoGoToGo},
		{"MargoOpenOnly", TestMargoOpenOnly},
		{"MargoClientOnlyC", TestMargoClientOnlyC},
		{"MargoParent", TestMargoParent},
		{"MargoShutdown", TestMargoShutdown},
		{"ThalliumCToC", TestThalliumCToC},
		{"ThalliumClientC", TestThalliumClientC},
		{"ThalliumServerC", TestThalliumServerC},
		{"ThalliumGoToGo", TestThalliumGoToGo},
		{"LargeRDMAGo", TestLargeRDMAGo},
		{"ServerFrozen", TestServerFrozen},
		{"ServerReplaced", TestServerReplaced},
		{"LateClientsOfC", TestLateClientsOfC},
		{"DialEachOther", TestDialEachOther},
		{"ManyClients", TestManyClients},
		{"Overload", TestOverload},
	})
}

// TestVerbsDeaths kills either side over an RDMA device in each phase: while it connects, and while a call, a read, a write or nothing is under way. The
// other side, in C or Go, goes on. It needs Mercury only.
// parity(peer): N01 H125
func TestVerbsDeaths(t *testing.T) {
	hgPeer.executable(t)
	overVerbs(t, []named{
		{"ServerKilled", TestServerKilled},
		{"ServerKilledInTransfer", TestServerKilledInTransfer},
		{"ServerKilledWhileConnecting", TestServerKilledWhileConnecting},
		{"ClientKilled", TestClientKilled},
		{"ClientKilledInTransfer", TestClientKilledInTransfer},
		{"IdleKilled", TestIdleKilled},
		{"GoClientKilled", TestGoClientKilled},
		{"GoServerKilled", TestGoServerKilled},
	})
}

// overVerbs runs tests over the RDMA device that verbsEnv names. It skips the test if that names none.
func overVerbs(t *testing.T, tests []named) {
	t.Helper()
	addr := os.Getenv(verbsEnv)
	if addr == "" {
		t.Skipf("%s does not name the address of an RDMA device, such as ofi+verbs://10.9.0.1", verbsEnv)
	}
	if !strings.HasPrefix(addr, verbsScheme+"://") {
		t.Fatalf("%s is %q; it begins with %s://", verbsEnv, addr, verbsScheme)
	}
	for _, n := range tests {
		over(t, n.name, addr, false, n.run)
	}
}
