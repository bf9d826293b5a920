package verbstest

import (
	"os"
	"runtime"
	"testing"
	"time"

	"cinnabar/internal/hostmem"
)

// settleTime bounds the wait for goroutines that have said that they are done
// to be gone from the runtime's count.
const settleTime = 2 * time.Second

// resources counts the resources that a test must give back.
type resources struct {
	goroutines int
	fds        int // -1 where they cannot be counted
	mappings   int64
}

func countResources() resources {
	r := resources{goroutines: runtime.NumGoroutine(), fds: -1, mappings: hostmem.Mapped()}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		r.fds = len(list)
	}
	return r
}

// within reports whether r has nothing that before had not.
func (r resources) within(before resources) bool {
	return r.goroutines <= before.goroutines && r.fds <= before.fds && r.mappings <= before.mappings
}

// checkLeaks compares the resources in use now with those in use when all other
// cleanups of the test have run.
func checkLeaks(t *testing.T) {
	t.Helper()
	// The runtime's poller opens its descriptors at the first use; let a pipe do it.
	if r, w, err := os.Pipe(); err == nil {
		_ = r.SetDeadline(time.Now())
		closeAll(t, "pipe", r.Close, w.Close)
	}
	before := countResources()
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		after := countResources()
		for end := time.Now().Add(settleTime); !after.within(before) && time.Now().Before(end); after = countResources() {
			runtime.Gosched()
		}
		if !after.within(before) {
			buf := make([]byte, 1<<16)
			t.Errorf("left behind: %+v, was %+v\n%s", after, before, buf[:runtime.Stack(buf, true)])
		}
	})
}
