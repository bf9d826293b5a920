//go:build !amd64 && !arm64

package shm

// Pause does nothing on this processor.
func Pause(uint32) {}
