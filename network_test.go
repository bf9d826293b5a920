package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/sm"
	"cinnabar/internal/testproc"
	"cinnabar/internal/tlstest"
	"cinnabar/verbs"
	"cinnabar/verbs/auto"
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
	"TestClientsBehindOneAddress", "TestAdvertise", "TestCallByName", "TestStartEncodesBeforeTheNameIsResolved", "TestNameThatDoesNotResolve", "TestNameAfterLoss",
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
	leave := slices.Concat([]string{"TestOverSharedMemory", "TestOverVerbs", "TestOverAutoSM", "TestOverTLS", "TestTLSSettings", "TestVerbsSettings", "TestBytesByRDMA", "TestPullGuessesRight", "TestFirewalled"}, aboutTCP, notByTheKernel)
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

// notOverAutoSM are the tests that TestOverAutoSM leaves out beside those about TCP, because they compare the text of addresses, of which a
// caller in shared memory has another one than its engine, or expect that each connection has a reader of its own.
var notOverAutoSM = []string{
	"TestOverSharedMemory", "TestOverVerbs", "TestOverAutoSM", "TestOverTLS", "TestTLSSettings", "TestVerbsSettings", "TestBytesByRDMA", "TestPullGuessesRight", "TestFirewalled",
	"TestMonitorMemory", "TestWhoCalls", "TestThalliumDeferred", "TestOpenRefused", "TestTransferringHandlerIsQuick",
}

// TestOverAutoSM runs the other tests of this package once more, with ofi+tcp as the network and shared memory beside it.
// parity: N06
func TestOverAutoSM(t *testing.T) {
	if os.Getenv(networkEnv) != "" {
		t.Skipf("%s names the network of all tests", networkEnv)
	}
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	leave := slices.Concat(notOverAutoSM, aboutTCP, notByTheKernel)
	checkTests(t, leave)
	if err := sm.Attach(); err != nil {
		t.Logf("peers move memory for each other, which allocates: %v", err)
		leave = append(leave, "TestTransferAllocs")
	}
	p := testproc.Run(t, testproc.Command{
		Args:  []string{"-test.run=^Test", "-test.skip=^(TestSharedMemory.*|" + strings.Join(leave, "|") + ")$", "-test.timeout=5m"},
		Env:   []string{networkEnv + "=" + autoSMPrefix + "ofi+tcp://127.0.0.1"},
		Limit: 6 * time.Minute, // more than that of the process itself
	})
	if p.ExitCode() != 0 {
		t.Fatal("a test fails with shared memory beside ofi+tcp")
	}
}

// notOverVerbs are the tests that TestOverVerbs leaves out beside those about TCP: they count allocations, or start engines in a way that
// gives them no device. Files with build constraints add theirs.
var notOverVerbs = []string{
	"TestOverSharedMemory", "TestOverVerbs", "TestOverAutoSM", "TestOverTLS", "TestTLSSettings", "TestVerbsSettings", "TestBytesByRDMA", "TestPullGuessesRight", "TestTransferAllocs", "TestSteadyAllocs",
	"TestRecycleWaits", "TestTutorialServer", "TestRemoteShutdown", "TestOpenRefused",
}

// TestOverVerbs runs the other tests of this package once more, with ofi+verbs as the network. Each engine has an RDMA device in
// software of its own.
// parity: N02 D43
func TestOverVerbs(t *testing.T) {
	if os.Getenv(networkEnv) != "" {
		t.Skipf("%s names the network of all tests", networkEnv)
	}
	leave := slices.Concat(notOverVerbs, aboutTCP, notByTheKernel)
	checkTests(t, leave)
	p := testproc.Run(t, testproc.Command{
		Args:  []string{"-test.run=^Test", "-test.skip=^(TestSharedMemory.*|" + strings.Join(leave, "|") + ")$", "-test.timeout=5m"},
		Env:   []string{networkEnv + "=ofi+verbs://127.0.0.1"},
		Limit: 6 * time.Minute, // more than that of the process itself
	})
	if p.ExitCode() != 0 {
		t.Fatal("a test fails over ofi+verbs")
	}
}

// notOverTLS are the tests that TestOverTLS leaves out beside those about TCP: they are about another network, count allocations, of which
// crypto/tls makes some for each record, require a handler to be quick that encrypts 4 MiB, or start engines in a way that gives them no
// certificate. Files with build constraints add theirs.
var notOverTLS = []string{
	"TestOverSharedMemory", "TestOverVerbs", "TestOverAutoSM", "TestOverTLS", "TestVerbsSettings", "TestBytesByRDMA", "TestPullGuessesRight", "TestTransferAllocs", "TestSteadyAllocs",
	"TestTutorialServer", "TestRemoteShutdown", "TestOpenRefused", "TestTransferringHandlerIsQuick",
}

