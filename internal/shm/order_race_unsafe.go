//go:build race

package shm

import (
	"runtime"
	"unsafe"
)

// order stands for all regions at once, as a variable of the same purpose in package syscall does for files: the
// detector then orders every Observe after every earlier Publish, which hides races but invents none.
var order byte

// Publish orders the accesses of this goroutine so far before those that follow a later [Observe], for the race detector.
func Publish() { runtime.RaceReleaseMerge(unsafe.Pointer(&order)) }

// Observe is the other half of [Publish].
func Observe() { runtime.RaceAcquire(unsafe.Pointer(&order)) }
