package progress

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watchedObject counts the looks of a watcher.
type watchedObject struct {
	watch   Watch
	looks   atomic.Int32
	again   atomic.Int32 // number of further looks that return true
	depends atomic.Bool
	look    func() // called in Look
	blind   bool   // Depends was called while Add did nothing for the object
}

func newWatchedObject() *watchedObject {
	o := &watchedObject{look: func() {}}
	o.watch.Init(o)
	return o
}

func (o *watchedObject) Look() bool {
	o.looks.Add(1)
	o.look()
	return o.again.Add(-1) >= 0
}

func (o *watchedObject) Depends() bool {
	if o.watch.on.Load() {
		o.blind = true
	}
	return o.depends.Load()
}

// expect waits for d and checks the number of looks since the last call.
func (o *watchedObject) expect(t *testing.T, d time.Duration, want int32) {
	t.Helper()
	time.Sleep(d) //nolint:forbidigo // simulated time
	synctest.Wait()
	if n := o.looks.Swap(0); n != want {
		t.Errorf("%d looks in %v, want %d", n, d, want)
	}
}

// TestWatcher: the watcher looks at an object once in each interval, while that depends on it or asks for another look.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		defer w.Close()
		o, other := newWatchedObject(), newWatchedObject()
		o.depends.Store(true)
		for range 2 { // an object that has left the list can come back
			for range 2 { // the second Add finds the object in the list
				if !w.Add(&o.watch) {
					t.Fatal("an open watcher refuses an object")
				}
			}
			o.expect(t, 5*WatchInterval+WatchInterval/2, 5)
			o.again.Store(3)
			o.depends.Store(false)
			o.expect(t, 10*WatchInterval, 4)
			if !w.Idle() {
				t.Error("a watcher with an empty list has a goroutine")
			}
			o.depends.Store(true)
		}
		w.Add(&o.watch)
		time.Sleep(WatchInterval / 2) //nolint:forbidigo // simulated time
		other.depends.Store(true)
		w.Add(&other.watch)
		other.expect(t, 3*WatchInterval, 3)
		o.depends.Store(false)
		o.looks.Store(0)
		o.expect(t, 3*WatchInterval, 1)
		other.expect(t, 0, 3)
	})
}

// TestWatcherAddDuringLook: an object that begins to depend on the watcher during a look stays in the list, although Add does nothing for an
// object that is in the list. When the watcher calls Depends, the object is not in the list, because a call of Add right after Depends must
// add it.
func TestWatcherAddDuringLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		defer w.Close()
		o := newWatchedObject()
		o.look = func() {
			if o.looks.Load() == 1 {
				o.depends.Store(true)
				w.Add(&o.watch)
			}
		}
		w.Add(&o.watch)
		o.expect(t, 3*WatchInterval+WatchInterval/2, 3)
		if o.blind {
			t.Error("an object that begins to depend on the watcher after Depends would be forgotten")
		}
	})
}

// TestWatcherClose: a closed watcher waits for a look that has begun, makes no further look, and refuses objects.
func TestWatcherClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		o, inLook := newWatchedObject(), false
		o.depends.Store(true)
		o.look = func() {
			inLook = true
			time.Sleep(10 * WatchInterval) //nolint:forbidigo // simulated time
			inLook = false
		}
		w.Add(&o.watch)
		time.Sleep(2 * WatchInterval) //nolint:forbidigo // simulated time
		w.Close()
		if inLook || !w.Idle() {
			t.Error("Close returned during a look")
		}
		o.expect(t, 5*WatchInterval, 1)
		if w.Add(&newWatchedObject().watch) {
			t.Error("a closed watcher accepts an object")
		}
		w.Close()
	})
	var unused Watcher
	unused.Close()
	if unused.Add(&newWatchedObject().watch) {
		t.Error("a watcher that was closed without a goroutine accepts an object")
	}
}

// TestWatcherRelieved: waiters that spin look at the object, and the goroutine does not look meanwhile. The goroutine looks again an interval
// after the last look of a waiter.
func TestWatcherRelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		defer w.Close()
		o := newWatchedObject()
		w.relieve(Now()) // without a goroutine there is nothing to look at
		o.depends.Store(true)
		w.Add(&o.watch)
		w.relieve(Now())
		o.expect(t, 0, 0)
		for range easedStep - 1 { // see TestWatcherEases for more
			time.Sleep(time.Duration(relieveAfter)) //nolint:forbidigo // simulated time
			w.relieve(Now())
			w.relieve(Now())
			o.expect(t, 0, 1)
		}
		o.expect(t, WatchInterval-1, 0)
		o.expect(t, 1, 1)
		o.expect(t, 3*WatchInterval, 3)

		o.depends.Store(false)
		time.Sleep(time.Duration(relieveAfter)) //nolint:forbidigo // simulated time
		w.relieve(Now())
		o.expect(t, 0, 1)
		o.depends.Store(true)
		w.Add(&o.watch) // before the goroutine has seen the empty list
		o.expect(t, 5*WatchInterval, 5)
		o.depends.Store(false)
		o.expect(t, 2*WatchInterval, 1)
		if !w.Idle() {
			t.Error("a watcher with an empty list has a goroutine")
		}
	})
}

