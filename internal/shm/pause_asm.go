//go:build amd64 || arm64

package shm

// Pause waits for n times some tens of nanoseconds by the processor's instruction for loops that wait for memory to change.
//
//go:noescape
func Pause(n uint32)
