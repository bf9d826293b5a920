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

// TestDevice runs the suite on the device that open opens.
func TestDevice(t *testing.T, open Open) {
	groups := []group{
		{"Device", deviceTests}, {"Memory", memoryTests}, {"CQ", cqTests}, {"QP", qpTests}, {"Post", postTests},
		{"Opcode", opcodeTests}, {"Flag", flagTests}, {"Recv", recvTests}, {"Flush", flushTests}, {"Learn", learnTests},
		{"SRQ", srqTests}, {"UC", ucTests}, {"UD", udTests}, {"Event", eventTests}, {"CM", cmTests}, {"Exchange", exchangeTests}, {"Stress", stressTests},
	}
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
