package rc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

const (
	queueDepth        = 10 // work requests in each direction, as in the paper
	pollBatch         = 16 // completions taken at once
	connectTimeout    = 10 * time.Second
	disconnectTimeout = 3 * time.Second // for an orderly end; then it is cut
	never             = time.Duration(1<<63 - 1)
)

// The operations of an [Error].
const (
	opListen  = "listen at"
	opConnect = "connect to"
	opServe   = "serve"
	opTalk    = "connection to"
)

// connParam has the parameters of the paper's programs, except that a lost packet does not end the connection, because
// their retry count is 0. A message that finds no receive is retried for ever, because both sides may post late.
var connParam = verbs.ConnParam{InitiatorDepth: 1, ResponderResources: 1, RNRRetry: verbs.MaxRNRRetry}

// Conn is one connection. Its methods are safe for concurrent use.
type Conn struct {
	// Data is the program's own (the context pointer of struct rdma_cm_id): the
	// argument of ClientLoop, nil at a server until a callback sets it. The
	// library does not touch it.
	Data any

	lib  *Library
	id   *rdmacm.ID
	ch   *rdmacm.EventChannel // has the events of id only
	peer string               // address of the peer, for errors
	op   string               // the current operation, for errors

	// The rest belongs to the goroutine that called work.
	cq       *verbs.CQ
	qp       *verbs.QP
	prepared bool        // PreConnection was called
	up       bool        // the connection is established
	idle     *time.Timer // of Config.Idle, once the connection is up
	wc       [pollBatch]verbs.WC
}

// QP returns the queue pair, for posting. Callbacks may use it until Disconnect.
func (c *Conn) QP() *verbs.QP { return c.qp }

// RemoteAddr returns the address of the peer; the zero value before it is known.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.RemoteAddr() }

// Disconnect ends the connection in order and returns at once (rc_disconnect):
// requests that were posted before are still sent, and then the loop finds the connection
// over. It does nothing if the peer was faster.
func (c *Conn) Disconnect() error {
	err := c.id.Disconnect()
	if conn := c.id.Conn(); err != nil && conn != nil && isOver(conn) {
		return nil
	}
	return err
}

// isOver reports whether the connection has ended.
func isOver(conn *verbs.Conn) bool {
	select {
	case <-conn.Done():
		return true
	default:
		return false
	}
}

// work makes the queue pair, begins, and carries the connection to its end.
func (c *Conn) work(ctx context.Context, begin func() error) error {
	err := c.create()
	if err == nil {
		err = begin()
	}
	if err == nil {
		err = c.run(ctx)
	}
	err = c.end(ctx, err)
	if err != nil && !errors.Is(err, context.Cause(ctx)) {
		return &Error{Op: c.op, Peer: c.peer, Err: err}
	}
	return err
}

