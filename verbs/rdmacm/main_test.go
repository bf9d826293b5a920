package rdmacm

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"cinnabar/internal/hostmem"
)

// TestMain fails the package if a goroutine or a mapping is left behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := hostmem.Mapped(); n != 0 && code == 0 {
			_, _ = os.Stderr.WriteString("mappings left behind\n")
			code = 1
		}
		os.Exit(code)
	}))
}
