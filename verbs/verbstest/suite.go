package verbstest

import (
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

// Options are how a sub-test wants its device to be opened. The zero value is
// the device's default.
type Options struct {
	// ConfirmWrites: the completion of a write or send reports the peer's result of
	// it. Devices with CapExactStatus do so anyway.
	ConfirmWrites bool
	// NoImmediates: the device lacks CapWriteImm and CapSendImm.
	NoImmediates bool
	// NoAtomics: the device lacks CapAtomics.
	NoAtomics bool
	// LockMemory: registered memory counts against the process's limit of locked memory.
	LockMemory bool
	// NoAllocs: posts and polls must not allocate. A device that is not for real
	// work, such as a fault-injecting layer, skips it.
	NoAllocs bool
}

// Open opens a device for a test. It fails the test if it cannot, and skips it,
// saying why, if the device has no such option.
type Open func(t *testing.T, o Options) *verbs.Device

// exact asks for statuses that report the peer's result.
var exact = Options{ConfirmWrites: true}

// group is the sub-tests of one subject.
type group struct {
	name  string
	tests []test
}

// test is one sub-test with the options of its device.
type test struct {
	name string
	opts Options
	run  func(t *testing.T, dev *verbs.Device)
}

// groups are all sub-tests.
var groups = []group{
	{"Device", []test{
		{"Attributes", Options{}, testAttributes}, {"Ports", Options{}, testPorts},
		{"CloseBusy", Options{}, testCloseBusy}, {"UseAfterClose", Options{}, testUseAfterClose},
		{"QPTypes", Options{}, testQPTypes},
	}},
	{"Memory", []test{
		{"Domains", exact, testDomains}, {"LocalDomain", Options{}, testLocalDomain},
		{"Violations", exact, testViolations}, {"LocalViolations", Options{}, testLocalViolations},
		{"LocalWriteNeeded", Options{}, testLocalWriteNeeded}, {"GoSlices", Options{}, testGoSlices},
		{"CloseRevokes", exact, testCloseRevokes}, {"CloseInTraffic", Options{}, testCloseInTraffic},
		{"Keys", Options{}, testKeys}, {"GuessedKeys", Options{}, testGuessedKeys},
		{"Unregistered", Options{}, testUnregistered},
		{"AtAddress", Options{}, testAtAddress}, {"BeyondAddress", exact, testBeyondAddress}, {"UsesOfAddress", Options{}, testUsesOfAddress},
		{"ReregAccess", exact, testReregAccess}, {"ReregDomain", exact, testReregDomain},
		{"ReregMemory", exact, testReregMemory}, {"ReregMisuse", Options{}, testReregMisuse},
		{"ReregInTraffic", Options{}, testReregInTraffic},
	}},
	{"MW", []test{
		{"Types", Options{}, testMWTypes}, {"Bind", exact, testMWBind}, {"Order", exact, testMWOrder}, {"Beyond", exact, testMWBeyond},
		{"Rights", exact, testMWRights}, {"OtherQP", exact, testMWOtherQP}, {"LocalInvalidate", exact, testMWLocalInvalidate},
		{"Invalidated", exact, testMWInvalidated}, {"SendInvalidate", exact, testMWSendInvalidate},
		{"BindRefused", exact, testMWBindRefused}, {"BindTwice", exact, testMWBindTwice},
		{"InvalidateUnknown", exact, testMWInvalidateUnknown}, {"InvalidateTwice", exact, testMWInvalidateTwice},
		{"BusyRegion", exact, testMWBusyRegion}, {"Misuse", exact, testMWMisuse},
		{"AtAddress", exact, testMWAtAddress},
	}},
	{"CQ", []test{
		{"PollBatch", Options{}, testPollBatch}, {"Resize", Options{}, testResize}, {"Status", exact, testStatus},
		{"Arm", Options{}, testArm}, {"ArmLosesNothing", Options{}, testArmLosesNothing},
		{"EventWithoutCompletion", Options{}, testEventWithoutCompletion},
		{"SolicitedOnly", Options{}, testSolicitedOnly}, {"Overrun", Options{}, testOverrun},
		{"All", Options{}, testAll}, {"NoAllocs", Options{NoAllocs: true}, testPollAllocs},
		{"Moderate", Options{}, testModerate}, {"Timestamps", Options{}, testTimestamps},
	}},
	{"QP", []test{
		{"Limits", Options{}, testQPLimits}, {"StatesByHand", Options{}, testStatesByHand},
		{"StatesConnected", Options{}, testStatesConnected}, {"ResetAndReconnect", Options{}, testResetAndReconnect},
		{"Drain", Options{}, testDrain}, {"PostInState", Options{}, testPostInState},
	}},
	{"Post", []test{
		{"BadInList", Options{}, testBadInList}, {"BadRecvInList", Options{}, testBadRecvInList},
		{"QueueFull", Options{}, testQueueFull}, {"RecvQueueFull", Options{}, testRecvQueueFull},
		{"ManyBeforePoll", Options{}, testManyBeforePoll}, {"Oversize", Options{}, testOversize},
		{"TooManyEntries", Options{}, testTooManyEntries}, {"ListReusable", Options{}, testListReusable},
		{"InOrder", Options{}, testInOrder},
	}},
	{"Opcode", []test{
		{"Send", Options{}, testSend}, {"SendImm", Options{}, testSendImm}, {"Write", Options{}, testWrite},
		{"WriteImm", Options{}, testWriteImm}, {"Read", Options{}, testRead},
		{"CompareSwap", Options{}, testCompareSwap}, {"FetchAdd", Options{}, testFetchAdd},
		{"AtomicAlignment", Options{}, testAtomicAlignment}, {"AtomicAccess", Options{}, testAtomicAccess},
		{"AtomicsConcurrent", Options{}, testAtomicsConcurrent}, {"SendInvalidate", exact, testSendInvalidate},
		{"InvalidateRefused", exact, testInvalidateRefused},
		{"Refusals", Options{NoImmediates: true, NoAtomics: true}, testRefusals}, {"Values", Options{}, testValues},
		{"ZeroLength", Options{}, testZeroLength}, {"GatherScatter", Options{}, testGatherScatter},
		{"Sizes", Options{}, testSizes}, {"BothDirections", Options{}, testBothDirections},
	}},
	{"Flag", []test{
		{"Unsignaled", Options{}, testUnsignaled}, {"UnsignaledFails", exact, testUnsignaledFails},
		{"SignalAll", Options{}, testSignalAll}, {"Inline", Options{}, testInline},
		{"InlineTooLong", Options{}, testInlineTooLong}, {"Fence", Options{}, testFence},
	}},
	{"Recv", []test{
		{"EmptyList", Options{}, testEmptyList}, {"EmptyListTakesNoBytes", exact, testEmptyListTakesNoBytes},
		{"TooLong", exact, testTooLong}, {"BadBuffer", exact, testBadBuffer}, {"Late", exact, testLateReceive},
		{"ManyLate", Options{}, testManyLate}, {"NeverByParam", exact, testNoReceiveByParam},
		{"NeverByModify", exact, testNoReceiveByModify}, {"ReadBehindLate", Options{}, testReadBehindLate},
		{"Order", Options{}, testRecvOrder},
	}},
	{"Flush", []test{
		{"All", Options{}, testFlush}, {"AfterError", exact, testFlushAfterError},
		{"Disconnect", Options{}, testDisconnectFlushes}, {"PeerGone", Options{}, testPeerGone},
		{"CloseAddsNothing", Options{}, testCloseAddsNothing}, {"RandomHistories", Options{}, testRandomHistories},
	}},
	{"Learn", []test{
		{"OneSided", Options{}, testOneSided}, {"ByImmediate", Options{}, testLearnByImmediate},
		{"BySend", Options{}, testLearnBySend}, {"ByPolling", Options{}, testLearnByPolling},
	}},
	{"SRQ", []test{
		{"Shared", Options{}, testSRQShared}, {"Limit", Options{}, testSRQLimit}, {"Full", Options{}, testSRQFull},
		{"Late", Options{}, testSRQLate}, {"LastWQE", Options{}, testSRQLastWQE}, {"Misuse", Options{}, testSRQMisuse},
	}},
	{"UC", []test{
		{"Messages", Options{}, testUCMessages}, {"Writes", Options{}, testUCWrites},
		{"LostUnreported", Options{}, testUCLost}, {"WrongKeyUnreported", Options{}, testUCWrongKey},
		{"Refusals", Options{}, testUCRefusals}, {"States", Options{}, testUCStates},
		{"NotManaged", Options{}, func(t *testing.T, dev *verbs.Device) {
			needsType(t, dev, verbs.UC)
			testNotManaged(t, dev, verbs.UC)
		}},
		{"Flush", Options{}, testUCFlush},
	}},
	{"UD", []test{
		{"Messages", Options{}, testUDMessages}, {"Reply", Options{}, testUDReply},
		{"ManySenders", Options{}, testUDManySenders}, {"LostSilently", Options{}, testUDLost},
		{"WrongQKey", Options{}, testUDWrongQKey}, {"OwnQKey", Options{}, testUDOwnQKey},
		{"LongestMessage", Options{}, testUDLongest}, {"Refusals", Options{}, testUDRefusals},
		{"HandleInUse", Options{}, testUDHandleInUse}, {"HandleRefusals", Options{}, testUDHandleRefusals},
		{"SharedReceives", Options{}, testUDShared}, {"States", Options{}, testUDStates},
		{"NotManaged", Options{}, func(t *testing.T, dev *verbs.Device) {
			needsType(t, dev, verbs.UD)
			testNotManaged(t, dev, verbs.UD)
		}},
		{"Flush", Options{}, testUDFlush}, {"NoAllocs", Options{NoAllocs: true}, testUDAllocs},
	}},
	{"Event", []test{
		{"Wait", Options{}, testEventWait}, {"Violation", Options{}, testViolationReported},
		{"PeerFails", exact, testPeerReported},
	}},
	{"CM", []test{
		{"Addresses", Options{}, testAddresses}, {"IPv6", Options{}, testIPv6},
		{"BothFamilies", Options{}, testBothFamilies}, {"PortTaken", Options{}, testPortTaken},
		{"Reject", Options{}, testReject}, {"PrivateData", Options{}, testPrivateData},
		{"PrivateDataTooLong", Options{}, testPrivateDataTooLong}, {"Resources", Options{}, testResources},
		{"NoReads", Options{}, testNoReads}, {"BacklogFull", Options{}, testBacklogFull},
		{"ClosedPort", Options{}, testClosedPort}, {"SilentPort", Options{}, testSilentPort},
		{"BabblingPort", Options{}, testBabblingPort}, {"BabblingClient", Options{}, testBabblingClient},
		{"SilentClient", Options{}, testSilentClient}, {"CancelDial", Options{}, testCancelDial},
		{"CancelAccept", Options{}, testCancelAccept}, {"CloseListener", Options{}, testCloseListener},
		{"ConnectTwice", Options{}, testConnectTwice}, {"ManyClients", Options{}, testManyClients},
		{"DialerGone", Options{}, testDialerGone}, {"PassiveSendsFirst", Options{}, testPassiveSendsFirst},
		{"Source", Options{}, testSource}, {"SourceRefused", Options{}, testSourceRefused},
		{"OnlyIPv6", Options{}, testOnlyIPv6}, {"TypeOfService", Options{}, testTypeOfService},
		{"AckTimeout", Options{}, testAckTimeout},
	}},
	{"Exchange", []test{
		{"OverTCP", Options{}, testExchangeTCP}, {"ByMessage", Options{}, testExchangeMessage},
		{"ByPrivateData", Options{}, testExchangePrivateData}, {"Endpoints", Options{}, testEndpoints},
		{"BothSidesWork", Options{}, testBothSidesWork},
	}},
	{"Stress", []test{
		{"ManyGoroutines", Options{}, testManyGoroutines}, {"CloseInTraffic", Options{}, testQPCloseInTraffic},
		{"ManyWaiters", Options{}, testManyWaiters}, {"Churn", Options{}, testChurn},
	}},
}

// TestDevice runs the suite on the device that open opens.
func TestDevice(t *testing.T, open Open) {
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, tc := range g.tests {
				t.Run(tc.name, func(t *testing.T) {
					checkLeaks(t)
					dev := open(t, tc.opts)
					t.Cleanup(func() { closeAll(t, "device", dev.Close) })
					tc.run(t, dev)
				})
			}
		})
	}
	t.Run("LockLimit", func(t *testing.T) { testLockLimit(t, open) })
}

// closeAll closes objects and reports failures. name names them in the report.
func closeAll(t *testing.T, name string, closers ...func() error) {
	t.Helper()
	for _, c := range closers {
		if err := c(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	}
}

// attr queries the device.
func attr(t *testing.T, dev *verbs.Device) verbs.DeviceAttr {
	t.Helper()
	a, err := dev.Query()
	if err != nil {
		t.Fatalf("Query: %v", err)
	}
	return a
}

// needs skips a test of something that the device lacks and, by its refusal
// elsewhere, is known to lack.
func needs(t *testing.T, dev *verbs.Device, c verbs.Caps) {
	t.Helper()
	if a := attr(t, dev); !a.Caps.Has(c) {
		t.Skipf("device %s lacks %v; Opcode/Refusals tests that it says so", a.Name, c&^a.Caps)
	}
}

// sized returns full, or reduced in short mode and under the race detector.
func sized(full, reduced int) int {
	if testing.Short() || invariants.Race {
		return reduced
	}
	return full
}