// TestWatcherRelievedDuringLook: a look that a waiter makes delays neither another waiter nor the goroutine, and Close waits for its end.
func TestWatcherRelievedDuringLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		o, inLook := newWatchedObject(), atomic.Bool{}
		o.depends.Store(true)
		o.look = func() {
			inLook.Store(true)
			time.Sleep(10 * WatchInterval) //nolint:forbidigo // simulated time
			inLook.Store(false)
		}
		w.Add(&o.watch)
		time.Sleep(time.Duration(relieveAfter)) //nolint:forbidigo // simulated time
		go w.relieve(Now())
		o.expect(t, 5*WatchInterval, 1)
		w.relieve(Now())
		o.expect(t, 0, 0)
		w.Close()
		if inLook.Load() || !w.Idle() {
			t.Error("Close returned during a look of a waiter")
		}
		w.relieve(Now())
		o.expect(t, 5*WatchInterval, 0)
	})
}

// brokenAlarm is an alarm that fails at once.
type brokenAlarm struct{ stops atomic.Int32 }

func (*brokenAlarm) wait() bool            { return false }
func (*brokenAlarm) restart(time.Duration) {}
func (*brokenAlarm) pause()                {}
func (a *brokenAlarm) stop()               { a.stops.Add(1) }

// TestWatcherAlarmFails: the watcher replaces an alarm that fails, and looks at its object at each interval.
func TestWatcherAlarmFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		o, broken := newWatchedObject(), &brokenAlarm{}
		o.depends.Store(true)
		w.setAlarm(broken)
		w.Add(&o.watch)
		o.expect(t, 5*WatchInterval, 5)
		if n := broken.stops.Load(); n != 1 {
			t.Errorf("the alarm that has failed was stopped %d times", n)
		}
		w.Close()
		o.expect(t, 5*WatchInterval, 0)
	})
}

// setAlarm gives w an alarm before the first Add.
func (w *Watcher) setAlarm(a alarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alarm, w.loop = a, w.run
}

// countedAlarm counts the calls.
type countedAlarm struct {
	*ticks
	restarts, pauses, stops int
}

func (a *countedAlarm) restart(after time.Duration) { a.restarts++; a.ticks.restart(after) }
func (a *countedAlarm) pause()                      { a.pauses++; a.ticks.pause() }
func (a *countedAlarm) stop()                       { a.stops++; a.ticks.stop() }

// TestWatcherKeepsAlarm: the watcher has one alarm from the first Add to Close. The alarm pauses while the list is empty, and a waiter that ends its
// sweep then does not restart it.
func TestWatcherKeepsAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		o, a := newWatchedObject(), &countedAlarm{ticks: newTicks()}
		a.ticks.pause()
		w.setAlarm(a)
		for n := 1; n <= 3; n++ {
			w.Add(&o.watch)
			o.expect(t, 3*WatchInterval, 1)
			w.relieve(Now())
			w.putOff(Now()) // as after a sweep during which the goroutine has ended
			o.expect(t, 3*WatchInterval, 0)
			if a.restarts != n || a.pauses != n || a.stops != 0 || !w.Idle() {
				t.Errorf("after %d times with an object: %d restarts, %d pauses, %d stops", n, a.restarts, a.pauses, a.stops)
			}
		}
		w.Close()
		w.Close()
		w.putOff(Now())
		if a.restarts != 3 || a.stops != 1 {
			t.Errorf("after Close: %d restarts, %d stops", a.restarts, a.stops)
		}
	})
}

