package progress

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestPausedTimer: the timer of the kernel does not run between pause and restart.
func TestPausedTimer(t *testing.T) {
	a, err := newSystemAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.stop()
	runs := func() bool {
		var spec unix.ItimerSpec
		if cerr := a.(*timerfd).raw.Control(func(fd uintptr) { err = unix.TimerfdGettime(int(fd), &spec) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		return spec != unix.ItimerSpec{}
	}
	if !runs() {
		t.Error("a new timer does not run")
	}
	for range 2 {
		a.pause()
		if runs() {
			t.Error("a paused timer runs")
		}
		a.restart(WatchInterval)
		if !runs() || !a.wait() {
			t.Error("a restarted timer does not run")
		}
	}
}
