package flow

import (
	"context"
	"fmt"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// signs is how often a connection looks for a sign of life in Config.KeepAlive: when it first finds none it asks, and when it
// has found none so often in a row it gives up.
const signs = 4

// watch ends the connection when the peer's device has been silent for too long. It returns when ctx ends, which the
// connection's end does.
func (c *Conn) watch(ctx context.Context) {
	tick := time.NewTicker(c.cfg.KeepAlive / signs)
	defer tick.Stop()
	answer := make(chan bool, 1)
	for silent, asking := 0, false; ; {
		select {
		case <-ctx.Done():
			return
		case again := <-answer:
			if !again {
				return
			}
			asking = false
			continue
		case <-tick.C:
		}
		heard, open := c.heard()
		if silent++; heard {
			silent = 0
		}
		switch {
		case silent == signs:
			c.fail(fmt.Errorf("%w for %v", ErrSilent, c.cfg.KeepAlive))
			return
		case silent > 0 && open && !asking: // the active side sends as soon as it is connected
			asking = true
			c.watching.Go(func() { answer <- c.ask(ctx) })
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
// would do by the specifications, but Linux's siw does not take it. The answer, for which it waits until ctx ends, is a sign of
// life like others: the peer may well send while the read is behind much else. ask reports whether to go on.
func (c *Conn) ask(ctx context.Context) bool {
	err := c.Do(ctx, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{c.Discard()}, Remote: c.remote})
	if err != nil && c.Err() == nil {
		if suppressed, ok := audit.Allow(hostquota.HostOf(c.RemoteAddr().Addr())); ok {
			c.cfg.Logger.Warn("a silent peer is not noticed: the device does not ask it", "peer", c.RemoteAddr(), "error", err, "suppressed", suppressed)
		}
	}
	return err == nil
}

// signLocked takes note of a completion that only a living peer can cause. A write can complete without one.
//
// +checklocks:c.mu
func (c *Conn) signLocked(wc *verbs.WC) {
	if wc.ID&idMask == idReceive || wc.ID&idMask == idSide && wc.Op != verbs.WCWrite {
		c.rx.heard = true
	}
}