// commonOverTLS matches the tests that TestOverTLS runs by default: calls, bulk memory, and peers that end.
const commonOverTLS = "^Test(Call|Cancel|Peer|Respond|Nested|Bulk|Transfer|Shutdown|Overflow|Provider|Pending|Late)"

// TestOverTLS runs the other tests of this package once more, with ofi+tcps as the network: those of commonOverTLS or, with CINNABAR_LARGE=1, all.
func TestOverTLS(t *testing.T) {
	if os.Getenv(networkEnv) != "" {
		t.Skipf("%s names the network of all tests", networkEnv)
	}
	leave := slices.Concat(notOverTLS, aboutTCP)
	checkTests(t, leave)
	run := commonOverTLS
	if os.Getenv("CINNABAR_LARGE") != "" {
		run = "^Test"
	}
	ca, dir := tlstest.NewCA(t), t.TempDir()
	ca.Write(t, dir, ca.Local(t).Certificates[0])
	p := testproc.Run(t, testproc.Command{
		Args:  []string{"-test.run=" + run, "-test.skip=^(TestSharedMemory.*|" + strings.Join(leave, "|") + ")$", "-test.timeout=5m"},
		Env:   []string{networkEnv + "=ofi+tcps://127.0.0.1", tlsEnv + "=" + dir},
		Limit: 6 * time.Minute, // more than that of the process itself
	})
	if p.ExitCode() != 0 {
		t.Fatal("a test fails over ofi+tcps")
	}
}

// TestTLSSettings checks the settings of engines with and without TLS.
// parity: A01
func TestTLSSettings(t *testing.T) {
	cfg := &Config{TLS: tlstest.NewCA(t).Local(t)}
	for addr, c := range map[string]*Config{"ofi+tcp://127.0.0.1": cfg, "ofi+tcps://127.0.0.1": nil, "ofi+verbs://127.0.0.1": {TLS: cfg.TLS, Device: (*auto.Device)(nil)}} {
		_, err := Listen(t.Context(), addr, c)
		wantCode(t, err, codes.InvalidArg, "TLS")
	}
	for addr, c := range map[string]*Config{"na+sm://": cfg, "ofi+tcps://127.0.0.1": {TLS: cfg.TLS, AutoSM: true}} {
		_, err := Listen(t.Context(), addr, c)
		wantCode(t, err, codes.InvalidArg, "TLS")
	}
	server, err := Listen(t.Context(), "tcps://127.0.0.1", cfg)
	opened(t, server, err)
	must(t, add.Handle(server, handleAdd))
	if !strings.HasPrefix(server.Addr(), "ofi+tcps://127.0.0.1:") {
		t.Errorf("the address is %s", server.Addr())
	}
	client, err := Open(t.Context(), "ofi+tcps://127.0.0.1", cfg)
	opened(t, client, err)
	callAdd(t, find(t, client, strings.Replace(server.Addr(), "ofi+", "", 1)))
}

// TestVerbsSettings checks the settings that an engine on ofi+verbs needs, and those that it refuses.
func TestVerbsSettings(t *testing.T) {
	dev, err := auto.Software(nil)
	must(t, err)
	defer func() { must(t, dev.Close()) }()
	for word, cfg := range map[string]*Config{
		"verbs/auto": nil, "Config.Device": {}, "open an RDMA device": {Device: (*auto.Device)(nil)}, "Interface": {Device: dev, Interface: "lo"},
		"Advertise": {Device: dev, Advertise: "192.0.2.7"}, "16384": {Device: dev, MaxRequest: 1 << 20},
		"MaxConnections": {Device: dev, MaxMemory: 64 << 20, MaxConnections: 100}, // 512 KiB and more each
	} {
		_, err := Listen(t.Context(), "ofi+verbs://127.0.0.1", cfg)
		wantCode(t, err, codes.InvalidArg, word)
	}
	server, err := Listen(t.Context(), "verbs://127.0.0.1", &Config{Device: dev, MaxMemory: 64 << 20})
	opened(t, server, err)
	if n := server.cfg.MaxConnections; n < 8 || n*deviceBuffers > 64<<20/connectionsPart {
		t.Errorf("%d connections in 64 MiB, an eighth of which is for them", n)
	}
	must(t, add.Handle(server, handleAdd))
	if !strings.HasPrefix(server.Addr(), "ofi+verbs;ofi_rxm://127.0.0.1:") {
		t.Errorf("the address is %s", server.Addr())
	}
	if err := dev.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("close of a device in use: %v", err)
	}
	client, err := Open(t.Context(), "verbs;ofi_rxm://127.0.0.1", &Config{Device: dev})
	opened(t, client, err)
	callAdd(t, find(t, client, strings.Replace(server.Addr(), "ofi+verbs;ofi_rxm", "verbs", 1)))
	must(t, client.Close())
	must(t, server.Close())
}

