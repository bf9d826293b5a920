package hg

// begin takes the hold of Start.
func (t *Transfer) begin() {
	t.mu.Lock()
	if t.state != callIdle {
		t.mu.Unlock()
		panic("hg: transfer started twice")
	}
	t.state, t.holds, t.flying = callStarted, 1, false
	t.finished, t.failure, t.cancel = false, nil, nil
	t.base = t.op.Progress.Load()
	t.mu.Unlock()
	t.n = 0
	t.c.count.transfersActive.Add(1)
}

// release gives up one hold; the last one ends the transfer.
func (t *Transfer) release() {
	t.mu.Lock()
	t.holds--
	last := t.holds == 0
	t.mu.Unlock()
	if last {
		t.complete()
	}
}

// fail records why the transfer cannot succeed.
func (t *Transfer) fail(code Code, err error) {
	e := newError(t.dir.String(), t.to, code, err)
	t.mu.Lock()
	if t.failure == nil {
		t.failure = e
	}
	t.mu.Unlock()
}

// finish records that all is done.
func (t *Transfer) finish(n int64) {
	t.n = n
	t.mu.Lock()
	t.finished = true
	t.mu.Unlock()
}

// abort is Cancel with a reason.
func (t *Transfer) abort(code Code, cause error) {
	if finish := t.Interrupt(code, cause); finish != nil {
		finish()
	}
}

// Interrupt begins to end the transfer early, with a code and a cause, and returns the function that does the rest, which
// may call the notifier: it is for callers with a lock under which the transfer is known not to have been freed. It
// returns nil if the transfer is at its end, or is cancelled already.
func (t *Transfer) Interrupt(code Code, cause error) (finish func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != callStarted || t.holds == 0 || t.cancel != nil {
		return nil
	}
	t.cancel = newError(t.dir.String(), t.to, code, cause)
	t.holds++
	if !t.flying {
		return t.release
	}
	return func() {
		t.c.ep.Cancel(&t.op)
		t.release()
	}
}

// Progress returns a count that grows as bytes move, from 0 on, and false while no operation of the network is under way.
func (t *Transfer) Progress() (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.op.Progress.Load() - t.base, t.flying
}

// canceled tells a copy to stop.
func (t *Transfer) canceled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cancel != nil
}

// complete runs once, when nothing holds the transfer any more.
func (t *Transfer) complete() {
	clear(t.frags) // they refer to memory of others
	t.c.count.transfersActive.Add(-1)
	t.mu.Lock()
	switch {
	case t.finished:
		t.result = nil
	case t.cancel != nil:
		t.result = t.cancel
	default:
		t.result = t.failure
	}
	t.state = callDone
	if t.freed {
		t.mu.Unlock()
		t.recycle()
		return
	}
	notify := t.notify
	if notify == nil {
		t.done.Set() // with the lock held: Free of who sees it waits for the lock
	}
	t.mu.Unlock()
	if notify != nil {
		notify.TransferDone(t)
	}
}

// maxKeptFragments bounds what an idle transfer keeps.
const maxKeptFragments = 4096

// recycle makes a transfer that nothing refers to ready for reuse.
func (t *Transfer) recycle() {
	t.mu.Lock()
	t.state, t.freed = callPooled, false
	t.mu.Unlock()
	t.to, t.via, t.notify, t.result = nil, nil, nil, nil
	if cap(t.frags) > maxKeptFragments {
		t.frags = nil
	}
	t.done.Reset()
	t.c.transfers.Put(t)
}
