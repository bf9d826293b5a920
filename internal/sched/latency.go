package sched

import (
	"sync/atomic"
	"time"
)

// LatencyEstimator predicts from the past runs of the handlers of one RPC whether the next run is quick. A quick run needs no goroutine of its
// own. The RPC counts as slow at first. It counts as quick after several quick runs in a row, and as slow for thousands of further runs after
// one that waited, or two measured ones in a row that took long. The time limit of a quick run is higher while at most one other handler runs. While at most one other handler
// is under way, a run may also wait for transfers with its caller; the rest of such a run must be short. The zero LatencyEstimator has seen no
// run.
//
// A wrong prediction costs little, because the transport gives the other tasks of a goroutine that stays in a handler to another goroutine.
type LatencyEstimator struct {
	quick trust         // for any Company
	brisk trust         // for BesideWaiting and Alone
	mover trust         // for Alone; the time of transfers with the caller does not count
	tasks atomic.Uint32 // number of runs that began when an estimate was quick, of which Measure chooses one in sampleOne
}

// trust counts runs in a row that were short enough, up to trusted. It is suspect after a run that was too long, until the next run that is
// measured. Below zero it is for how many runs nothing is learned.
type trust struct{ n atomic.Int32 }

const (
	trusted   = 8    // short runs in a row after which an RPC is quick
	suspect   = 9    // trusted, and the last run was too long: one such run may be a stall, in which another thread had the processor
	mistrust  = 4096 // runs for which a slow RPC stays slow
	doubt     = 64   // the same for the estimate of runs with transfers: fewer, because another program may have had the processor in a long run
	sampleOne = 8    // of so many runs of a quick RPC one is measured

	quickRun = 20 * time.Microsecond  // a run below it is quick
	slowRun  = 100 * time.Microsecond // a run of a quick RPC above it is not; the scheduler may cause times in between
	// The same for handlers that keep no other request waiting. It is about the cost of handing over to another processor and
	// back, with the copies of memory from one processor's cache to the other's.
	briskRun    = 80 * time.Microsecond
	sluggishRun = 400 * time.Microsecond
)

// Company states which other handlers are under way when a handler begins.
type Company uint8

const (
	BesideRunning Company = iota // several other handlers run, and may wait for this one or for its processor
	BesideWaiting                // at most one other handler runs, and the others wait for calls and transfers of their own
	Alone                        // at most one other handler is under way, see aloneRunning
)

// Quick reports whether the goroutine that read the request may run its handler. others states the other handlers that are under way.
func (p *LatencyEstimator) Quick(others Company) bool {
	return p.quick.given() || others >= BesideWaiting && p.brisk.given() || others >= Alone && p.mover.given()
}

// Measure reports whether the caller has to measure the run that begins, for Record. It is called once for each run.
func (p *LatencyEstimator) Measure() bool {
	quick, brisk, mover := p.quick.learns(), p.brisk.learns(), p.mover.learns()
	if quick || brisk || mover {
		return true
	}
	return (p.quick.given() || p.brisk.given() || p.mover.given()) && p.tasks.Add(1)%sampleOne == 0
}

// Record records a run that took d. moving is the part of d that was spent on transfers with the caller.
func (p *LatencyEstimator) Record(d, moving time.Duration) {
	p.quick.record(d, quickRun, slowRun, mistrust)
	p.brisk.record(d, briskRun, sluggishRun, mistrust)
	p.mover.record(d-moving, briskRun, sluggishRun, doubt)
}

// Moved records that a run waits for a transfer with its caller, for however short a time.
func (p *LatencyEstimator) Moved() {
	p.quick.lose(mistrust)
	p.brisk.lose(mistrust)
}

// Waited records that a run waits for anything else, for however short a time.
func (p *LatencyEstimator) Waited() {
	p.Moved()
	p.mover.lose(mistrust)
}

func (t *trust) given() bool { return t.n.Load() >= trusted }

// learns reports whether the duration of the run that begins could change n, and counts the run if it could not.
func (t *trust) learns() bool {
	n := t.n.Load()
	if n < 0 {
		t.n.Add(1)
		return false
	}
	return n != trusted
}

// record counts a run that took d, which is short enough below short. After two measured runs in a row above long, the next runs are not
// counted; runs is their number.
func (t *trust) record(d, short, long time.Duration, runs int32) {
	n := t.n.Load()
	switch {
	case n < 0:
	case n == suspect && d <= long:
		t.n.Store(trusted)
	case n == trusted && d > long:
		t.n.Store(suspect)
	case n < trusted && d < short:
		t.n.Add(1)
	case n < trusted:
		t.n.Store(0)
	case d > long: // again
		t.lose(runs)
	}
}

func (t *trust) lose(runs int32) {
	if t.n.Load() >= 0 {
		t.n.Store(-runs)
	}
}
