package ofiverbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// watch has the interval at which an endpoint looks at its connections, and the numbers of looks after which it acts. It counts looks and
// reads no clock, so that the time for which this process was stopped does not count as silence of its peers. A look is silent if neither a
// packet of the peer nor an answer of its device has come since the last look.
type watch struct {
	interval time.Duration // 0: no looks, because both limits are off
	probe    int           // silent looks in a row after which the endpoint calls probeLocked; 0: never
	silent   int           // silent looks in a row after which the connection ends; 0: never
	stalled  int           // looks in a row at which messages waited and none was posted, after which the connection ends; 0: never

	keepAlive, sendTimeout time.Duration
}

// looks is the least number of looks within KeepAlive and within SendTimeout.
const looks = 8

// newWatch returns the watch for the limits of Config. The connection to a silent peer ends before KeepAlive has passed.
func newWatch(keepAlive, sendTimeout time.Duration) watch {
	w := watch{keepAlive: keepAlive, sendTimeout: sendTimeout}
	for _, d := range []time.Duration{keepAlive, sendTimeout} {
		if d > 0 && (w.interval == 0 || d/looks < w.interval) {
			w.interval = max(d/looks, time.Millisecond)
		}
	}
	if w.interval == 0 {
		return w
	}
	if keepAlive > 0 {
		n := max(int(keepAlive/w.interval), looks)
		w.probe, w.silent = n*3/looks, n-1
	}
	if sendTimeout > 0 {
		w.stalled = max(int(sendTimeout/w.interval), looks)
	}
	return w
}

// seen is the result of the latest looks at a connection.
type seen struct {
	silent  int    // silent looks in a row
	stalled int    // looks in a row at which messages waited and none was posted since the last look
	posted  uint64 // conn.posted at the last look
}

// unresponsive is the cause of the end of a connection with a peer that is silent or posts no receives. Messages that were not sent fail with
// this cause and do not wait for the next connection, because the peer would not take them there either.
type unresponsive struct{ text string }

func (u *unresponsive) Error() string { return u.text }

func isUnresponsive(err error) bool {
	_, ok := errors.AsType[*unresponsive](err)
	return ok
}

// watch looks at the connections at intervals until the endpoint is closed.
func (e *Endpoint) watch(w *watch) {
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.look(w)
		case <-e.ctx.Done():
			return
		}
	}
}

// look ends the connections with peers that are silent or post no receives.
func (e *Endpoint) look(w *watch) {
	for _, c := range e.connections() {
		if err := c.look(w); err != nil {
			c.fail(na.Unreachable, err)
		}
	}
}

// look returns the reason why the connection must end, or nil. The peer counts as silent while neither a packet has come nor its device has
// answered a read or write. The completion of a send counts as an answer too, except on devices without exact statuses (iWARP), where it only
// means that TCP of this host has the bytes. To a silent peer look posts a read of no bytes, which needs no credit and which the peer's device
// answers without its program.
// The retries of this host's device would find the loss of the peer's host later, or never if the connection is idle.
func (c *conn) look(w *watch) error {
	s := &c.seen
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return nil
	}
	if (len(c.queue) > c.head || c.ending.asked) && c.posted == s.posted {
		s.stalled++
	} else {
		s.stalled, s.posted = 0, c.posted
	}
	if s.silent++; c.heard.Swap(false) {
		s.silent = 0
	}
	switch {
	case w.silent > 0 && s.silent >= w.silent:
		return &unresponsive{fmt.Sprintf("the peer's host has not answered for %v (KeepAlive)", w.keepAlive)}
	case w.stalled > 0 && s.stalled >= w.stalled:
		return &unresponsive{fmt.Sprintf("no message could be sent for %v (SendTimeout): %s", w.sendTimeout, c.reportLocked())}
	case w.probe > 0 && s.silent >= w.probe && c.open && !c.probing:
		return c.probeLocked()
	}
	return nil
}

// probeLocked posts a read of no bytes. The send queue has room for it, because sends counts probes.
//
// +checklocks:c.mu
func (c *conn) probeLocked() error {
	if _, err := c.qp.PostSend([]verbs.SendWR{{ID: idProbe, Op: verbs.OpRead, Flags: verbs.Signaled}}); err != nil {
		return fmt.Errorf("post a read of no bytes to a silent peer: %w", err)
	}
	c.probing = true
	c.ep.stats.probes.Add(1)
	return nil
}

// probeEnded records that the device of the peer has answered the read of probeLocked.
func (c *conn) probeEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = false
	if c.answered != nil {
		close(c.answered)
		c.answered = nil
	}
}

// answerTime is the time that the device of a connected peer has to answer a read of no bytes when another process connects as that peer. The
// time begins again whenever the connection makes progress, because the read waits behind the transfers of the connection.
const answerTime = time.Second

// answers reports whether the device of the peer answers a read of no bytes. A connection on which nothing can be posted yet counts as one that
// answers, because it is new. So does one that still makes progress later than answerTime after the call: progress before that may come from bytes
// that were under way when the peer's process ended. answers blocks for less than 2 times answerTime, and the end of ctx or of the connection ends
// it. Like look it counts ticks, so that the time for which this process was stopped does not count.
func (c *conn) answers(ctx context.Context) bool {
	c.mu.Lock()
	if c.end != nil || !c.open || !c.probing && c.probeLocked() != nil {
		lives := c.end == nil && !c.open
		c.mu.Unlock()
		return lives
	}
	if c.answered == nil {
		c.answered = make(chan struct{})
	}
	answered := c.answered
	c.mu.Unlock()
	tick := time.NewTicker(answerTime / looks)
	defer tick.Stop()
	before := c.steps()
	for n, silent := 1, 0; ; n++ {
		select {
		case <-answered:
			return true
		case <-c.stop:
			return false
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		now := c.steps()
		switch moved := now != before; {
		case moved && n > looks:
			return true
		case moved:
			before, silent = now, 0
		default:
			if silent++; silent == looks {
				return false
			}
		}
	}
}

// steps returns a number that changes when the connection makes progress: when completions come, and, if the device counts them, when bytes move.
func (c *conn) steps() uint64 { return c.polls.Load() + c.cq.Moves() }
