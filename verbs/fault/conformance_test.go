package fault_test

import (
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest"
	"cinnabar/verbs/verbstest/memdev"
)

// quiet puts a layer that injects nothing around a device.
func quiet(t *testing.T, dev *verbs.Device) *verbs.Device {
	t.Helper()
	in, err := fault.New(fault.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	return in.Wrap(dev)
}

// skipUnfit skips what a layer that keeps books cannot promise.
func skipUnfit(t *testing.T, o verbstest.Options) {
	t.Helper()
	if o.NoAllocs {
		t.Skip("the layer allocates for its books")
	}
}

// TestConformanceOverMemory runs the suite of devices on the layer: a device that
// is prepared to fail, and does not, must be a device like any other.
func TestConformanceOverMemory(t *testing.T) {
	verbstest.TestDevice(t, func(t *testing.T, o verbstest.Options) *verbs.Device {
		skipUnfit(t, o)
		if o.LockMemory {
			t.Skip("memory of the device below is never locked")
		}
		var cfg memdev.Config
		if o.NoImmediates {
			cfg.Without |= verbs.CapWriteImm | verbs.CapSendImm
		}
		if o.NoAtomics {
			cfg.Without |= verbs.CapAtomics
		}
		return quiet(t, verbs.NewDevice(memdev.Open(cfg)))
	})
}

// TestConformanceOverIWARP does the same above a device with goroutines and
// sockets of its own.
// parity: Y11
func TestConformanceOverIWARP(t *testing.T) {
	verbstest.TestDevice(t, func(t *testing.T, o verbstest.Options) *verbs.Device {
		skipUnfit(t, o)
		dev, err := iwarp.Open(iwarp.Config{ConfirmWrites: o.ConfirmWrites, NoImmediates: o.NoImmediates, DeniedLimit: -1, // the suite guesses keys from one host
			NoAtomics: o.NoAtomics, LockMemory: o.LockMemory})
		if err != nil {
			t.Fatal(err)
		}
		return quiet(t, dev)
	})
}
