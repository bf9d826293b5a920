package iwarp_test

import (
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest"
)

func openForSuite(t *testing.T, o verbstest.Options) *verbs.Device {
	t.Helper()
	dev, err := iwarp.Open(iwarp.Config{
		ConfirmWrites: o.ConfirmWrites,
		NoImmediates:  o.NoImmediates,
		NoAtomics:     o.NoAtomics,
		LockMemory:    o.LockMemory,
		DeniedLimit:   -1, // the suite guesses keys from one host
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return dev
}

// TestConformance runs the suite that every device must pass.
func TestConformance(t *testing.T) { verbstest.TestDevice(t, openForSuite) }
