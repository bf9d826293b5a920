package oob

import (
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/leaktest"
)

// TestMain fails the package if a goroutine or a mapping is left behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(leaktest.Exit)) }
