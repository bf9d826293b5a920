package verbs_test

import (
	"testing"

	"go.uber.org/goleak"

	"cinnabar/verbs/internal/rig"
)

// TestMain fails the package if a goroutine or a mapping is left behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(rig.Exit)) }
