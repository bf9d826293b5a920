package sm

import "cinnabar/internal/na"

// probeMemory finds out whether the kernel lets this process reach the peer's memory, when they connect: what is wrong with
// the settings is told then, not when the first transfer fails. Peers of this package move their memory themselves, and
// are asked to from the first transfer on. Messages need no permission.
func (c *conn) probeMemory() {
	e, a := c.ep, c.addr
	if c.pid == e.who.pid {
		return
	}
	err := probe(c.pid)
	if !refused(err) {
		if a.attach.Swap(nil) != nil { // somebody has changed the settings
			a.relayed.Store(false)
		}
		return
	}
	why := newAttachError(c.pid, err)
	a.attach.Store(why)
	if c.ext != nil {
		a.relayed.Store(true)
	}
	switch {
	case !e.mayLog(a):
	case c.ext != nil:
		e.cfg.Logger.Info("the peer copies its memory for this process, which takes longer than if the kernel did", keyPeer, a.String(), keyError, why)
	default:
		e.cfg.Logger.Warn("bulk transfers from and to the peer will fail", keyPeer, a.String(), keyError, why)
	}
}

// noRelay is why a transfer fails whose peer does not move its memory itself either.
func (t *transfer) noRelay(err error) error {
	if t.refused != nil {
		return t.refused
	}
	if why := t.to.attach.Load(); why != nil {
		return &na.Error{Kind: na.Denied, Err: why}
	}
	return &na.Error{Kind: na.Unreachable, Err: &noRelayError{err}}
}
