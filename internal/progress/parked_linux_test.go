package progress

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// parkThread parks the thread of the caller for a millisecond.
func parkThread(t *testing.T) {
	if _, err := unix.Poll(nil, 1); err != nil {
		t.Fatal(err)
	}
}

// A thread that has not parked since the last look is not delayed again.
func TestThreadParked(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 3 {
		parkThread(t)
		if !threadParked() {
			t.Error("a thread that has parked counts as one that has not")
		}
	}
	running := 0
	for range 100 {
		if !threadParked() {
			running++
		}
	}
	if running < 50 { // the kernel may park the thread now and then, for a page of memory
		t.Errorf("a thread that did not park counts as running at %d of 100 looks", running)
	}
}
