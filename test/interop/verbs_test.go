//go:build linux

package interop

import (
	"os"
	"strings"
	"testing"
)

// verbsEnv names the address of an RDMA device that both sides use, such as ofi+verbs://10.9.0.1.
const verbsEnv = "CINNABAR_INTEROP_VERBS"

// TestVerbs runs over an RDMA device what other tests run over TCP. It needs the build tag rdma, a device of InfiniBand or RoCE, because
// Mercury refuses those of iWARP, and a libfabric with the verbs provider; test/rdmavm/interop provides them.
// parity(peer): N01 H125
func TestVerbs(t *testing.T) {
	for _, p := range []*program{hgPeer, margoPeer, sumServer, sumClient, thalliumPeer, rdmaServer, rdmaClient} {
		p.executable(t)
	}
	addr := os.Getenv(verbsEnv)
	if addr == "" {
		t.Skipf("%s does not name the address of an RDMA device, such as ofi+verbs://10.9.0.1", verbsEnv)
	}
	if !strings.HasPrefix(addr, verbsScheme+"://") {
		t.Fatalf("%s is %q; it begins with %s://", verbsEnv, addr, verbsScheme)
	}
	for _, n := range []named{
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
		{"ServerKilled", TestServerKilled},
		{"ServerFrozen", TestServerFrozen},
		{"ServerReplaced", TestServerReplaced},
		{"ClientKilledInTransfer", TestClientKilledInTransfer},
		{"ServerKilledInTransfer", TestServerKilledInTransfer},
		{"ServerKilledWhileConnecting", TestServerKilledWhileConnecting},
		{"ClientKilled", TestClientKilled},
		{"LateClientsOfC", TestLateClientsOfC},
		{"DialEachOther", TestDialEachOther},
		{"ManyClients", TestManyClients},
		{"Overload", TestOverload},
	} {
		over(t, n.name, addr, false, n.run)
	}
}
