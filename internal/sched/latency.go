package sched

import (
	"sync/atomic"
	"time"
)

// LatencyEstimator learns from the handlers of one RPC whether the next is likely to be quick, so that it need not have a goroutine
// of its own. An RPC starts as slow, becomes quick when several runs in a row were, and is slow again for a long while
// after one that was not, or that waited. The limit of a quick run depends on whether other requests have to wait meanwhile. The
// zero LatencyEstimator has seen no run.
//
// A wrong guess costs little: the transport takes its work away from a goroutine that is stuck in a handler.
type LatencyEstimator struct {
	quick, brisk trust
	tasks        atomic.Uint32 // runs since trusted, to measure one of several
}

// trust counts runs in a row that were short enough, up to trusted. Below zero it is for how many runs nothing is learned.
type trust struct{ n atomic.Int32 }

const (
	trusted   = 8    // short runs in a row after which an RPC is quick
	mistrust  = 4096 // runs for which a slow RPC stays slow
	sampleOne = 8    // of so many runs of a quick RPC one is measured

	quickRun = 20 * time.Microsecond  // a run below it is quick
	slowRun  = 100 * time.Microsecond // a run of a quick RPC above it is not; the scheduler may cause times in between
	// The same for handlers that keep no other request waiting. It is about the cost of handing over to another processor and
	// back, with the copies of memory from one processor's cache to the other's.
	briskRun    = 80 * time.Microsecond
	sluggishRun = 400 * time.Microsecond
)

// Quick reports whether the goroutine that read the request may run the next handler. alone states that no other handler is
// under way that it could keep waiting, or that waits for the same processor.
func (p *LatencyEstimator) Quick(alone bool) bool { return p.quick.given() || alone && p.brisk.given() }

// Measure reports whether the caller has to measure the run that begins, for Record. It is called once for each run.
func (p *LatencyEstimator) Measure() bool {
	quick, brisk := p.quick.learns(), p.brisk.learns()
	if quick || brisk {
		return true
	}
	return (p.quick.given() || p.brisk.given()) && p.tasks.Add(1)%sampleOne == 0
}

// Record learns from a run that took d.
func (p *LatencyEstimator) Record(d time.Duration) {
	p.quick.record(d, quickRun, slowRun)
	p.brisk.record(d, briskRun, sluggishRun)
}

// Waited learns that a handler waited for something, however short.
func (p *LatencyEstimator) Waited() {
	p.quick.lose()
	p.brisk.lose()
}

func (t *trust) given() bool { return t.n.Load() >= trusted }

// learns reports whether the duration of the run that begins could change n, and counts the run if it could not.
func (t *trust) learns() bool {
	n := t.n.Load()
	if n < 0 {
		t.n.Add(1)
		return false
	}
	return n < trusted
}

func (t *trust) record(d, short, long time.Duration) {
	n := t.n.Load()
	switch {
	case n < 0:
	case n < trusted && d < short:
		t.n.Add(1)
	case n < trusted:
		t.n.Store(0)
	case d > long:
		t.lose()
	}
}

func (t *trust) lose() {
	if t.n.Load() >= 0 {
		t.n.Store(-mistrust)
	}
}
