package margo

import (
	"sync/atomic"
	"time"
)

// Pace learns from the handlers of one RPC whether the next is likely to be quick, so that it need not have a goroutine
// of its own. An RPC starts as slow, becomes quick when several runs in a row were, and is slow again for a long while
// after one that was not, or that waited. The zero Pace knows nothing.
//
// A wrong guess costs little: the transport takes its work away from a goroutine that is stuck in a handler.
type Pace struct {
	// trust counts quick runs in a row, up to trusted. Below zero it is for how many runs nothing is learned.
	trust atomic.Int32
	tasks atomic.Uint32 // runs since trusted, to measure one of several
}

const (
	trusted   = 8                      // quick runs in a row after which an RPC is quick
	quickRun  = 20 * time.Microsecond  // a run below it is quick
	slowRun   = 100 * time.Microsecond // a run of a quick RPC above it is not; what is between may be the scheduler's doing
	mistrust  = 4096                   // runs for which a slow RPC stays slow
	sampleOne = 8                      // of so many runs of a quick RPC one is measured
)

// Quick tells whether the next handler may be run by the goroutine that read the request.
func (p *Pace) Quick() bool { return p.trust.Load() >= trusted }

// Measure tells whether the duration of the run that begins is wanted for Record. It is called once for each run.
func (p *Pace) Measure() bool {
	switch t := p.trust.Load(); {
	case t < 0:
		p.trust.Add(1)
		return false
	case t < trusted:
		return true
	}
	return p.tasks.Add(1)%sampleOne == 0
}

// Record learns from a run that took d.
func (p *Pace) Record(d time.Duration) {
	t := p.trust.Load()
	switch {
	case t < 0:
	case t < trusted && d < quickRun:
		p.trust.Add(1)
	case t < trusted:
		p.trust.Store(0)
	case d > slowRun:
		p.Waited()
	}
}

// Waited learns that a handler waited for something, however short.
func (p *Pace) Waited() {
	if p.trust.Load() >= 0 {
		p.trust.Store(-mistrust)
	}
}
