package iwarp

import "cinnabar/verbs/driver"

// changeable are the attributes that Modify takes on this transport, besides
// the state. Those of InfiniBand's address and packet numbers mean nothing here.
const changeable = driver.AttrAccess | driver.AttrRNRRetry | driver.AttrMinRNRTimer | driver.AttrPort | driver.AttrCurState |
	driver.AttrEnSQDAsyncNotify | driver.AttrMaxRDAtomic | driver.AttrMaxDestRDAtomic

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
func (p *qp) Modify(attr driver.QPAttr) error {
	const op = "modify queue pair"
	if bad := attr.Mask &^ (changeable | driver.AttrState); bad != 0 {
		return driver.Unsupported(op, "attribute mask %#x does not exist on iWARP", uint32(bad))
	}
	if err := checkAttr(&attr); err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return driver.Errorf(op, driver.ErrClosed, "queue pair %#06x is closed", p.num)
	}
	from := p.state
	if attr.Mask&driver.AttrCurState != 0 && attr.CurState != from {
		p.mu.Unlock()
		return driver.Errorf(op, driver.ErrInvalid, "the state is %s, not %s as CurState says", from, attr.CurState)
	}
	to := from
	if attr.Mask&driver.AttrState != 0 {
		to = attr.State
	}
	if err := p.checkStep(from, to); err != nil {
		p.mu.Unlock()
		return err
	}
	p.setAttr(&attr)
	c := p.conn
	if to != from && to != driver.StateErr {
		p.state = to
	}
	drained := from != to && to == driver.StateSQD && p.sq.tail == p.sq.next
	if from != to && to == driver.StateReset {
		p.resetLocked()
	}
	p.mu.Unlock()
	p.step(c, from, to, drained)
	return nil
}

func checkAttr(a *driver.QPAttr) error {
	const op = "modify queue pair"
	switch {
	case a.Mask&driver.AttrRNRRetry != 0 && a.RNRRetry > driver.MaxRNRRetry:
		return driver.Errorf(op, driver.ErrInvalid, "RNRRetry is %d; 0 to 7 are possible", a.RNRRetry)
	case a.Mask&driver.AttrMinRNRTimer != 0 && a.MinRNRTimer > 31:
		return driver.Errorf(op, driver.ErrInvalid, "MinRNRTimer is %d; 0 to 31 are possible", a.MinRNRTimer)
	case a.Mask&driver.AttrPort != 0 && a.Port != 1:
		return driver.Errorf(op, driver.ErrInvalid, "port %d; this device has port 1", a.Port)
	}
	return nil
}

// +checklocks:p.mu
func (p *qp) checkStep(from, to driver.QPState) error {
	const op = "modify queue pair"
	live := p.conn != nil && from != driver.StateErr
	switch {
	case to == from && to != driver.StateRTR, to == driver.StateErr:
		return nil
	case to == driver.StateRTR, to == driver.StateRTS && from != driver.StateSQD:
		return driver.Unsupported(op, "from %s to %s by hand: on iWARP the connection manager does it; use Dial or Accept", from, to)
	case to == driver.StateReset && live:
		return driver.Errorf(op, driver.ErrInvalid, "from %s to RESET with a live connection; move it to ERR first", from)
	case to == driver.StateReset,
		from == driver.StateReset && to == driver.StateInit,
		from == driver.StateRTS && to == driver.StateSQD,
		from == driver.StateSQD && to == driver.StateRTS:
		return nil
	}
	return driver.Errorf(op, driver.ErrInvalid, "from %s to %s is no legal step (ibv_modify_qp(3))", from, to)
}

// +checklocks:p.mu
func (p *qp) setAttr(a *driver.QPAttr) {
	if a.Mask&driver.AttrAccess != 0 {
		p.attr.Access = a.Access
	}
	if a.Mask&driver.AttrRNRRetry != 0 {
		p.attr.RNRRetry = a.RNRRetry
	}
	if a.Mask&driver.AttrMinRNRTimer != 0 {
		p.attr.MinRNRTimer = a.MinRNRTimer
	}
	if a.Mask&driver.AttrMaxRDAtomic != 0 {
		p.attr.MaxRDAtomic = a.MaxRDAtomic
	}
	if a.Mask&driver.AttrMaxDestRDAtomic != 0 {
		p.attr.MaxDestRDAtomic = a.MaxDestRDAtomic
	}
}

// step carries out a state change that checkStep has let pass.
func (p *qp) step(c *conn, from, to driver.QPState, drained bool) {
	switch {
	case to == from:
	case to == driver.StateErr:
		p.toErr(c)
	case to == driver.StateReset:
		p.sendCQ.purge(p)
		p.recvCQ.purge(p)
	case to == driver.StateRTS && c != nil:
		c.kick()
	case drained:
		p.raise(driver.AsyncEvent{Type: driver.EventSQDrained})
	}
}

func (p *qp) toErr(c *conn) {
	if c != nil {
		c.fail(&failure{err: driver.ErrDisconnected})
		c.teardown()
		return
	}
	p.mu.Lock()
	p.state = driver.StateErr
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
func (p *qp) raise(ev driver.AsyncEvent) {
	ev.Context, ev.QPNum = p.init.Context, p.num
	p.pd.dev.raise(ev)
}

func (p *qp) Query() (driver.QPAttr, driver.QPInit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.attr
	a.State, a.CurState, a.Cap = p.state, p.state, p.init.Cap
	a.Mask = driver.AttrState | driver.AttrCurState | driver.AttrAccess | driver.AttrPort | driver.AttrRNRRetry |
		driver.AttrMinRNRTimer | driver.AttrMaxRDAtomic | driver.AttrMaxDestRDAtomic | driver.AttrCap
	return a, p.init
}
