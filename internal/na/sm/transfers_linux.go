package sm

import (
	"runtime"
	"sync"

	"cinnabar/internal/na"
)

// transfers runs the Gets and Puts of an endpoint: small ones on the goroutines that start them, others on a few workers, so that a
// long one neither delays progress nor has a thread of its own.
type transfers struct {
	mu sync.Mutex
	// moves holds the transfers that the kernel or this process moves.
	// +checklocks:mu
	moves lane
	// relays holds the transfers that relays of peers move, by peer, because a peer may take any time.
	// +checklocks:mu
	relays map[identity]*lane
	// running holds the transfers that workers have taken.
	// +checklocks:mu
	running map[*transfer]struct{}
	// blocking counts the long transfers that run on the goroutines that started them.
	// +checklocks:mu
	blocking int
	// +checklocks:mu
	closed bool

	links   relayLinks
	windows windows

	wg sync.WaitGroup // of the workers, and of transfers where they were started
}

// lane is a list of transfers that no worker has taken, and its workers. All of it is guarded by transfers.mu.
type lane struct {
	limit       int // workers
	workers     int
	first, last *transfer
}

// maxWorkers bounds the workers for transfers without a relay. More of them than processors gain nothing, and each occupies a thread.
const maxWorkers = 4

// maxLinks bounds the transfers under way with the relay of one peer. Each has a connection, but no thread.
const maxLinks = 4

func (ts *transfers) init() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.moves.limit = min(maxWorkers, runtime.GOMAXPROCS(0))
	ts.relays = make(map[identity]*lane)
	ts.running = make(map[*transfer]struct{})
}

// add appends t to the list.
func (l *lane) add(t *transfer) {
	if l.first == nil {
		l.first = t
	} else {
		l.last.next = t
	}
	l.last = t
}

// take takes the first transfer off the list, nil if there is none.
func (l *lane) take() *transfer {
	t := l.first
	if t != nil {
		l.first, t.next = t.next, nil
	}
	return t
}

// remove takes the transfer of op off the list, nil if it is not there.
func (l *lane) remove(op *na.Op) *transfer {
	var before *transfer
	for t := l.first; t != nil; before, t = t, t.next {
		if t.op != op {
			continue
		}
		if before == nil {
			l.first = t.next
		} else {
			before.next = t.next
		}
		if l.last == t {
			l.last = before
		}
		t.next = nil
		return t
	}
	return nil
}

// start runs t, or leaves it to a worker.
func (ts *transfers) start(t *transfer) {
	if !ts.enter() {
		t.finish(&na.Error{Kind: na.Closed})
		return
	}
	t.win = ts.windows.windowFor(t)
	long := t.total > t.inline()
	if t.win == nil && joint.receivesFrom(t.to) || long && !ts.mayBlock(t) {
		ts.enqueue(t)
		ts.wg.Done()
		return
	}
	err := ts.runHere(t)
	if long {
		ts.blocked()
	}
	ts.wg.Done()
	if t.tryRelay(err) {
		ts.enqueue(t)
		return
	}
	t.finish(err)
}

// mayBlock reports whether t, which is long, may run on the goroutine that starts it: if that goroutine does nothing else in the
// meantime, and there are no more such transfers than there would be workers. If so, the caller calls blocked afterwards.
func (ts *transfers) mayBlock(t *transfer) bool {
	if !t.op.Blocking || t.total > blockingBytes || t.byRelay() {
		return false
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.blocking+ts.moves.workers >= ts.moves.limit {
		return false
	}
	ts.blocking++
	return true
}

func (ts *transfers) blocked() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.blocking--
}

// inline returns the largest size of a transfer that always runs on the goroutine that starts it.
func (t *transfer) inline() uint64 {
	switch {
	case t.win != nil:
		return inlineMapped
	case t.byRelay():
		return 0
	}
	return inlineBytes
}

// runHere runs t on the goroutine that starts it.
func (ts *transfers) runHere(t *transfer) error {
	if t.win == nil {
		return t.run(callBytes)
	}
	defer ts.leave(t)
	return t.runMapped(t.win)
}

// leave ends the use of a window by t.
func (ts *transfers) leave(t *transfer) {
	ts.windows.release(t.win)
	t.win = nil
}

