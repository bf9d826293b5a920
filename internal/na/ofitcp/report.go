package ofitcp

import (
	"fmt"
	"sync/atomic"

	"cinnabar/internal/na"
)

// failures records the failed attempts to connect of one dial. Report reads it concurrently.
type failures struct {
	n    atomic.Int32
	last atomic.Pointer[error]
}

// note records an attempt that failed with err.
func (f *failures) note(err error) {
	f.last.Store(&err)
	f.n.Add(1)
}

// Report implements [na.Reporter]. It returns the present step of connecting to peer a, or the reason why the connection sends nothing,
// and the empty string if the connection sends or if no attempt to connect is under way.
func (e *Endpoint) Report(a na.Addr) string {
	p, _ := e.resolve(a)
	if p == nil {
		return ""
	}
	if c := p.conn.Load(); c != nil {
		if c.blocked.Load() {
			return "the peer takes no bytes from its connection"
		}
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch try := p.try; {
	case try == nil:
		return ""
	case p.link == linkAccepting:
		return "answering the peer's connection request"
	case try.failed.n.Load() > 0:
		return fmt.Sprintf("connecting: failed %d times, last: %v", try.failed.n.Load(), *try.failed.last.Load())
	case try.sent.Load() == attemptSent:
		return "waiting for the answer to the connection request"
	}
	return "connecting"
}

// Conns implements [na.ConnLister].
func (e *Endpoint) Conns(limit int) (list []na.ConnInfo, total int) {
	conns := e.connections()
	up := make(map[*peer]bool, len(conns))
	list = make([]na.ConnInfo, 0, len(conns))
	for _, c := range conns {
		up[c.peer] = true
		list = append(list, c.info())
	}
	for _, p := range e.active.List() {
		if up[p] || p == e.own {
			continue
		}
		if step := e.Report(p); step != "" {
			list = append(list, na.ConnInfo{Peer: p.str, State: na.ConnConnecting, Report: step})
		}
	}
	return na.FirstConns(list, limit), len(list)
}

// info describes the connection at the moment.
func (c *conn) info() na.ConnInfo {
	info := na.ConnInfo{Peer: c.peer.str, State: na.ConnActive, Inbound: c.inbound, Received: int64(c.rxBytes.Load()), Sent: int64(c.txBytes.Load())}
	switch {
	case c.dead.Load():
		info.State = na.ConnEnding
	case c.blocked.Load():
		info.State, info.Report = na.ConnBlocked, "the peer takes no bytes from its connection"
	case c.paused.Load():
		info.State, info.Report = na.ConnPaused, "the peer leaves its answers unread"
	case c.idle():
		info.State = na.ConnIdle
	}
	return info
}
