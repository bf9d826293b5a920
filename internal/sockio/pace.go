package sockio

import "time"

// AcceptPace lets the rest of the process have its turn in a loop that accepts connections. Go's scheduler looks at the
// network only when nothing else can run, or every 10 ms. A loop that always finds another connection, and the goroutines
// that it starts, would make all connections that are established wait for that.
//
// The zero AcceptPace is ready for use by one goroutine.
type AcceptPace struct {
	n     int
	since time.Time
	timer *time.Timer
}

const (
	paceCount = 16                     // connections in a row after which the loop rests
	paceSpan  = 16 * time.Millisecond  // in less than this; more is no crowd
	paceRest  = 100 * time.Microsecond // for which it does
)

// Accepted is called after each connection. It rests after many in a row.
func (p *AcceptPace) Accepted() {
	if p.n++; p.n < paceCount {
		return
	}
	p.n = 0
	now := time.Now()
	if now.Sub(p.since) < paceSpan {
		if p.timer == nil {
			p.timer = time.NewTimer(paceRest)
		} else {
			p.timer.Reset(paceRest)
		}
		<-p.timer.C
		now = now.Add(paceRest)
	}
	p.since = now
}
