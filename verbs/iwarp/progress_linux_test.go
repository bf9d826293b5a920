package iwarp_test

import (
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
	settle := time.NewTimer(50 * time.Millisecond) // for the polling to count as stopped
	<-settle.C
	before := processorTime(t)
	timer := time.NewTimer(idle)
	<-timer.C
	if used := processorTime(t) - before; used > idle/10 {
		t.Errorf("%v of processor time in %v of doing nothing", used, idle)
	}
}
