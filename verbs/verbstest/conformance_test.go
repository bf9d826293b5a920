package verbstest_test

import (
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
	"cinnabar/verbs/verbstest/memdev"
)

func openMemory(t *testing.T, o verbstest.Options) *verbs.Device {
	t.Helper()
	if o.LockMemory {
		t.Skip("memory of this device is never locked")
	}
	var cfg memdev.Config
	if o.NoImmediates {
		cfg.Without |= verbs.CapWriteImm | verbs.CapSendImm
	}
	if o.NoAtomics {
		cfg.Without |= verbs.CapAtomics
	}
	return verbs.NewDevice(memdev.Open(cfg))
}

// TestConformance runs the suite on the device in memory: without sockets and
// goroutines below, what fails here is the suite's fault or package verbs'.
func TestConformance(t *testing.T) { verbstest.TestDevice(t, openMemory) }
