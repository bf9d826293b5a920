package iwarp_test

import (
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// processorTime is what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// TestIdleCostsNothing: connections on which nothing happens use no processor time,
// whether their programs have polled or wait.
func TestIdleCostsNothing(t *testing.T) {
	const idle = 300 * time.Millisecond
	wc := make([]verbs.WC, 1)
	for range 4 {
		a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
		mr := a.region(t, 64)
		b.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.region(t, 64).SGE(0, 64)}})
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 64)}})
		spinQuietly(t, wc, b)
		a.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
		if err := a.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		if n, err := a.cq.Poll(wc); n != 0 || err != nil {
			t.Fatalf("%d completions, error %v", n, err)
		}
	}
	debug.FreeOSMemory()                           // because Go's runtime would otherwise free the memory of earlier tests meanwhile
	settle := time.NewTimer(50 * time.Millisecond) // for the polling to count as stopped
	<-settle.C
	var used [3]time.Duration // the runtime and the kernel may still do work of earlier tests in one of them; connections would use time in all
	for i := range used {
		before := processorTime(t)
		timer := time.NewTimer(idle)
		<-timer.C
		if used[i] = processorTime(t) - before; used[i] <= idle/10 {
			return
		}
	}
	t.Errorf("%v of processor time in %v each of doing nothing", used, idle)
}
