package sm

import (
	"errors"
	"runtime"
	"sync"

	"cinnabar/internal/na"
)

// transfers runs the Gets and Puts of an endpoint: small ones where they are started, others on a few workers, so that a
// long one neither holds up progress nor takes a thread of its own.
type transfers struct {
	limit int // workers

	mu sync.Mutex
	// first and last are the ends of the list of those that no worker has taken.
	// +checklocks:mu
	first *transfer
	// +checklocks:mu
	last *transfer
	// running are those of workers.
	// +checklocks:mu
	running map[*transfer]struct{}
	// +checklocks:mu
	workers int
	// +checklocks:mu
	closed bool

	links   relayLinks
	windows windows

	wg sync.WaitGroup // of the workers, and of transfers where they were started
}

// maxWorkers is how many transfers are under way at most that were not done where they were started: more than there
// are processors gain nothing, and each takes a thread.
const maxWorkers = 4

func (ts *transfers) init() {
	ts.limit = min(maxWorkers, runtime.GOMAXPROCS(0))
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.running = make(map[*transfer]struct{})
}

// start runs t, or has it run soon.
func (ts *transfers) start(t *transfer) {
	if !ts.enter() {
		t.finish(&na.Error{Kind: na.Closed})
		return
	}
	t.win = ts.windows.windowFor(t)
	if t.total > t.inline() {
		ts.enqueue(t)
		ts.wg.Done()
		return
	}
	err := ts.runHere(t)
	ts.wg.Done()
	if attachRefused(err) {
		ts.enqueue(t)
		return
	}
	t.finish(err)
}

// inline is up to which size the goroutine that starts a transfer moves it itself.
func (t *transfer) inline() uint64 {
	switch {
	case t.win != nil:
		return inlineMapped
	case t.to.relayed.Load():
		return 0
	}
	return inlineBytes
}

// runHere runs t on the goroutine that starts it, which must not block.
func (ts *transfers) runHere(t *transfer) error {
	if t.win == nil {
		return t.run(inlineBytes)
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

// enqueue leaves t to a worker, and starts one if there may be another.
func (ts *transfers) enqueue(t *transfer) {
	ts.mu.Lock()
	if ts.closed {
		ts.mu.Unlock()
		ts.refuse(t, na.Closed)
		return
	}
	defer ts.mu.Unlock()
	if ts.first == nil {
		ts.first = t
	} else {
		ts.last.next = t
	}
	ts.last = t
	if ts.workers < ts.limit {
		ts.workers++
		ts.wg.Go(ts.work)
	}
}

// refuse ends t, which has not begun.
func (ts *transfers) refuse(t *transfer, kind na.Kind) {
	if t.win != nil {
		ts.leave(t)
	}
	t.finish(&na.Error{Kind: kind})
}

// work runs transfers until none is left.
func (ts *transfers) work() {
	for t := ts.next(nil); t != nil; {
		err := ts.run(t)
		over := t
		t = ts.next(over)
		over.finish(err)
	}
}

// run runs t in one of the three ways that there are.
func (ts *transfers) run(t *transfer) error {
	if t.win != nil {
		defer ts.leave(t)
		return t.runMapped(t.win)
	}
	if t.to.relayed.Load() {
		return t.relay(&ts.links)
	}
	err := t.run(callBytes)
	if !attachRefused(err) {
		return err
	}
	relayErr := t.relay(&ts.links)
	if _, none := errors.AsType[*noRelayError](relayErr); none {
		return err // which says what would help
	}
	t.to.relayed.Store(true)
	return relayErr
}

// next takes a transfer off the queue, nil if there is none: the worker then ends. over is the one that it has run.
func (ts *transfers) next(over *transfer) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.running, over)
	t := ts.first
	if t == nil {
		ts.workers--
		return nil
	}
	ts.first, t.next = t.next, nil
	ts.running[t] = struct{}{}
	return t
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
	var before *transfer
	for t := ts.first; t != nil; before, t = t, t.next {
		if t.op != op {
			continue
		}
		if before == nil {
			ts.first = t.next
		} else {
			before.next = t.next
		}
		if ts.last == t {
			ts.last = before
		}
		t.next = nil
		return t, false
	}
	return nil, false
}

// close ends all transfers with kind Closed and waits until none touches memory any more.
func (ts *transfers) close() {
	ts.mu.Lock()
	ts.closed = true
	waiting := ts.first
	ts.first = nil
	for t := range ts.running {
		t.end(na.Closed)
	}
	ts.mu.Unlock()
	for t := waiting; t != nil; {
		over := t
		t = t.next
		ts.refuse(over, na.Closed)
	}
	ts.wg.Wait()
	ts.links.close()
	ts.windows.close()
}
