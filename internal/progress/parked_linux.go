package progress

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// parkedThreads knows, for each thread that has run a delayed goroutine, how often the thread had parked by then.
var parkedThreads struct {
	mu sync.Mutex
	// +checklocks:mu
	parks map[int]int64 // by the number of the thread
}

// threadParked reports whether the thread of the caller has parked since it last called this function, or calls it for the first time. The
// kernel counts a voluntary switch when a thread parks, and an involuntary one when it is preempted or yields.
func threadParked() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		return true
	}
	id := unix.Gettid()
	parkedThreads.mu.Lock()
	defer parkedThreads.mu.Unlock()
	if parkedThreads.parks == nil {
		parkedThreads.parks = make(map[int]int64)
	}
	before, known := parkedThreads.parks[id]
	parkedThreads.parks[id] = usage.Nvcsw
	return !known || usage.Nvcsw != before
}