// TestBytesByRDMA checks the counters BytesRDMA and BytesBounced. Bytes of memory of Alloc and of large slices are not copied. Those of small
// slices may be, because copying may take less time than registering.
// parity: N03
func TestBytesByRDMA(t *testing.T) {
	const size = 1 << 20
	dev, err := auto.Software(nil)
	must(t, err)
	defer func() { must(t, dev.Close()) }()
	server, err := Listen(t.Context(), "ofi+verbs://127.0.0.1", &Config{Device: dev})
	opened(t, server, err)
	client, err := Open(t.Context(), "ofi+verbs://127.0.0.1", &Config{Device: dev, RegCacheBytes: size})
	opened(t, client, err)
	lent, err := server.Alloc(ReadWrite, size)
	must(t, err)
	remote := lent.Handle().On(find(t, client, server.Addr()))
	own, err := client.Alloc(ReadWrite, size)
	must(t, err)
	slice, err := client.Expose(ReadWrite, make([]byte, size))
	must(t, err)
	for i, b := range []*Bulk{own, slice, own, slice} {
		move := remote.Push
		if i >= 2 {
			move = remote.Pull
		}
		n, err := move(t.Context(), b)
		must(t, err)
		if s := client.Stats(); n != size || s.BytesRDMA != uint64(i+1)*size || s.BytesBounced != 0 {
			t.Errorf("transfer %d: %d bytes went by RDMA, and %d were copied, want %d and none", i, s.BytesRDMA, s.BytesBounced, (i+1)*size)
		}
	}
	before := client.Stats()
	_, err = remote.WriteAt(t.Context(), []byte{1}, 0)
	must(t, err)
	if s := client.Stats(); s.BytesRDMA != before.BytesRDMA+1 || s.BytesBounced > 1 {
		t.Errorf("%d bytes went by RDMA, and %d of one were copied", s.BytesRDMA-before.BytesRDMA, s.BytesBounced)
	}
	if s := server.Stats(); s.BytesRDMA != 0 {
		t.Errorf("the owner of the memory has counted %d bytes, want 0, because the device of the other process moves them", s.BytesRDMA)
	}
	must(t, client.Close())
	must(t, server.Close())
	must(t, own.Close()) // after the engine
}

// TestPullGuessesRight checks that the device of a server copies nothing because of a wrong guess at the places of a read response, while handlers pull
// the data of their callers.
func TestPullGuessesRight(t *testing.T) {
	const size = 8 << 20
	data := noise(size)
	for range 5 {
		dev, err := auto.Software(nil)
		must(t, err)
		server, err := Listen(t.Context(), "ofi+verbs://127.0.0.1", &Config{Device: dev})
		opened(t, server, err)
		client, err := Open(t.Context(), "ofi+verbs://127.0.0.1", withDeviceFor(t, "ofi+verbs", nil))
		opened(t, client, err)
		ep := find(t, client, server.Addr())
		pull := NewRPC[BulkHandle, struct{}]("pull_guesses")
		local, err := server.Alloc(WriteOnly, size)
		must(t, err)
		must(t, pull.Handle(server, func(ctx context.Context, h BulkHandle) (struct{}, error) {
			_, err := h.On(InfoFrom(ctx).Peer).Pull(ctx, local.Slice(0, h.Len()))
			return struct{}{}, err
		}))
		for _, n := range []int{1 << 20, 1 << 20, size, size, 100_001} {
			b, err := client.Expose(ReadOnly, data[:n])
			must(t, err)
			clear(local.Bytes())
			if _, err := pull.Call(patient(t), ep, b.Handle()); err != nil || !bytes.Equal(local.Bytes()[:n], data[:n]) {
				t.Errorf("pull of %d bytes: %v", n, err)
			}
			must(t, b.Close())
		}
		s := dev.Verbs().Stats()
		if s["rx_wrong_guesses"] != 0 || s["rx_staged_bytes"] != 0 {
			t.Errorf("%d guesses were wrong, %d bytes were copied", s["rx_wrong_guesses"], s["rx_staged_bytes"])
		}
		// Without guesses an FPDU takes two calls, one for its header and one for its data. A call gets only a part of an FPDU whose rest has not come yet.
		if s["rx_calls"] >= 2*s["rx_fpdus"] {
			t.Errorf("%d FPDUs were read by %d system calls", s["rx_fpdus"], s["rx_calls"])
		}
		must(t, client.Close())
		must(t, server.Close())
		must(t, local.Close())
		must(t, dev.Close())
	}
}

// checkTests fails if there is no test of one of the names: it has another one by now, or is gone. It is a test of its own, because the list of all
// tests would otherwise hide why the caller's test has failed.
func checkTests(t *testing.T, names []string) {
	t.Helper()
	t.Run("names", func(t *testing.T) {
		list := testproc.Run(t, testproc.Command{Args: []string{"-test.list=^Test"}})
		must(t, list.Wait())
		there := strings.Fields(list.Stdout.String())
		for _, n := range names {
			if !slices.Contains(there, n) {
				t.Errorf("%s, which is not run over another network, is no test", n)
			}
		}
	})
}
