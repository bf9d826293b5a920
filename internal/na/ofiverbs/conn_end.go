package ofiverbs

import (
	"context"
	"errors"
	"slices"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// fail ends the connection, unless the connection is ending already. It completes the operations on the connection, except the reads and
// writes that the device is working on: run completes these after the device has stopped using their memory.
func (c *conn) fail(kind na.Kind, err error) { c.endNow(kind, err, false) }

// endNow is fail. If onlyIdle is true, it ends the connection only if nothing is under way on it. It reports whether it has ended the
// connection.
func (c *conn) endNow(kind na.Kind, err error, onlyIdle bool) bool {
	c.mu.Lock()
	if c.end != nil || onlyIdle && !c.idleLocked() {
		c.mu.Unlock()
		return false
	}
	var list endings
	if kind == na.Closed { // because responses that cork or flushSoonLocked has held back must be sent
		c.corked = false
		list = c.flushLocked(nil)
	}
	c.end = &na.Error{Kind: kind, Op: "connection", Addr: c.peer.str, Err: err}
	c.dead.Store(true)
	queue := c.queue[c.head:]
	c.queue, c.head = nil, 0
	idle := (c.ending.asked || hasGivenWay(err)) && !isUnresponsive(err)
	var unsent []item
	if idle && kind != na.Closed {
		unsent = c.moves.takeUnsent()
	}
	list = append(list, c.moves.failQueued(kind, err)...)
	c.mu.Unlock()
	c.origin.conn.Store(nil)
	close(c.origin.done)
	close(c.stop)
	if c.parker != nil {
		c.parker.Unpark()
	}
	list.finish()
	unsent = append(slices.DeleteFunc(slices.Clone(queue), func(it item) bool { return !it.request }), unsent...)
	responses := slices.DeleteFunc(queue, func(it item) bool { return it.request })
	failItems(c.peer, responses, kind, err)
	c.peer.lost(c, unsent, idle, kind, err)
	c.ep.lostLate(c)
	c.ep.trace("connection ended", c.peer, err)
	return true
}

// errEnded is the cause of the end of a connection if the device names none.
var errEnded = errors.New("the peer has ended the connection, or its process has ended")

// run is the goroutine of the connection. Several may follow each other, with rising gen, because the watcher replaces one that a task keeps
// (see turns). The last one releases the objects of the connection.
func (c *conn) run(gen uint32) {
	if !c.progress(gen) {
		return
	}
	defer c.ep.wg.Done()
	defer c.ep.drop(c)
	c.polling.Lock()
	defer c.polling.Unlock()
	c.mu.Lock()
	end := c.end
	c.mu.Unlock()
	limit := time.Duration(-1) // for Disconnect, which waits until the device has sent the work that was posted before, such as responses
	switch {
	case end.Kind == na.Closed:
		limit = closeTime
	case hasGivenWay(end.Err):
		limit = endTime
	case errors.Is(end.Err, errHeld):
		limit = 0 // the peer has not answered for long; without Disconnect, the device would wait for it when it is closed
	}
	if limit >= 0 {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_ = c.vc.Disconnect(ctx) // the queue pair is closed in any case
		cancel()
	}
	err := c.release()
	c.mu.Lock()
	list := c.moves.abandon(end)
	c.mu.Unlock()
	list.finish()
	c.account.Give(hostquota.Connections, 1)
	close(c.gone)
	if err != nil {
		c.ep.cfg.Logger.Warn("the device has failed to release the objects of a connection", keyPeer, c.peer.str, keyError, err)
	}
}

// ended ends the connection because the device has reported its end. It processes the completions from before that end first.
func (c *conn) ended() {
	c.drain()
	err := c.vc.Err()
	if err == nil || errors.Is(err, verbs.ErrDisconnected) {
		err = errEnded
	} else {
		err = c.ep.late.explain(c, err)
	}
	c.fail(na.Unreachable, err)
}

// drain processes the completions from before the end of the connection.
func (c *conn) drain() {
	c.polling.Lock()
	defer c.polling.Unlock()
	for !c.dead.Load() && c.poll() > 0 {
		continue
	}
}
