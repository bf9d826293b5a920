//go:build linux && race

package sockio

import (
	"runtime"
	"unsafe"
)

// ioOrder stands for all connections at once, as the variable of the same
// purpose in package syscall does: the detector then orders every read after
// every earlier write, which hides races but invents none.
var ioOrder byte

// orderWrite orders the accesses of this goroutine so far before those that follow a later orderRead, for the race detector.
func orderWrite() { runtime.RaceReleaseMerge(unsafe.Pointer(&ioOrder)) }

// orderRead is the other half of orderWrite.
func orderRead() { runtime.RaceAcquire(unsafe.Pointer(&ioOrder)) }
