package iwarp

import (
	"slices"
	"sync"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/sockio"
)

// hostTurns lets the requests of new connections go on one at a time, each after the established connections have been served.
// Hosts take turns, so a host that sends many requests at once delays the request of another host by one of them.
type hostTurns struct {
	turn *sockio.Turn
	wg   *sync.WaitGroup // counts the goroutine of dispatch; callers of wait are counted by their caller

	mu sync.Mutex
	// +checklocks:mu
	waiting map[hostquota.Host][]chan struct{}
	// hosts with waiting requests, the next one first
	// +checklocks:mu
	order []hostquota.Host
	// whether the goroutine of dispatch runs
	// +checklocks:mu
	running bool
}

// waitUnless waits for the turn of this request of h, and returns true then, and soon if turn is closed. It returns false if gone is closed before,
// because a request that was given up would otherwise hold memory until its turn, and a host may give up requests faster than it has turns.
func (t *hostTurns) waitUnless(h hostquota.Host, gone <-chan struct{}) bool {
	mine := make(chan struct{})
	t.mu.Lock()
	t.addLocked(h, mine)
	if !t.running {
		t.running = true
		t.wg.Go(t.dispatch)
	}
	t.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-gone:
		t.remove(h, mine)
		return false
	}
}

// remove removes a request of h, if it waits.
func (t *hostTurns) remove(h hostquota.Host, mine chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.waiting[h]
	i := slices.Index(q, mine)
	switch {
	case i < 0: // its turn has come meanwhile
	case len(q) > 1:
		t.waiting[h] = slices.Delete(q, i, i+1)
	default:
		delete(t.waiting, h)
		t.order = slices.DeleteFunc(t.order, func(o hostquota.Host) bool { return o == h })
	}
}

// +checklocks:t.mu
func (t *hostTurns) addLocked(h hostquota.Host, mine chan struct{}) {
	if t.waiting == nil {
		t.waiting = map[hostquota.Host][]chan struct{}{}
	}
	if len(t.waiting[h]) == 0 {
		t.order = append(t.order, h)
	}
	t.waiting[h] = append(t.waiting[h], mine)
}

// dispatch lets one request after the other go on until none waits.
func (t *hostTurns) dispatch() {
	for {
		t.turn.Wait()
		t.mu.Lock()
		next := t.nextLocked()
		t.running = next != nil
		t.mu.Unlock()
		if next == nil {
			return
		}
		close(next)
	}
}

// nextLocked removes and returns the next request, nil if none waits.
//
// +checklocks:t.mu
func (t *hostTurns) nextLocked() chan struct{} {
	if len(t.order) == 0 {
		return nil
	}
	h := t.order[0]
	t.order = t.order[1:]
	q := t.waiting[h]
	if len(q) > 1 {
		t.waiting[h] = q[1:]
		t.order = append(t.order, h)
	} else {
		delete(t.waiting, h)
	}
	return q[0]
}
