package iwarp

import (
	"sync"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/sockio"
)

// hostTurns lets requests on new connections go on one at a time: each after the established connections have had their
// turn, and hosts in turn, so that a host that sends many requests at once delays others by one of them only.
type hostTurns struct {
	turn *sockio.Turn
	wg   *sync.WaitGroup // counts dispatch; the caller of wait is counted too

	mu sync.Mutex
	// +checklocks:mu
	waiting map[hostquota.Host][]chan struct{}
	// the hosts that wait, the next first
	// +checklocks:mu
	order []hostquota.Host
	// dispatch runs
	// +checklocks:mu
	running bool
}

// wait returns when it is the turn of a request of h. After the end of turn it returns soon.
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

// dispatch gives turns until nothing waits.
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

// nextLocked removes the request whose turn it is, nil if none waits.
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
