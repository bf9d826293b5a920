//go:build amd64 || arm64

package shm

// Pause spends a moment, n times some tens of nanoseconds, telling the processor that this is a loop that waits for
// memory to change.
//
//go:noescape
func Pause(n uint32)
