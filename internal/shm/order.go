//go:build !race

package shm

// Publish orders the accesses of this goroutine so far before those that follow a later [Observe], for the race detector. It does
// nothing in this build, which has no detector.
func Publish() {}

// Observe is the other half of [Publish].
func Observe() {}