// TestWatcherEases: the longer waiters sweep, the less often they move the alarm. The sweep after their last one is late by the length of a move
// at most, and those after it come at each interval.
func TestWatcherEases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watcher
		o, a := newWatchedObject(), &countedAlarm{ticks: newTicks()}
		o.depends.Store(true)
		a.ticks.pause()
		w.setAlarm(a)
		w.Add(&o.watch)
		sweeps := func(n int) (restarts int) {
			t.Helper()
			before := a.restarts
			for range n {
				time.Sleep(time.Duration(relieveAfter)) //nolint:forbidigo // simulated time
				looks := o.looks.Load()
				w.relieve(Now())
				if o.looks.Load() != looks+1 {
					t.Fatal("a sweep that is due was not made by the waiter")
				}
			}
			synctest.Wait()
			return a.restarts - before
		}
		looks := o.looks.Load()
		if n := sweeps(4); n != 4 {
			t.Errorf("%d restarts of the alarm in the first 4 sweeps of waiters, want 4", n)
		}
		sweeps(100)
		if n := sweeps(100); n != 25 {
			t.Errorf("%d restarts of the alarm in 100 later sweeps of waiters, want 25", n)
		}
		if n := o.looks.Load() - looks; n != 204 {
			t.Errorf("%d looks in 204 sweeps of waiters: the goroutine has looked too", n)
		}
		looks, from := o.looks.Load(), time.Now()
		for o.looks.Load() == looks {
			time.Sleep(WatchInterval / 10) //nolint:forbidigo // simulated time
		}
		if d := time.Since(from); d > longestMove*WatchInterval {
			t.Errorf("the goroutine looked %v after the last waiter, limit %v", d, longestMove*WatchInterval)
		}
		o.looks.Store(0)
		o.expect(t, 5*WatchInterval, 5)
		if n := sweeps(1); n != 1 {
			t.Error("the first waiter after the goroutine has not moved the alarm")
		}
		for range longestMove { // the alarm ticks before each waiter
			o.looks.Store(0)
			for o.looks.Load() == 0 {
				time.Sleep(WatchInterval / 10) //nolint:forbidigo // simulated time
			}
			sweeps(1)
		}
		if n := sweeps(3); n != 0 {
			t.Errorf("%d restarts of the alarm in 3 sweeps of waiters that came too late for short moves, want 0", n)
		}
		w.Close()
	})
}

// TestWatcherAllocations: a list that is filled and emptied again allocates nothing, whether the alarm is one of the system or not.
func TestWatcherAllocations(t *testing.T) {
	for _, relieved := range []bool{false, true} {
		var w Watcher
		defer w.Close()
		w.relieved.Store(relieved)
		o := newWatchedObject()
		n := testing.AllocsPerRun(20, func() {
			w.Add(&o.watch)
			for !w.Idle() {
				runtime.Gosched()
			}
		})
		if n != 0 {
			t.Errorf("%v allocations for each time with an object (relieved: %t)", n, relieved)
		}
	}
}

// TestWatcherRelievedTooLate: a sweep after the end of the goroutine leaves swept 0. Otherwise relieve would take the lock of the watcher at each
// look of a waiter.
func TestWatcherRelievedTooLate(t *testing.T) {
	var w Watcher
	w.sweep(Now())
	if w.swept.Load() != 0 {
		t.Error("a watcher without a goroutine has a time of the last sweep")
	}
}

// TestSystemAlarm: an alarm of the system, where there is one, ticks no earlier than an interval after its begin or its last restart, and ends
// once it is stopped.
func TestSystemAlarm(t *testing.T) {
	a, err := newSystemAlarm()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	for range 5 {
		a.restart(WatchInterval)
		if !a.wait() {
			t.Fatal("an alarm that is not stopped has ended")
		}
	}
	if d := time.Since(from); d < 5*WatchInterval {
		t.Errorf("5 ticks, each after a restart, in %v", d)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for a.wait() {
		}
	}()
	a.stop()
	<-ended
	a.restart(WatchInterval)
	a.stop()
	if a.wait() {
		t.Error("a stopped alarm ticks")
	}
}

// TestClaim: a claim is quiet if no driver has come or waited for some looks, and ends once.
func TestClaim(t *testing.T) {
	var c Claim
	c.Drive()
	if c.Taken() || !c.Take() || c.Take() || !c.Taken() {
		t.Error("the first call of Take must take the claim, and no other call")
	}
	for range 2 {
		c.Drive()
		if c.Quiet(true, false) {
			t.Error("a claim is quiet at the first look after Drive")
		}
		if !c.Quiet(true, false) {
			t.Error("a claim is not quiet at the second look after Drive, although something waits")
		}
		if c.Quiet(true, true) {
			t.Error("a claim is quiet while a driver waits")
		}
		for look := 1; look <= unusedLooks+1; look++ {
			if quiet := c.Quiet(false, false); quiet != (look >= unusedLooks) {
				t.Errorf("at look %d without a driver quiet is %v", look, quiet)
			}
		}
	}
	if !c.End() || c.End() || c.Taken() {
		t.Error("the first call of End must free the claim, and no other call")
	}
}
