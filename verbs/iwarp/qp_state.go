package iwarp

import (
	"cinnabar/verbs"
)

// changeable are the attributes that Modify takes on this transport, besides
// the state. Those of InfiniBand's address and packet numbers mean nothing here.
const changeable = verbs.AttrAccess | verbs.AttrRNRRetry | verbs.AttrMinRNRTimer | verbs.AttrPort | verbs.AttrCurState |
	verbs.AttrEnSQDAsyncNotify | verbs.AttrMaxRDAtomic | verbs.AttrMaxDestRDAtomic

// Modify changes state and attributes.
//
//	            Dial, Accept                 Modify
//	RESET ─▶ INIT ─────────────▶ RTS ◀──────────────────▶ SQD
//	  ▲  Modify │                 │ Modify, failure, disconnect  │
//	  │         └───────▶ ERR ◀───┴──────────────────────────────┘
//	  └── Modify, from any state without a connection
//
// RTR and RTS are the connection manager's on iWARP: there is no address and no
// packet number with which a program could make the transition by hand.
func (q *qp) Modify(attr verbs.QPAttr) error {
	const op = "modify queue pair"
	if bad := attr.Mask &^ (changeable | verbs.AttrState); bad != 0 {
		return verbs.Unsupported(op, "attribute mask %#x does not exist on iWARP", uint32(bad))
	}
	if err := checkAttr(&attr); err != nil {
		return err
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return verbs.Errorf(op, verbs.ErrClosed, "queue pair %#06x is closed", q.num)
	}
	from := q.state
	if attr.Mask&verbs.AttrCurState != 0 && attr.CurState != from {
		q.mu.Unlock()
		return verbs.Errorf(op, verbs.ErrInvalid, "the state is %s, not %s as CurState says", from, attr.CurState)
	}
	to := from
	if attr.Mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if err := q.checkStep(from, to); err != nil {
		q.mu.Unlock()
		return err
	}
	q.setAttr(&attr)
	c := q.conn
	if to != from && to != verbs.StateErr {
		q.state = to
	}
	drained := from != to && to == verbs.StateSQD && q.sq.tail == q.sq.next
	if from != to && to == verbs.StateReset {
		q.resetLocked()
	}
	q.mu.Unlock()
	q.step(c, from, to, drained)
	return nil
}

func checkAttr(a *verbs.QPAttr) error {
	const op = "modify queue pair"
	switch {
	case a.Mask&verbs.AttrRNRRetry != 0 && a.RNRRetry > verbs.MaxRNRRetry:
		return verbs.Errorf(op, verbs.ErrInvalid, "RNRRetry is %d; 0 to 7 are possible", a.RNRRetry)
	case a.Mask&verbs.AttrMinRNRTimer != 0 && a.MinRNRTimer > 31:
		return verbs.Errorf(op, verbs.ErrInvalid, "MinRNRTimer is %d; 0 to 31 are possible", a.MinRNRTimer)
	case a.Mask&verbs.AttrPort != 0 && a.Port != 1:
		return verbs.Errorf(op, verbs.ErrInvalid, "port %d; this device has port 1", a.Port)
	}
	return nil
}

// +checklocks:q.mu
func (q *qp) checkStep(from, to verbs.QPState) error {
	const op = "modify queue pair"
	live := q.conn != nil && from != verbs.StateErr
	switch {
	case to == from && to != verbs.StateRTR, to == verbs.StateErr:
		return nil
	case to == verbs.StateRTR, to == verbs.StateRTS && from != verbs.StateSQD:
		return verbs.Unsupported(op, "from %s to %s by hand: on iWARP the connection manager does it; use Dial or Accept", from, to)
	case to == verbs.StateReset && live:
		return verbs.Errorf(op, verbs.ErrInvalid, "from %s to RESET with a live connection; move it to ERR first", from)
	case to == verbs.StateReset,
		from == verbs.StateReset && to == verbs.StateInit,
		from == verbs.StateRTS && to == verbs.StateSQD,
		from == verbs.StateSQD && to == verbs.StateRTS:
		return nil
	}
	return verbs.Errorf(op, verbs.ErrInvalid, "from %s to %s is no legal step (ibv_modify_qp(3))", from, to)
}

// +checklocks:q.mu
func (q *qp) setAttr(a *verbs.QPAttr) {
	if a.Mask&verbs.AttrAccess != 0 {
		q.attr.Access = a.Access
	}
	if a.Mask&verbs.AttrRNRRetry != 0 {
		q.attr.RNRRetry = a.RNRRetry
	}
	if a.Mask&verbs.AttrMinRNRTimer != 0 {
		q.attr.MinRNRTimer = a.MinRNRTimer
	}
	if a.Mask&verbs.AttrMaxRDAtomic != 0 {
		q.attr.MaxRDAtomic = a.MaxRDAtomic
	}
	if a.Mask&verbs.AttrMaxDestRDAtomic != 0 {
		q.attr.MaxDestRDAtomic = a.MaxDestRDAtomic
	}
}

// step carries out a state change that checkStep has let pass.
func (q *qp) step(c *conn, from, to verbs.QPState, drained bool) {
	switch {
	case to == from:
	case to == verbs.StateErr:
		q.toErr(c)
	case to == verbs.StateReset:
		q.sendCQ.purge(q)
		q.recvCQ.purge(q)
	case to == verbs.StateRTS && c != nil:
		c.kick()
	case drained:
		q.raise(verbs.DeviceEvent{Type: verbs.EventSQDrained})
	}
}

func (q *qp) toErr(c *conn) {
	if c != nil {
		c.fail(&failure{err: verbs.ErrDisconnected})
		c.teardown()
		return
	}
	q.mu.Lock()
	q.state = verbs.StateErr
	q.mu.Unlock()
	q.flush()
}

// resetLocked empties the queues without completions.
//
// +checklocks:q.mu
func (q *qp) resetLocked() {
	q.conn = nil
	q.sq.used.Add(-(int64(q.sq.head-q.sq.tail) + q.sq.silent)) // completions give back theirs: when polled, or purged
	q.sq.head, q.sq.next, q.sq.tail, q.sq.silent = 0, 0, 0, 0
	q.countUnsentLocked()
	var w recvWQE
	for ok := q.srq == nil; ok; {
		if _, ok = q.rq.take(&w); ok {
			q.rq.used.Add(-1)
		}
	}
	q.resetAttr()
}

// raise reports an asynchronous event of this queue pair.
func (q *qp) raise(ev verbs.DeviceEvent) {
	ev.Context, ev.QPNum = q.init.Context, q.num
	q.pd.dev.raise(ev)
}

func (q *qp) Query() (verbs.QPAttr, verbs.QPInit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.attr
	a.State, a.CurState, a.Cap = q.state, q.state, q.init.Cap
	a.Mask = verbs.AttrState | verbs.AttrCurState | verbs.AttrAccess | verbs.AttrPort | verbs.AttrRNRRetry |
		verbs.AttrMinRNRTimer | verbs.AttrMaxRDAtomic | verbs.AttrMaxDestRDAtomic | verbs.AttrCap
	return a, q.init
}
