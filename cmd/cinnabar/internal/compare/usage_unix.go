//go:build unix

package compare

import (
	"syscall"
	"time"
)

// readUsage reads the system's account of this process since its start.
func readUsage() usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return usage{} // cannot fail with these arguments; Known stays false if it does
	}
	return usage{
		Known:   true,
		Wakeups: int64(r.Nvcsw), //nolint:unconvert // has 32 bits on 32-bit systems
		CPU:     time.Duration(r.Utime.Nano() + r.Stime.Nano()),
	}
}
