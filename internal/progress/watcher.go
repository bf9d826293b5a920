package progress

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
)

// WatchInterval is the interval between two looks of a [Watcher] at the same object.
const WatchInterval = time.Millisecond

// Watched is an object that a [Watcher] looks at. An object depends on the watcher while its [Claim] is taken, because the drivers may never
// call again, and while its background goroutine is in a task, because the task may take long.
type Watched interface {
	// Look ends a claim that no driver has used for some looks, and replaces a goroutine that is in the same task as at the last look. If Look returns true, the watcher looks again after WatchInterval, even if the
	// object does not depend on it at the moment. An object with traffic returns true, because it will depend on the watcher again soon. The
	// watcher holds no lock.
	Look() (again bool)
	// Depends reports whether the object depends on the watcher. The watcher holds its own lock, so Depends must not call Add.
	Depends() bool
}

// Watch is the place of one object in the list of a Watcher. It must not be copied after Init.
type Watch struct {
	of Watched
	on atomic.Bool // in Watcher.list; changed with Watcher.mu held
}

// Init sets the object. It must be called once, before [Watcher.Add].
func (x *Watch) Init(of Watched) { x.of = of }

// Watcher looks at a list of objects at intervals of [WatchInterval]. It has a goroutine only while the list is not empty. While waiters of a
// [Source] spin, and [Source.Relieve] was called with the Watcher, these waiters look at the objects in place of the goroutine, and restart the
// timer before it expires, because the goroutine would need a thread, and so the processor of a waiter, at each interval. A look at all objects
// is a sweep. The zero Watcher has an empty list. All methods are safe for concurrent use. A Watcher must not be copied.
//
// The first Add makes the timer, which has one descriptor if it is one of the kernel. Close releases the timer, and it pauses while the list is
// empty. A new timer for each list would cost allocations and system calls at each pause of the traffic, after which the list is empty.
type Watcher struct {
	wg sync.WaitGroup // its goroutine, and the waiters that make a sweep

	// relieved is true from the first Source.Relieve on, so that the alarm is one that waiters restart often.
	relieved atomic.Bool
	// swept is the value of Now at the last sweep; 0 while the watcher has no goroutine.
	swept    atomic.Int64
	sweeping atomic.Bool // true while a goroutine makes a sweep
	seen     []*Watch    // the objects of the sweep; only the goroutine that makes the sweep uses it

	mu invariants.Mutex
	// +checklocks:mu
	list []*Watch
	// running is true while there is a goroutine.
	// +checklocks:mu
	running bool
	// alarm is the timer of the goroutine; nil before the first Add and after Close. It runs only while running is true.
	// +checklocks:mu
	alarm alarm
	// due is a time, as by Now, before which the alarm does not expire.
	// +checklocks:mu
	due int64
	// waited is true if a waiter has made a sweep since the last tick of the alarm.
	// +checklocks:mu
	waited bool
	// eased counts the sweeps of waiters, up to easedMost. A tick of the alarm without such a sweep since the last tick resets it. Any other tick adds
	// easedStep, because waiters on a slow machine come after a short move has expired.
	// +checklocks:mu
	eased int64
	// loop is the method value run, made with alarm because each evaluation of a method value allocates.
	// +checklocks:mu
	loop func()
	// +checklocks:mu
	closed bool
}

// Follower is implemented by the completion queues of devices that read their connections by goroutines.
type Follower interface {
	// Follow makes the goroutines of the device that wait for input of the connections of the queue spin by policy p. Watcher w looks at the
	// connections, instead of a watcher of the device. A goroutine that polls the queue and makes the sweeps of w while it spins
	// ([Source.Relieve]) then makes those of the device too, so that the device needs no thread for them. Follow is called before a queue
	// pair of the queue connects. w is closed after the queue pairs, because nothing ends the claim of a connection in a closed watcher.
	Follow(p *Policy, w *Watcher)
}

