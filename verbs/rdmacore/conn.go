//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

// lingerTime bounds how long an identifier is kept after the end for the peer's
// answer: as long as it is kept, the kernel repeats a request to end that was
// lost, after 4 s (CMA_CM_RESPONSE_TIMEOUT).
const lingerTime = 10 * time.Second

// watchTime is how often a queue pair is asked whether the device has stopped
// it. Completions that are not polled cannot report it, and software drivers raise no event.
const watchTime = time.Second

// conn is an established connection. One goroutine sees to its end.
type conn struct {
	id            *cmID
	qp            *qp
	local, remote netip.AddrPort
	param         verbs.ConnParam

	failed chan error    // capacity 1: the first cause of an end from this side
	done   chan struct{} // closed when it is over
	err    error         // the cause; written before done is closed
}

func newConn(id *cmID, q *qp, p cmParam) *conn {
	c := &conn{id: id, qp: q, param: asParam(p), failed: make(chan error, 1), done: make(chan struct{})}
	c.local, c.remote = cmAddrs(id.h)
	return c
}

// start begins to wait for the end. The queue pair knows the connection by now.
func (c *conn) start() {
	d := c.id.cm.dev
	d.stats.connections.Add(1)
	c.id.cm.wg.Go(c.run)
}

// fail ends the connection from this side; calls after the first do nothing.
func (c *conn) fail(cause error) {
	select {
	case c.failed <- cause:
	default:
	}
}

func (c *conn) run() {
	defer c.id.destroy()
	tick := time.NewTicker(watchTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if cause := c.stopped(); cause != nil {
				c.fail(cause)
			}
		case ev := <-c.id.events:
			if ev.typ == rdmacm.EventDisconnected || ev.typ == rdmacm.EventDeviceRemoval || ev.typ == rdmacm.EventTimewaitExit {
				c.end(c.peerEnded(ev))
				_ = cmDisconnect(c.id.h) // answers the peer; too late is as good
				return
			}
		case cause := <-c.failed:
			_ = cmDisconnect(c.id.h) // the peer may have ended it meanwhile
			c.end(c.explain(cause))
			c.linger()
			return
		}
	}
}

// linger waits for the peer's answer to our end. There is none if the peer ended
// the connection at the same moment.
func (c *conn) linger() {
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	for {
		select {
		case ev := <-c.id.events:
			if ev.typ == rdmacm.EventDisconnected || ev.typ == rdmacm.EventDeviceRemoval || ev.typ == rdmacm.EventTimewaitExit {
				return
			}
		case <-timer.C:
			return
		case <-c.id.cm.closing:
			return
		}
	}
}

// peerEnded is the cause of an end that came from the connection manager.
func (c *conn) peerEnded(ev cmEvent) error {
	select {
	case cause := <-c.failed: // it was on its way
		return cause
	default:
	}
	if ev.typ == rdmacm.EventDeviceRemoval {
		return c.id.cm.dev.removedErr("connection")
	}
	if cause := c.stopped(); cause != nil {
		return cause
	}
	return c.id.cm.dev.withTrouble(verbs.Errorf("connection", verbs.ErrDisconnected, "the peer ended it")) // because siw ends all connections when its port goes down
}

// explain adds the fault of our own port to the cause of an end: the device then
// reports a peer that does not answer, or, on rxe, a request that cannot be
// sent.
func (c *conn) explain(cause error) error {
	if errors.Is(cause, verbs.StatusRetryExcErr) || errors.Is(cause, verbs.StatusLocQPOpErr) {
		return c.id.cm.dev.withTrouble(cause)
	}
	return cause
}

// stopped reports a queue pair that the device has moved to ERR without an event
// or a completion. If no request of ours is outstanding, the peer has violated
// access rights; software drivers raise no event for that, so stopped raises it.
func (c *conn) stopped() error {
	q := c.qp
	if q.pd.dev.iwarp() || verbs.QPState(q.state.Load()) == verbs.StateErr {
		return nil
	}
	a, err := queryQP(q.h)
	if err != nil || a.State != verbs.StateErr {
		return nil
	}
	if q.sq.head.Load() != q.sq.tail.Load() {
		return verbs.Errorf("connection", nil, "the device stopped the queue pair; a completion that was not polled has the cause")
	}
	cause := verbs.Errorf("connection", nil, "the device stopped the queue pair, as it does when a peer violates access rights")
	if !q.failureRaised.Swap(true) {
		q.pd.dev.events.Add(verbs.DeviceEvent{Type: verbs.EventQPFatal, Context: q.init.Context, QPNum: q.num, Err: cause})
	}
	return cause
}

// end flushes the queue pair and signals the end of the connection.
func (c *conn) end(cause error) {
	c.qp.toErr(c)
	c.err = cause
	close(c.done)
	c.qp.recvCQ.seat.leave()
	c.qp.sendCQ.seat.leave()
}

func (c *conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }
func (c *conn) Param() verbs.ConnParam     { return c.param }
func (c *conn) Done() <-chan struct{}      { return c.done }

// Err implements verbs.ConnDriver.
func (c *conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Disconnect implements verbs.ConnDriver.
func (c *conn) Disconnect(ctx context.Context) error {
	if c.Err() != nil {
		return nil
	}
	if err := c.qp.drain(ctx, c.done); err != nil {
		return &verbs.Error{Op: "disconnect", Err: err}
	}
	c.fail(verbs.Errorf("connection", verbs.ErrDisconnected, "it was ended here"))
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return &verbs.Error{Op: "disconnect", Err: context.Cause(ctx)}
	}
}
