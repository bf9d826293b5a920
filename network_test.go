package cinnabar

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/na/sm"
	"cinnabar/internal/testproc"
)

// aboutTCP are the tests that TestOverSharedMemory leaves out, since they are about TCP: its connections, which they
// stall, its configuration, the number of peers that it has room for, or that a process can be called which does not
// listen. A new test about TCP belongs here.
var aboutTCP = []string{
	"TestCancelHalfWay", "TestCancelWaitsForNetwork", "TestCloseUnderStalledPull", "TestRemoteReadAtContext", "TestRecycleWaits",
	"TestBulkCloseWaits", "TestUnreachable", "TestBoundHandleBadOwner", "TestManyClients", "TestPeerKilled", "TestStartWithEndedContext",
	"TestTransferChunksCancelled", "TestTransferTimeout", "TestEngineCloseEndsTransfers", "TestTransferEvents", "TestTransferFreesWorker",
	"TestCallToClient", "TestSmallMessages", "TestInterface", "TestSubsystems", "TestEagerSize", "TestConfigReaches",
	"TestExposeMostSegments", "TestLateAccess", "TestLateAccessExpires", "TestLateAccessOff", "TestLateAccessBeyondBudget", "TestLateAccessOfAnotherPeer", "TestLateAccessForwarded",
	"TestLateAccessOfTwoCalls", "TestBoundHandleLeadsElsewhere", "TestLateAccessEndsWithItsConnection", "TestLateAccessToPool", "TestCloseOfPoolWithLateAccess", "TestTimeOutHurtsNoOtherCall", "TestLateCallsDoNotLeak",
	"TestClientsBehindOneAddress", "TestAdvertise", "TestFirewalled", "TestCallByName", "TestStartEncodesBeforeTheNameIsResolved", "TestNameThatDoesNotResolve", "TestNameAfterLoss",
}

// notByTheKernel are those that it leaves out because they are about what the owner of memory does against a peer that
// reaches for it. Over na+sm the kernel moves memory, and the owner is not asked: see docs/wire-nasm.md.
var notByTheKernel = []string{
	"TestHandleOfView", "TestBulkClose", "TestHostileInitiator", "TestTransferWithStoppedProcess", "TestTransferWithKilledProcess",
}

// TestOverSharedMemory runs the other tests of this package once more, with na+sm as the network.
// parity: H126
func TestOverSharedMemory(t *testing.T) {
	if os.Getenv(networkEnv) != "" {
		t.Skipf("%s names the network of all tests", networkEnv)
	}
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	leave := slices.Concat([]string{"TestOverSharedMemory"}, aboutTCP, notByTheKernel)
	checkTests(t, leave)
	if err := sm.Attach(); err != nil {
		t.Logf("peers move memory for each other, which allocates: %v", err)
		leave = append(leave, "TestTransferAllocs")
	}
	p := testproc.Run(t, testproc.Command{
		Args:  []string{"-test.run=^Test", "-test.skip=^(" + strings.Join(leave, "|") + ")$", "-test.timeout=5m"},
		Env:   []string{networkEnv + "=na+sm"},
		Limit: 6 * time.Minute, // more than that of the process itself
	})
	if p.ExitCode() != 0 {
		t.Fatal("a test that fails here since it is about TCP belongs into aboutTCP")
	}
}

// checkTests fails if there is no test of one of the names: it has another one by now, or is gone.
func checkTests(t *testing.T, names []string) {
	t.Helper()
	list := testproc.Run(t, testproc.Command{Args: []string{"-test.list=^Test"}})
	must(t, list.Wait())
	there := strings.Fields(list.Stdout.String())
	for _, n := range names {
		if !slices.Contains(there, n) {
			t.Errorf("%s, which is not run over na+sm, is no test", n)
		}
	}
}
