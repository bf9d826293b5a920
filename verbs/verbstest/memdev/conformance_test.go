package memdev_test

import (
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/driver"
	"cinnabar/verbs/verbstest"
	"cinnabar/verbs/verbstest/memdev"
)

func open(t *testing.T, o verbstest.Options) *verbs.Device {
	t.Helper()
	if o.LockMemory {
		t.Skip("memory of this device is never locked")
	}
	var cfg memdev.Config
	if o.NoImmediates {
		cfg.Without |= driver.CapWriteImm | driver.CapSendImm
	}
	if o.NoAtomics {
		cfg.Without |= driver.CapAtomics
	}
	return verbs.NewDevice(memdev.Open(cfg))
}

func TestConformance(t *testing.T) { verbstest.TestDevice(t, open) }
