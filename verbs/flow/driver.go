package flow

import (
	"context"
	"runtime"
	"time"

	"cinnabar/internal/waitlist"
	"cinnabar/verbs"
)

// returnInterval is the time after which the goroutine of run drives again when no caller has driven.
const returnInterval = time.Millisecond

// driver states which goroutine drives the connection. To drive is to wait on the completion queue and to process the completions. One
// goroutine at a time does so. A caller that waits for a record or for the end of an operation drives if no other goroutine does, because a
// completion then wakes only the caller. If the goroutine of run drove, the completion would wake that goroutine, which would wake the caller.
//
//	            a caller has been served, and no other caller waits
//	background ────────────────────────────────────────────────────▶ none
//	           ◀────────────────────────────────────────────────────
//	            no caller has driven for a returnInterval; or at once, if a caller waits for something other
//	            than a completion, or the connection is over
//
//	           a caller begins to wait
//	     none ─────────────────────────▶ caller
//	          ◀─────────────────────────
//	           the caller has been served, and no other caller waits; otherwise the next state is background
//
// While the peer sends long records, or this end does, the goroutine of run drives, because the device then stores the next record while the
// caller uses the last one. If a caller begins to wait in state background or caller, the present driver serves it.
//
// The lock of the connection guards the fields. Only the goroutine that drives uses the elements of wcs, without the lock.
type driver struct {
	by     driverBy
	drives uint64        // number of times that callers have begun to drive
	long   bool          // the last record was a long one
	asleep bool          // the goroutine of run waits for resume without a timer, because a caller has driven for a returnInterval
	resume chan struct{} // capacity 1; wakeLocked signals it, after a change of by that the goroutine of run must see
	wcs    []verbs.WC

	// child is a context that ends with the connection, and with the context of the last caller that drove with a context that can end. It
	// is kept, because most programs wait with the same context again and again. done is Done of the caller's context.
	done   <-chan struct{}
	child  context.Context
	cancel context.CancelFunc // ends child
}

// driverBy is the state of a driver.
type driverBy uint8

const (
	byBackground driverBy = iota // the goroutine of run
	byNone
	byCaller
)

// batch is the number of completions that are processed at a time.
const batch = 16

func (d *driver) init() {
	d.resume, d.wcs = make(chan struct{}, 1), make([]verbs.WC, batch)
}

// returnLocked makes the goroutine of run drive, unless a caller does.
func (d *driver) returnLocked() {
	if d.by == byNone {
		d.by = byBackground
		d.wakeLocked()
	}
}

// wakeLocked wakes the goroutine of run if it is in awaitTurn, so that it sees the present value of by.
func (d *driver) wakeLocked() {
	d.asleep = false
	select {
	case d.resume <- struct{}{}:
	default:
	}
}

// endLocked makes a caller that drives return, because the connection is over.
func (d *driver) endLocked() {
	if d.cancel != nil {
		d.cancel()
	}
}

// contextLocked returns a context that ends with ctx and with the connection. conn is the context of the connection.
func (d *driver) contextLocked(ctx, conn context.Context) context.Context {
	if ctx.Done() == nil {
		return conn
	}
	if d.done != ctx.Done() {
		d.endLocked()
		d.done = ctx.Done()
		d.child, d.cancel = context.WithCancel(ctx)
	}
	return d.child
}

// anyWaitsLocked reports whether any caller waits for a completion, which a driver must process.
//
// +checklocks:c.mu
func (c *Conn) anyWaitsLocked() bool {
	return c.rx.readers.Waiting() || c.tx.waiters.Waiting() || c.oneSided != nil && c.oneSided.n > 0 || c.tx.waitedOut > 0 || c.tx.staging > 0 || len(c.tx.idle) > 0
}

// drive drives the connection until the caller is served, or its context or the connection has ended. It returns at once if another goroutine
// drives. If it returns before the caller is served, another goroutine drives, or begins to.
func (c *Conn) drive(ctx context.Context, caller waitlist.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.driver
	if d.by != byNone || c.err != nil || caller.Served() {
		return
	}
	d.by = byCaller
	d.drives++
	for c.err == nil && !caller.Served() {
		until := d.contextLocked(ctx, c.ctx)
		c.mu.Unlock()
		n, err := c.cq.Wait(until, d.wcs)
		c.mu.Lock()
		if err == nil {
			c.takeLocked(d.wcs[:n])
			continue
		}
		if ctx.Err() == nil {
			c.failLocked(err)
		}
		break
	}
	d.by = byNone
	switch {
	case c.err != nil || d.long || c.anyWaitsLocked():
		d.returnLocked()
	case d.asleep:
		d.wakeLocked()
	}
}

// run drives the connection while no caller does, until it is over.
func (c *Conn) run() {
	defer close(c.done)
	interval := time.NewTimer(returnInterval)
	defer interval.Stop()
	for c.turn() {
		c.awaitTurn(interval)
	}
}

// turn drives the connection until callers can do so themselves. It returns false if the connection is over.
func (c *Conn) turn() bool {
	for {
		n, err := c.cq.Wait(c.ctx, c.driver.wcs)
		if err != nil {
			c.fail(err)
			return false
		}
		c.mu.Lock()
		waited := c.anyWaitsLocked()
		c.takeLocked(c.driver.wcs[:n])
		over := c.err != nil
		leave := waited && !over && !c.driver.long && !c.anyWaitsLocked()
		if leave {
			c.driver.by = byNone
		}
		c.mu.Unlock()
		if over || leave {
			return leave
		}
		runtime.Gosched() // because the callers that takeLocked has served would otherwise wait for a thread while Wait spins
	}
}

// awaitTurn returns when by is byBackground, so that the goroutine of run drives again.
func (c *Conn) awaitTurn(interval *time.Timer) {
	d := &c.driver
	interval.Reset(returnInterval)
	for last := uint64(0); ; {
		select {
		case <-d.resume:
			interval.Reset(returnInterval)
		case <-interval.C:
		}
		c.mu.Lock()
		switch quiet := d.drives == last; {
		case d.by == byBackground:
		case d.by == byNone && quiet:
			d.by = byBackground
		case d.by == byCaller && quiet:
			d.asleep = true
		default:
			last = d.drives
			interval.Reset(returnInterval)
		}
		by := d.by
		c.mu.Unlock()
		if by == byBackground {
			return
		}
	}
}

// takeLocked processes completions, and serves the callers that wait for them.
//
// +checklocks:c.mu
func (c *Conn) takeLocked(wcs []verbs.WC) {
	for i := range wcs {
		if err := c.completeLocked(&wcs[i]); err != nil {
			c.failLocked(err)
		}
	}
	if c.err != nil {
		return
	}
	c.tx.waiters.Serve(c.sendNext)
	c.rx.readers.Serve(c.readNext)
	if c.rx.fin {
		c.rx.readers.End()
	}
	c.answerLocked()
	if c.idleLocked() {
		c.tx.release()
	}
}
