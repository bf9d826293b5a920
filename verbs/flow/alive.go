package flow

import (
	"context"
	"fmt"
	"time"

	"cinnabar/verbs"
)

// signs is how many times in Config.KeepAlive a connection looks for a sign of life: a third of the time passes until it
// notices that there was none, a third until it asks, and a third until it gives up.
const signs = 3

// watch ends the connection when the peer's device has been silent for too long. It returns when ctx ends, which the
// connection's end does.
func (c *Conn) watch(ctx context.Context) {
	patience := c.cfg.KeepAlive / signs
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		heard, open := c.heard()
		switch {
		case heard:
		case !open: // the active side sends as soon as it is connected
			c.fail(c.silence())
		case !c.ask(ctx, patience):
			return
		}
	}
}

// heard tells whether the peer has given a sign of life since the last call, and whether it ever did so.
func (c *Conn) heard() (heard, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	heard, c.rx.heard = c.rx.heard, false
	return heard, c.open
}

// ask has the peer's device answer a read of a byte of its ring, in which the peer's program has no part. A read of no bytes
// would do by the specifications, but Linux's siw does not take it. It reports whether to go on.
func (c *Conn) ask(ctx context.Context, patience time.Duration) bool {
	asking, cancel := context.WithTimeoutCause(ctx, patience, c.silence())
	defer cancel()
	err := c.Do(asking, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{c.Sink()}, Remote: c.remote})
	switch {
	case err == nil:
		return true
	case asking.Err() != nil:
		c.fail(c.silence()) // if it has not even found room to ask
	case c.Err() == nil:
		c.cfg.Logger.Warn("a silent peer is not noticed: the device does not ask it", "peer", c.RemoteAddr(), "error", err)
	}
	return false
}

func (c *Conn) silence() error {
	return fmt.Errorf("%w for %v", ErrSilent, c.cfg.KeepAlive)
}

// signLocked takes note of a completion that only a living peer can cause. A write can complete without one.
//
// +checklocks:c.mu
func (c *Conn) signLocked(wc *verbs.WC) {
	if wc.ID&idMask == idReceive || wc.ID&idMask == idSide && wc.Op != verbs.WCWrite {
		c.rx.heard = true
	}
}
