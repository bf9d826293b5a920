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
func (p *qp) Modify(attr verbs.QPAttr) error {
	const op = "modify queue pair"
	if bad := attr.Mask &^ (changeable | verbs.AttrState); bad != 0 {
		return verbs.Unsupported(op, "attribute mask %#x does not exist on iWARP", uint32(bad))
	}
	if err := checkAttr(&attr); err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return verbs.Errorf(op, verbs.ErrClosed, "queue pair %#06x is closed", p.num)
	}
	from := p.state
	if attr.Mask&verbs.AttrCurState != 0 && attr.CurState != from {
		p.mu.Unlock()
		return verbs.Errorf(op, verbs.ErrInvalid, "the state is %s, not %s as CurState says", from, attr.CurState)
	}
	to := from
	if attr.Mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if err := p.checkStep(from, to); err != nil {
		p.mu.Unlock()
		return err
	}
	p.setAttr(&attr)
	c := p.conn
	if to != from && to != verbs.StateErr {
		p.state = to
	}
	drained := from != to && to == verbs.StateSQD && p.sq.tail == p.sq.next
	if from != to && to == verbs.StateReset {
		p.resetLocked()
	}
	p.mu.Unlock()
	p.step(c, from, to, drained)
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

// +checklocks:p.mu
func (p *qp) checkStep(from, to verbs.QPState) error {
	const op = "modify queue pair"
	live := p.conn != nil && from != verbs.StateErr
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

// +checklocks:p.mu
func (p *qp) setAttr(a *verbs.QPAttr) {
	if a.Mask&verbs.AttrAccess != 0 {
		p.attr.Access = a.Access
	}
	if a.Mask&verbs.AttrRNRRetry != 0 {
		p.attr.RNRRetry = a.RNRRetry
	}
	if a.Mask&verbs.AttrMinRNRTimer != 0 {
		p.attr.MinRNRTimer = a.MinRNRTimer
	}
	if a.Mask&verbs.AttrMaxRDAtomic != 0 {
		p.attr.MaxRDAtomic = a.MaxRDAtomic
	}
	if a.Mask&verbs.AttrMaxDestRDAtomic != 0 {
		p.attr.MaxDestRDAtomic = a.MaxDestRDAtomic
	}
}

// step carries out a state change that checkStep has let pass.
func (p *qp) step(c *conn, from, to verbs.QPState, drained bool) {
	switch {
	case to == from:
	case to == verbs.StateErr:
		p.toErr(c)
	case to == verbs.StateReset:
		p.sendCQ.purge(p)
		p.recvCQ.purge(p)
	case to == verbs.StateRTS && c != nil:
		c.kick()
	case drained:
		p.raise(verbs.DeviceEvent{Type: verbs.EventSQDrained})
	}
}

func (p *qp) toErr(c *conn) {
	if c != nil {
		c.fail(&failure{err: verbs.ErrDisconnected})
		c.teardown()
		return
	}
	p.mu.Lock()
	p.state = verbs.StateErr
	p.mu.Unlock()
	p.flush(nil)
}

// resetLocked empties the queues without completions.
//
// +checklocks:p.mu
func (p *qp) resetLocked() {
	p.conn = nil
	p.sq.used.Add(-(int64(p.sq.head-p.sq.tail) + p.sq.silent)) // completions give back theirs: when polled, or purged
	p.sq.head, p.sq.next, p.sq.tail, p.sq.silent = 0, 0, 0, 0
	var w recvWQE
	for ok := p.srq == nil; ok; {
		if _, ok = p.rq.take(&w); ok {
			p.rq.used.Add(-1)
		}
	}
	p.resetAttr()
}

// raise reports an asynchronous event of this queue pair.
func (p *qp) raise(ev verbs.DeviceEvent) {
	ev.Context, ev.QPNum = p.init.Context, p.num
	p.pd.dev.raise(ev)
}

func (p *qp) Query() (verbs.QPAttr, verbs.QPInit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.attr
	a.State, a.CurState, a.Cap = p.state, p.state, p.init.Cap
	a.Mask = verbs.AttrState | verbs.AttrCurState | verbs.AttrAccess | verbs.AttrPort | verbs.AttrRNRRetry |
		verbs.AttrMinRNRTimer | verbs.AttrMaxRDAtomic | verbs.AttrMaxDestRDAtomic | verbs.AttrCap
	return a, p.init
}
