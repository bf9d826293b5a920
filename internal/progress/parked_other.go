//go:build !linux

package progress

// threadParked is true for each wake-up, because only on Linux a thread can learn how often it has parked.
func threadParked() bool { return true }
