package flow

import (
	"context"
	"fmt"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// checksPerKeepAlive is the number of times in Config.KeepAlive that a connection looks for a sign of life. After the first look
// without one it asks the peer's device, and after so many in a row it ends.
const checksPerKeepAlive = 4

// watch ends the connection when the peer's device has been silent for too long. It returns when ctx ends, which the
// connection's end does.
func (c *Conn) watch(ctx context.Context) {
	tick := time.NewTicker(c.cfg.KeepAlive / checksPerKeepAlive)
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
		received, open := c.takeSigns()
		if silent++; received {
			silent = 0
		}
		switch {
		case silent == checksPerKeepAlive:
			c.fail(fmt.Errorf("%w for %v", ErrSilent, c.cfg.KeepAlive))
			return
		case silent > 0 && open && !asking: // the active side sends as soon as it is connected
			asking = true
			c.watching.Go(func() { answer <- c.ask(ctx) })
		}
	}
}

// takeSigns reports whether the peer has given a sign of life since the last call, and whether it ever did so.
func (c *Conn) takeSigns() (received, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	received, c.rx.received = c.rx.received, false
	return received, c.open
}

// ask reads a byte of the peer's ring, which the peer's device answers without its program. By the specifications a read of no
// bytes would do, but Linux's siw does not accept it. ask waits for the answer until ctx ends. The answer is a sign of life like
// others, because the peer may send while the read waits behind other work. ask reports whether to go on.
func (c *Conn) ask(ctx context.Context) bool {
	err := c.Do(ctx, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{c.Discard()}, Remote: c.remote})
	if err != nil && c.Err() == nil {
		if suppressed, ok := audit.Allow(hostquota.HostOf(c.RemoteAddr().Addr())); ok {
			c.cfg.Logger.Warn("a silent peer is not noticed: the device does not ask it", "peer", c.RemoteAddr(), "error", err, "suppressed", suppressed)
		}
	}
	return err == nil
}

// noteSignLocked notes a completion that only a living peer can cause. A write can complete without a peer.
//
// +checklocks:c.mu
func (c *Conn) noteSignLocked(wc *verbs.WC) {
	if wc.ID&idMask == idReceive || wc.ID&idMask == idOneSided && wc.Op != verbs.WCWrite {
		c.rx.received = true
	}
}