// relieveAfter is the time since the last sweep after which a spinning waiter makes the next one. It is shorter than WatchInterval, so that
// waiters come before the timer.
const relieveAfter = int64(WatchInterval * 3 / 4)

// A waiter moves the alarm by one interval, and by one more for each easedStep that eased has reached, up to longestMove intervals. A move is a
// system call that sets the timer of the processor, which took 15 µs on a virtual machine and delayed the message for which the waiter waits.
// Because waiters sweep long before the alarm expires, a long move costs nothing while they go on. After the last of them has stopped, the next sweep may
// be late by the length of a move.
const (
	easedStep   = 8
	longestMove = 4
	easedMost   = easedStep * (longestMove - 1)
)

// alarm is the timer of a Watcher. wait is called by the watcher's goroutine. The other methods are called with the watcher's mu held.
type alarm interface {
	// wait returns true when WatchInterval has passed since the last return of wait, or when the time of a later restart has passed. It returns
	// false after stop, or if the alarm has failed.
	wait() bool
	// restart makes the alarm expire after this time, and then at each WatchInterval.
	restart(after time.Duration)
	// pause stops the alarm until restart, so that it wakes no thread.
	pause()
	// stop releases the alarm.
	stop()
}

// Add puts x into the list of the watcher, which looks at x until x does not depend on the watcher. The caller changes the object before Add,
// so that Depends returns true. Add returns false if the watcher is closed. The caller must then undo its change, because no look follows.
func (w *Watcher) Add(x *Watch) bool { return x.on.Load() || w.add(x) }

func (w *Watcher) add(x *Watch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case x.on.Load():
		return true
	case w.closed:
		return false
	}
	x.on.Store(true)
	w.list = append(w.list, x)
	if !w.running {
		w.startLocked()
	}
	return true
}

// startLocked starts the alarm and the goroutine.
//
// +checklocks:w.mu
func (w *Watcher) startLocked() {
	if w.alarm == nil {
		w.alarm, w.loop = newAlarm(w.relieved.Load()), w.run
	} else {
		w.alarm.restart(WatchInterval)
	}
	w.running = true
	w.waited, w.eased = false, 0
	w.due = Now()
	w.swept.Store(w.due)
	w.wg.Add(1)
	go w.loop() // not wg.Go, which allocates
}

// run sweeps at each tick until the list is empty or the watcher is closed. A sweep that lasts longer than the interval delays the next one.
func (w *Watcher) run() {
	defer w.wg.Done()
	for a := w.presentAlarm(); a != nil; {
		if !a.wait() {
			a = w.replaceAlarm()
			continue
		}
		if w.sweeping.CompareAndSwap(false, true) { // otherwise a waiter sweeps
			w.sweep(Now())
			w.sweeping.Store(false)
		}
		if w.expired() {
			return
		}
	}
}

// presentAlarm returns the alarm, or nil if the watcher is closed.
func (w *Watcher) presentAlarm() alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	return w.alarm
}

// replaceAlarm sets and returns an alarm of Go's timers in the place of one that has failed, such as a timer of the kernel that Go's poller
// could not register. It returns nil if the watcher is closed.
func (w *Watcher) replaceAlarm() alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.alarm.stop()
	w.alarm = newTicks()
	return w.alarm
}

// relieve makes a sweep if one is due at the time now, and moves the alarm. Spinning waiters, which hold no lock, call relieve.
func (w *Watcher) relieve(now int64) {
	if swept := w.swept.Load(); swept == 0 || now-swept < relieveAfter || !w.sweeping.CompareAndSwap(false, true) {
		return
	}
	defer w.sweeping.Store(false)
	if !w.enter() {
		return
	}
	defer w.wg.Done()
	w.sweep(now)
	w.putOff(now)
}

// enter counts a waiter in wg, or returns false if the watcher has no goroutine, or is closed.
func (w *Watcher) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.running {
		return false
	}
	w.wg.Add(1)
	return true
}

