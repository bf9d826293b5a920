//go:build unix

package main

import (
	"syscall"
	"time"
)

// processUsage reads what the operating system charged this process with so far.
func processUsage() usage {
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
