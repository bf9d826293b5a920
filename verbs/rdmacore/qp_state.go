//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"syscall"

	"cinnabar/internal/verbsrules"
	"cinnabar/verbs"
)

// Modify implements verbs.QPDriver.
func (q *qp) Modify(attr verbs.QPAttr) error {
	const op = "modify queue pair"
	if attr.Mask&verbs.AttrState != 0 && attr.State == verbs.StateReset {
		return q.reset(attr)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the queue pair is closed")
	}
	from := verbs.QPState(q.state.Load())
	to := from
	if attr.Mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if from == verbs.StateReset && to == verbs.StateErr { // the specification permits this step, but the kernel knows it from INIT only
		init := verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateInit}
		q.setDefaults(&init, from, init.State)
		if err := modifyQP(q.h, &init, 0); err != nil {
			return modifyError(op, from, init.State, err)
		}
	}
	q.setDefaults(&attr, from, to)
	if err := q.checkStep(from, to, attr.Mask); err != nil {
		return err
	}
	if to == from && attr.Mask&^verbs.AttrState == 0 {
		return nil
	}
	sgid := 0
	if attr.Mask&verbs.AttrAV != 0 {
		sgid = q.pd.dev.sourceGID(&attr.AH)
	}
	if err := modifyQP(q.h, &attr, sgid); err != nil {
		return modifyError(op, from, to, q.pd.dev.wayError(&attr, sgid, err))
	}
	if attr.Mask&verbs.AttrPort != 0 && q.dests != nil {
		q.learnMTU(int(attr.Port))
	}
	q.state.Store(uint32(to))
	if to == verbs.StateErr && q.conn != nil {
		q.conn.fail(verbs.Errorf("connection", verbs.ErrDisconnected, "the queue pair was moved to ERR here"))
	}
	return nil
}

// setDefaults fills in the attributes that the state machine requires and most programs leave out.
func (q *qp) setDefaults(attr *verbs.QPAttr, from, to verbs.QPState) {
	switch {
	case from == verbs.StateReset && to == verbs.StateInit:
		if attr.Mask&verbs.AttrPort == 0 {
			attr.Port = 1
		}
		attr.Mask |= verbs.AttrPort | verbs.AttrPKeyIndex
		q.setRight(attr)
		if q.pd.dev.iwarp() {
			attr.Mask &^= verbs.AttrPKeyIndex
		}
	case from == verbs.StateRTS && to == verbs.StateSQD:
		attr.Mask |= verbs.AttrEnSQDAsyncNotify
	}
	if attr.Mask&verbs.AttrAccess != 0 && q.pd.dev.attr.AtomicCap == verbs.AtomicNone {
		attr.Access &^= verbs.RemoteAtomic
	}
}

// setRight fills in the attribute that keeps unknown peers away: rights of a connected queue pair, the key of datagrams.
func (q *qp) setRight(attr *verbs.QPAttr) {
	right := verbs.AttrAccess
	if q.init.Type == verbs.UD {
		right = verbs.AttrQKey
	}
	if attr.Mask&right == 0 {
		attr.Access, attr.QKey = q.access(), verbs.DefaultQKey
	}
	attr.Mask |= right
}

// learnMTU asks for the longest datagram of a port.
func (q *qp) learnMTU(port int) {
	if p, err := queryPort(q.pd.dev.ctx, port); err == nil {
		q.maxDatagram.Store(uint64(p.ActiveMTU.Bytes()))
	}
}

// checkStep refuses steps that the transport's state machine does not allow.
func (q *qp) checkStep(from, to verbs.QPState, mask verbs.QPAttrMask) error {
	const op = "modify queue pair"
	if !q.pd.dev.iwarp() {
		return verbsrules.CheckTransition(q.init.Type, from, to, mask)
	}
	switch {
	case to == verbs.StateRTR || to == verbs.StateRTS || to == verbs.StateSQD:
		return verbs.Unsupported(op, "from %s to %s by hand: on iWARP the connection manager does it; use Dial or Accept", from, to)
	case to == from, to == verbs.StateErr, from == verbs.StateReset && to == verbs.StateInit:
		return nil
	}
	return verbs.Errorf(op, verbs.ErrInvalid, "from %s to %s is no legal step (ibv_modify_qp(3))", from, to)
}

func modifyError(op string, from, to verbs.QPState, err error) error {
	var kind error
	switch {
	case errors.Is(err, syscall.EINVAL):
		kind = verbs.ErrInvalid
	case errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS):
		kind = errors.ErrUnsupported
	}
	return &verbs.Error{Op: op, Kind: kind, Err: err, Detail: "from " + from.String() + " to " + to.String()}
}