// enter counts a transfer that runs on the goroutine that starts it. It returns false if the endpoint is closed.
func (ts *transfers) enter() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if !ts.closed {
		ts.wg.Add(1)
	}
	return !ts.closed
}

// enqueue leaves t to a worker, or completes it if the endpoint is closed.
func (ts *transfers) enqueue(t *transfer) {
	ts.mu.Lock()
	if ts.closed {
		ts.mu.Unlock()
		ts.refuse(t, na.Closed)
		return
	}
	defer ts.mu.Unlock()
	ts.enqueueLocked(t)
}

// enqueueLocked leaves t to a worker of its lane, and starts another worker if the limit allows it.
//
// +checklocks:ts.mu
func (ts *transfers) enqueueLocked(t *transfer) {
	l := &ts.moves
	if t.byRelay() {
		if l = ts.relays[t.to.ident]; l == nil {
			l = &lane{limit: maxLinks}
			ts.relays[t.to.ident] = l
		}
	}
	l.add(t)
	if l.workers < l.limit {
		l.workers++
		ident := t.to.ident
		ts.wg.Go(func() { ts.work(l, ident) })
	}
}

// refuse completes t, which has not begun, with an error.
func (ts *transfers) refuse(t *transfer, kind na.Kind) {
	if t.win != nil {
		ts.leave(t)
	}
	t.finish(&na.Error{Kind: kind})
}

// work runs transfers of a lane until none is left. ident is the peer of a lane of relays.
func (ts *transfers) work(l *lane, ident identity) {
	for t := ts.next(l, ident); t != nil; t = ts.next(l, ident) {
		if err := ts.run(t); !ts.again(t, err) {
			t.finish(err)
		}
	}
}

// run runs t by a window, a relay, or the kernel.
func (ts *transfers) run(t *transfer) error {
	switch {
	case t.win != nil:
		defer ts.leave(t)
		return t.runMapped(t.win)
	case t.byRelay():
		return t.relay(&ts.links)
	}
	return t.run(callBytes)
}

// again ends a worker's use of t, and leaves t to the peer's relay if err is the kernel's refusal. Otherwise it returns false, and the
// caller owns t.
func (ts *transfers) again(t *transfer, err error) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.running, t)
	if !t.tryRelay(err) {
		return false
	}
	ts.enqueueLocked(t) // in one critical section, so that Cancel and Close find t in running or in the lane
	return true
}

// next takes a transfer off a lane. It returns nil if there is none, and the worker then ends.
func (ts *transfers) next(l *lane, ident identity) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := l.take()
	if t != nil {
		ts.running[t] = struct{}{}
		return t
	}
	l.workers--
	if l.workers == 0 && ts.relays[ident] == l {
		delete(ts.relays, ident)
	}
	return nil
}

// cancel cancels op if it is a transfer that is not complete, and reports whether it is one. A running transfer ends after the system
// call that is under way.
func (ts *transfers) cancel(op *na.Op) bool {
	t, running := ts.find(op)
	if t != nil && !running {
		ts.refuse(t, na.Canceled)
	}
	return t != nil
}

// find returns the transfer of op, nil if there is none. It makes a running one end, and takes another one off its list.
func (ts *transfers) find(op *na.Op) (t *transfer, running bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.running {
		if t.op == op {
			t.end(na.Canceled)
			return t, true
		}
	}
	if t := ts.moves.remove(op); t != nil {
		return t, false
	}
	for _, l := range ts.relays {
		if t := l.remove(op); t != nil {
			return t, false
		}
	}
	return nil, false
}

// close ends all transfers with kind Closed and waits until none accesses memory any more.
func (ts *transfers) close() {
	for _, t := range ts.stop() {
		ts.refuse(t, na.Closed)
	}
	ts.wg.Wait()
	ts.links.close()
	ts.windows.close()
}

// stop prevents further transfers, makes running ones end, and returns those that have not begun.
func (ts *transfers) stop() (waiting []*transfer) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	for t := range ts.running {
		t.end(na.Closed)
	}
	for t := ts.moves.take(); t != nil; t = ts.moves.take() {
		waiting = append(waiting, t)
	}
	for _, l := range ts.relays {
		for t := l.take(); t != nil; t = l.take() {
			waiting = append(waiting, t)
		}
	}
	return waiting
}
