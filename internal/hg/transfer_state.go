package hg

import "cinnabar/codes"

// begin takes the hold of Start.
func (t *Transfer) begin() {
	if !t.state.begin() {
		panic("hg: transfer started twice")
	}
	t.base.Store(t.op.Progress.Load())
	t.n = 0
	t.c.count.transfersActive.Add(1)
}

// release gives up one hold and clears op, the bit of an operation that is over; 0: none. With the last hold the transfer ends.
func (t *Transfer) release(op stateWord) {
	if t.state.drop(op) {
		t.complete()
	}
}

// fail records the error with which the transfer fails, unless another one was recorded before. The caller has a hold.
func (t *Transfer) fail(code codes.Code, err error) {
	e := newError(t.dir.String(), t.to, code, err)
	if _, first := t.state.set(flagFailed, 0); first {
		t.failure = e
	}
}

// finish records that all n bytes have moved. The caller has a hold.
func (t *Transfer) finish(n int64) {
	t.n = n
	t.state.set(flagSucceeded, 0)
}

// abort is Cancel with a reason.
func (t *Transfer) abort(code codes.Code, cause error) {
	if finish := t.Interrupt(code, cause); finish != nil {
		finish()
	}
}

// Interrupt begins to end the transfer early, with a code and a cause, and returns the function that does the rest, which
// may call the notifier: it is for callers with a lock under which the transfer is known not to have been freed. It
// returns nil if the transfer is at its end, or is cancelled already.
func (t *Transfer) Interrupt(code codes.Code, cause error) (finish func()) {
	old, ok := t.state.claim(flagCancelled)
	if !ok {
		return nil
	}
	t.cancel = newError(t.dir.String(), t.to, code, cause)
	return func() {
		if old.has(opMove) {
			t.c.ep.Cancel(&t.op)
		}
		t.release(0)
	}
}

// Progress returns a count that grows as bytes move, from 0 on, and false while no operation of the network is under way.
func (t *Transfer) Progress() (int64, bool) {
	return t.op.Progress.Load() - t.base.Load(), t.state.load().has(opMove)
}

// canceled reports whether a copy must stop.
func (t *Transfer) canceled() bool { return t.state.load().has(flagCancelled) }

// complete publishes the result, as [Call.complete] does.
func (t *Transfer) complete() {
	clear(t.frags) // they refer to memory of others
	t.c.count.transfersActive.Add(-1)
	switch w := t.state.load(); {
	case w.has(flagSucceeded):
		t.result = nil
	case w.has(flagCancelled):
		t.result = t.cancel
	default:
		t.result = t.failure
	}
	notify := t.notify
	if notify == nil {
		t.done.Set()
	}
	if t.state.finish() {
		t.recycle()
	} else if notify != nil {
		notify.TransferDone(t)
	}
}

// forget clears the errors that Interrupt and fail have recorded. It is called before the transfer may start again, because Interrupt may
// record its error while Start runs.
func (t *Transfer) forget() { t.failure, t.cancel = nil, nil }

// maxKeptFragments is the largest number of fragments that an idle transfer keeps room for.
const maxKeptFragments = 4096

// recycle makes a transfer that nothing refers to ready for reuse.
func (t *Transfer) recycle() {
	t.state.retire()
	t.to, t.via, t.notify, t.result = nil, nil, nil, nil
	t.forget()
	if cap(t.frags) > maxKeptFragments {
		t.frags = nil
	}
	t.done.Reset()
	t.c.transfers.Put(t)
}