// reset begins a new life: completions of the old one that were not polled are gone.
func (q *qp) reset(attr verbs.QPAttr) error {
	const op = "modify queue pair"
	q.mu.Lock()
	c, closed, connecting := q.conn, q.closed, q.connecting
	q.mu.Unlock()
	switch {
	case closed:
		return verbs.Errorf(op, verbs.ErrClosed, "the queue pair is closed")
	case connecting:
		return verbs.Errorf(op, verbs.ErrBusy, "to RESET while it is being connected; end that first")
	case c != nil && verbs.QPState(q.state.Load()) != verbs.StateErr:
		return verbs.Errorf(op, verbs.ErrInvalid, "to RESET with a live connection; move it to ERR first")
	case c != nil:
		<-c.done // its end has been signaled
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	if err := q.rename(attr); err != nil {
		return err
	}
	q.sendCQ.purge(q.num)
	q.recvCQ.purge(q.num)
	// No poller accounts for a completion of the old life any more: purge has waited for them.
	q.dests.dropAll()
	for _, r := range []*queue{&q.sq, &q.rq} {
		r.tail.Store(r.head.Load())
	}
	return nil
}

// rename moves the queue pair to RESET, and gives it another serial number for
// tokens: those of its old life find nothing.
//
// +checklocks:q.sendMu
// +checklocks:q.recvMu
func (q *qp) rename(attr verbs.QPAttr) error {
	const op = "modify queue pair"
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the queue pair is closed")
	}
	if err := modifyQP(q.h, &attr, 0); err != nil {
		return modifyError(op, verbs.QPState(q.state.Load()), verbs.StateReset, err)
	}
	q.conn = nil
	q.failureRaised.Store(false)
	q.state.Store(uint32(verbs.StateReset))
	if q.drained != nil { // its marker is gone
		close(q.drained)
		q.drained = nil
	}
	d := q.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.qps, q.token.Load())
	token := d.nextSerial()
	d.qps[token] = q
	q.token.Store(token)
	return nil
}

// toErr flushes the queue pair if c is its connection still. Nothing is posted
// meanwhile: it would reach a queue that the driver has done with.
func (q *qp) toErr(c *conn) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	q.mu.Lock()
	mine := q.conn == c
	if mine {
		attr := verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}
		_ = modifyQP(q.h, &attr, 0) // it refuses only when the device is gone, which flushes too
		q.state.Store(uint32(verbs.StateErr))
	}
	q.mu.Unlock()
	if mine && q.pd.dev.iwarp() {
		token := q.token.Load()
		q.sendCQ.giveBack(&q.sq, kindSend, token)
		q.recvCQ.giveBack(&q.rq, kindRecv, token)
	}
}

// begin reserves the queue pair for a Dial or an Accept.
func (q *qp) begin(op string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch s := verbs.QPState(q.state.Load()); {
	case q.closed:
		return verbs.Errorf(op, verbs.ErrClosed, "the queue pair is closed")
	case q.init.Type != verbs.RC:
		return verbs.Unsupported(op, "the connection manager connects queue pairs of type RC only; those of type %v are connected by hand, see package verbs/oob", q.init.Type)
	case q.connecting:
		return verbs.Errorf(op, verbs.ErrInvalid, "the queue pair is being connected already")
	case q.conn != nil || s != verbs.StateInit && s != verbs.StateReset:
		return verbs.Errorf(op, verbs.ErrInvalid, "the queue pair is in %s; a new connection needs RESET or INIT", s)
	}
	q.connecting = true
	return nil
}

// finish ends the attempt that begin started. With a connection the queue pair is in RTS.
func (q *qp) finish(c *conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.connecting = false
	if q.conn = c; c != nil {
		q.state.Store(uint32(verbs.StateRTS))
	}
}

// step moves the queue pair with the connection manager's attributes.
func (q *qp) step(id cmHandle, to verbs.QPState, responder, depth uint8) error {
	if err := cmStep(id, q.h, to, q.access(), responder, depth); err != nil {
		return modifyError("connect", verbs.QPState(q.state.Load()), to, err)
	}
	q.state.Store(uint32(to))
	return nil
}

// drain waits until everything posted to the send queue is done. It posts a
// request of its own behind it, a write of nothing, and gathers completions, which
// stay for the reader, until its own is there or the connection is over.
func (q *qp) drain(ctx context.Context, over <-chan struct{}) error {
	done, err := q.mark()
	if done == nil || err != nil {
		return err
	}
	for {
		bell := q.sendCQ.gather()
		if err := q.sendCQ.Arm(false); err != nil {
			return err
		}
		q.sendCQ.gather() // completions before Arm ring no bell
		select {
		case <-done:
			q.sendCQ.notify() // the reader's completions may be in the stash
			return nil
		default:
		}
		select {
		case <-done:
		case <-over:
			q.sendCQ.notify()
			return nil
		case <-bell:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// mark posts the marker, unless one is on its way already, and returns a channel
// that is closed when it is done; nil if nothing is sent any more.
func (q *qp) mark() (<-chan struct{}, error) {
	q.mu.Lock()
	done := q.drained
	switch {
	case verbs.QPState(q.state.Load()) != verbs.StateRTS:
		q.mu.Unlock()
		return nil, nil
	case done != nil: // of another Disconnect
		q.mu.Unlock()
		return done, nil
	}
	done = make(chan struct{})
	q.drained = done
	q.mu.Unlock()
	if err := q.postMarker(); err != nil {
		q.markerDone()
		return nil, err
	}
	return done, nil
}

func (q *qp) markerDone() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.drained != nil {
		close(q.drained)
		q.drained = nil
	}
}
