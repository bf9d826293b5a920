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
