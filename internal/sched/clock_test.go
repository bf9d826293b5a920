package sched

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestClock asks a clock often, and then seldom: it is exact when it has rested, and at most a tick late otherwise.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		for _, pause := range []time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second, 250 * time.Millisecond} {
			for i := range 300 {
				now, exact := c.Now(), c.Exact()
				if late := exact - now; late < 0 || late > clockTick || i > 0 && pause > 2*clockTick && late != 0 {
					t.Fatalf("asked each %v: %v late", pause, late)
				}
				elapse(pause)
			}
		}
		elapse(2 * clockTick)
		if s := c.state.Load(); s != clockResting {
			t.Errorf("state %d of a clock that nobody asks", s)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.timer.Stop() {
			t.Error("a clock that nobody asks has a timer")
		}
	})
}

// TestClockRace asks from many goroutines while ticks come.
func TestClockRace(t *testing.T) {
	c := NewClock()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10000 {
				if now := c.Now(); now > c.Exact() {
					t.Errorf("%v is yet to come", now)
					return
				}
			}
		})
	}
	for range 100 {
		c.tick()
	}
	wg.Wait()
}

// BenchmarkClock measures what it costs to ask.
func BenchmarkClock(b *testing.B) {
	c := NewClock()
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}
