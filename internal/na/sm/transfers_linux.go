package sm

import (
	"runtime"
	"sync"

	"cinnabar/internal/na"
)

// transfers runs the Gets and Puts of an endpoint: small ones where they are started, others on a few workers, so that a
// long one neither holds up progress nor takes a thread of its own.
type transfers struct {
	mu sync.Mutex
	// moves are those that need nobody else: the kernel moves them, or this process does.
	// +checklocks:mu
	moves lane
	// relays are those that peers serve, each of whom may take its time, or for ever.
	// +checklocks:mu
	relays map[identity]*lane
	// running are those of workers.
	// +checklocks:mu
	running map[*transfer]struct{}
	// blocking counts long ones that are done where they were started.
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

// maxWorkers is how many transfers are under way at most that were not done where they were started: more than there
// are processors gain nothing, and each takes a thread.
const maxWorkers = 4

// maxLinks is how many transfers are under way at most that one peer serves. They take no thread, but a connection.
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

// start runs t, or has it run soon.
func (ts *transfers) start(t *transfer) {
	if !ts.enter() {
		t.finish(&na.Error{Kind: na.Closed})
		return
	}
	t.win = ts.windows.windowFor(t)
	long := t.total > t.inline()
	if long && !ts.mayBlock(t) {
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

// mayBlock tells whether t, which is long, is done where it is started: if its starter does nothing else meanwhile, and
// there are no more such than there would be workers. Then it is to call blocked behind it.
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

// inline is up to which size the goroutine that starts a transfer moves it itself in any case.
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

// leave ends t's use of its window.
func (ts *transfers) leave(t *transfer) {
	ts.windows.release(t.win)
	t.win = nil
}

// enter begins a transfer outside the workers; false: the endpoint is closed.
func (ts *transfers) enter() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if !ts.closed {
		ts.wg.Add(1)
	}
	return !ts.closed
}

// enqueue leaves t to a worker.
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

// enqueueLocked leaves t to a worker of its lane, and starts one if there may be another.
//
// +checklocks:ts.mu
func (ts *transfers) enqueueLocked(t *transfer) {
	l := &ts.moves
	if t.byRelay() {
		if l = ts.relays[t.to.who]; l == nil {
			l = &lane{limit: maxLinks}
			ts.relays[t.to.who] = l
		}
	}
	l.add(t)
	if l.workers < l.limit {
		l.workers++
		who := t.to.who
		ts.wg.Go(func() { ts.work(l, who) })
	}
}

// refuse ends t, which has not begun.
func (ts *transfers) refuse(t *transfer, kind na.Kind) {
	if t.win != nil {
		ts.leave(t)
	}
	t.finish(&na.Error{Kind: kind})
}

// work runs transfers of a lane until none is left. who is the peer, if it is a peer's.
func (ts *transfers) work(l *lane, who identity) {
	for t := ts.next(l, who); t != nil; t = ts.next(l, who) {
		if err := ts.run(t); !ts.again(t, err) {
			t.finish(err)
		}
	}
}

// run runs t in one of the three ways that there are.
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

// again ends a worker's use of t, and leaves t to its peer if the kernel has refused it with err. Otherwise it reports
// false: then t is nobody's but the caller's.
func (ts *transfers) again(t *transfer, err error) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.running, t)
	if !t.tryRelay(err) {
		return false
	}
	ts.enqueueLocked(t) // Cancel and Close find it there, or have told it
	return true
}

// next takes a transfer off a lane, nil if there is none: the worker then ends.
func (ts *transfers) next(l *lane, who identity) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := l.take()
	if t != nil {
		ts.running[t] = struct{}{}
		return t
	}
	l.workers--
	if l.workers == 0 && ts.relays[who] == l {
		delete(ts.relays, who)
	}
	return nil
}

// cancel gives up op if it is a transfer that is not complete, and reports whether that is so. One that runs ends after
// the system call that is under way.
func (ts *transfers) cancel(op *na.Op) bool {
	t, running := ts.find(op)
	if t != nil && !running {
		ts.refuse(t, na.Canceled)
	}
	return t != nil
}

// find finds the transfer of op. One that runs is told to end; one that does not is taken off the list.
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

// close ends all transfers with kind Closed and waits until none touches memory any more.
func (ts *transfers) close() {
	for _, t := range ts.stop() {
		ts.refuse(t, na.Closed)
	}
	ts.wg.Wait()
	ts.links.close()
	ts.windows.close()
}

// stop lets no transfer begin any more, tells those that run to end, and returns the others.
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