// create makes the queues, as the paper's build_connection does.
func (c *Conn) create() (err error) {
	if c.cq, err = c.lib.dev.CreateCQ(2 * queueDepth); err != nil {
		return err
	}
	c.qp, err = c.lib.pd.CreateQP(verbs.QPConfig{
		SendCQ: c.cq, MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	return err
}

// accept answers a connection request.
func (c *Conn) accept() error {
	if err := c.prepare(); err != nil {
		return err
	}
	return c.id.Accept(c.qp, connParam)
}

// prepare calls PreConnection.
func (c *Conn) prepare() error {
	c.prepared = true
	return call(c.lib.cfg.PreConnection, c)
}

// call calls a callback, if there is one.
func call(f func(*Conn) error, c *Conn) error {
	if f == nil {
		return nil
	}
	return f(c)
}

// run reacts to events and completions until the connection is over.
func (c *Conn) run(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stop()
	events := make(chan *rdmacm.Event)
	watcher.Go(func() { forward(watch, c.ch, events) })

	c.idle = time.NewTimer(never)
	defer c.idle.Stop()
	for {
		if err := c.completions(ctx); err != nil {
			return err
		}
		select {
		case <-c.cq.Event():
		case e := <-events:
			if over, err := c.handle(ctx, e); over || err != nil {
				return err
			}
		case <-c.idle.C:
			return fmt.Errorf("nothing has happened for %v, the limit of Config.Idle", c.lib.cfg.Idle)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// forward passes events on until ctx ends, which also stops the channel's reader.
func forward(ctx context.Context, ch *rdmacm.EventChannel, to chan<- *rdmacm.Event) {
	for {
		e, err := ch.Get(ctx)
		if err != nil {
			return
		}
		select {
		case to <- e:
		case <-ctx.Done():
			return
		}
	}
}

// busy begins the time that may pass without a completion.
func (c *Conn) busy() {
	if c.lib.cfg.Idle > 0 {
		c.idle.Reset(c.lib.cfg.Idle)
	}
}

// handle takes a step of the connection's life, and reports whether that was the last.
//
//	client: address resolved ─▶ PreConnection, resolve route ─▶ connect ─┐
//	server: connection request ─▶ PreConnection, accept ─────────────────┴▶ established ─▶ disconnected
func (c *Conn) handle(ctx context.Context, e *rdmacm.Event) (over bool, err error) {
	defer e.Ack()
	switch e.Type {
	case rdmacm.EventAddrResolved:
		if err := c.prepare(); err != nil {
			return false, err
		}
		return false, c.id.ResolveRoute(connectTimeout)
	case rdmacm.EventRouteResolved:
		return false, c.id.Connect(c.qp, connParam)
	case rdmacm.EventEstablished:
		c.up, c.op = true, opTalk
		c.busy()
		return false, call(c.lib.cfg.Connection, c)
	case rdmacm.EventDisconnected:
		// The completions of requests that succeeded before the end are in the queue by now.
		if err := c.completions(ctx); err != nil && (e.Err == nil || isFatal(err)) {
			return true, err
		}
		return true, e.Err
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected, rdmacm.EventDeviceRemoval:
		return true, eventError(e)
	default:
		c.lib.ignored(e)
		return false, nil
	}
}

// eventError is the cause of a failure, or the event's name where there is none.
func eventError(e *rdmacm.Event) error {
	if e.Err != nil {
		return e.Err
	}
	return errors.New(e.Type.String())
}

// ignored reports an event that the library has no use for, be it known or not.
func (l *Library) ignored(e *rdmacm.Event) {
	l.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "connection event ignored",
		slog.String("event", e.Type.String()), slog.Uint64("type", uint64(e.Type)))
}

// completions delivers the completions in the queue, and leaves it armed. Before the connection is established it
// delivers nothing, so that Connection is called first even if the peer is quick.
func (c *Conn) completions(ctx context.Context) error {
	if !c.up {
		return nil
	}
	for armed := false; ; {
		n, err := c.cq.Poll(c.wc[:])
		if err != nil {
			return err
		}
		for i := range c.wc[:n] {
			if err := c.complete(&c.wc[i]); err != nil {
				return err
			}
		}
		switch {
		case n > 0 && ctx.Err() != nil: // a peer that keeps us busy does not keep us from stopping
			return context.Cause(ctx)
		case n > 0:
			armed = false
		case armed:
			return nil
		default:
			if err := c.cq.Arm(false); err != nil {
				return err
			}
			armed = true // completions from before this raise no event, so look once more
		}
	}
}

// complete delivers one completion. A flushed request says only that the connection is ending, for a reason that
// an event or an earlier completion gives.
func (c *Conn) complete(wc *verbs.WC) error {
	if wc.Status == verbs.StatusWRFlushErr {
		return nil
	}
	if err := wc.Err(); err != nil {
		return err
	}
	c.busy()
	if c.lib.cfg.Completion == nil {
		return nil
	}
	return c.lib.cfg.Completion(c, *wc)
}

// end disconnects, lets go of the queue pair, and calls Disconnect.
func (c *Conn) end(ctx context.Context, err error) error {
	if conn := c.id.Conn(); conn != nil && !isOver(conn) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTimeout)
		_ = conn.Disconnect(ctx) // if it cannot be had in order, Close below cuts the connection
		cancel()
	}
	closing := c.ch.Close() // ends an attempt to connect, rejects a request that was not accepted
	if c.qp != nil {
		closing = errors.Join(closing, c.qp.Close())
	}
	if c.cq != nil {
		closing = errors.Join(closing, c.cq.Close())
	}
	if err == nil {
		err = closing
	}
	if c.prepared && c.lib.cfg.Disconnect != nil {
		c.lib.cfg.Disconnect(c, err)
	}
	return err
}
