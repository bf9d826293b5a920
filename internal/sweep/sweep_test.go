package sweep

import (
	"testing"
	"testing/synctest"
	"time"
)

// Run calls its function once in each interval until the function returns false.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		Run(time.Second, nil, func() bool {
			calls++
			return calls < 3
		})
		if took := time.Since(start); calls != 3 || took != 3*time.Second {
			t.Errorf("%d calls in %v, want 3 in 3s", calls, took)
		}
	})
}

// Run returns when its channel is closed, without another call.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, stop := 0, make(chan struct{})
		time.AfterFunc(2500*time.Millisecond, func() { close(stop) })
		Run(time.Second, stop, func() bool {
			calls++
			return true
		})
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}
