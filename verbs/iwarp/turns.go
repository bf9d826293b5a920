package iwarp

import (
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

// wait returns when it is the turn of this request of h, and soon if turn is closed.
func (t *hostTurns) wait(h hostquota.Host) {
	mine := make(chan struct{})
	t.mu.Lock()
	t.addLocked(h, mine)
	if !t.running {
		t.running = true
		t.wg.Go(t.dispatch)
	}
	t.mu.Unlock()
	<-mine
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