// putOff moves the alarm after the sweep that a waiter has made at the time now, unless it expires later than WatchInterval after now in any case. putOff does
// nothing if the goroutine has ended during the sweep, because the alarm of an idle watcher must not run.
func (w *Watcher) putOff(now int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.running {
		return
	}
	w.waited, w.eased = true, min(w.eased+1, easedMost)
	if w.due-now > int64(WatchInterval) {
		return
	}
	after := WatchInterval * time.Duration(1+w.eased/easedStep)
	w.due = now + int64(after)
	w.alarm.restart(after)
}

// sweep looks at each object at the time now, unless the watcher has no goroutine or is closed. The caller has set sweeping.
func (w *Watcher) sweep(now int64) {
	w.mu.Lock()
	if w.closed || !w.running { // after enter the goroutine may have found the list empty and ended
		w.mu.Unlock()
		return
	}
	w.swept.Store(now)
	w.seen = append(w.seen[:0], w.list...)
	w.mu.Unlock()
	for i, x := range w.seen {
		if x.of.Look() {
			w.seen[i] = nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.seen {
		if x != nil {
			x.on.Store(false) // before Depends, because Add does nothing while on is true, and the object may change after Depends
			x.on.Store(x.of.Depends())
		}
	}
	clear(w.seen)
	w.list = slices.DeleteFunc(w.list, func(x *Watch) bool { return !x.on.Load() })
}

// expired is called after each tick of the alarm. It reports whether the list is empty, so that the goroutine ends. If so, the alarm pauses,
// and the next Add starts another goroutine.
func (w *Watcher) expired() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waited {
		w.waited, w.eased = false, min(w.eased+easedStep, easedMost)
	} else {
		w.eased = 0
	}
	if len(w.list) > 0 {
		return false
	}
	w.swept.Store(0)
	w.running = false
	if !w.closed { // otherwise Close has stopped the alarm
		w.alarm.pause()
	}
	return true
}

// Idle reports whether the watcher has no goroutine, because its list is empty.
func (w *Watcher) Idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.running
}

// Close stops the watcher, waits for its goroutine and for a sweep that a waiter has begun, and empties the list, so that a closed Watcher does
// not keep the memory of an object. Look must not call Close. Further calls do nothing.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	if w.alarm != nil {
		w.alarm.stop()
	}
	w.mu.Unlock()
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list, w.seen, w.running, w.alarm, w.loop = nil, nil, false, nil, nil
	w.swept.Store(0)
}

// ticks is an alarm with a timer of Go's runtime. A thread of the process wakes at each interval, even if restart has moved the next tick.
type ticks struct {
	ticker  *time.Ticker
	moved   atomic.Bool // the ticker has an interval other than WatchInterval
	stopped chan struct{}
	once    sync.Once
}

func newTicks() *ticks {
	return &ticks{ticker: time.NewTicker(WatchInterval), stopped: make(chan struct{})}
}

func (t *ticks) wait() bool {
	select {
	case <-t.ticker.C:
		if t.moved.CompareAndSwap(true, false) {
			t.ticker.Reset(WatchInterval)
		}
		return true
	case <-t.stopped:
		return false
	}
}

func (t *ticks) restart(after time.Duration) {
	t.moved.Store(after != WatchInterval)
	t.ticker.Reset(after)
}

func (t *ticks) pause() { t.ticker.Stop() }

func (t *ticks) stop() {
	t.once.Do(func() { close(t.stopped) })
	t.ticker.Stop()
}

// newAlarm returns an alarm that has begun. If putOff is true, newAlarm prefers an alarm that wakes no thread while restart is called before each
// expiry, if the system has one.
func newAlarm(putOff bool) alarm {
	if putOff {
		if a, err := newSystemAlarm(); err == nil {
			return a
		}
	}
	return newTicks()
}
