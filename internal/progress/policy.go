package progress

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Mode is the choice between the latency of waits and the processor time that they use. The empty Mode is Balanced.
type Mode string

// The modes.
const (
	Balanced Mode = "balanced" // a waiter spins for twice the price of a wake-up
	Latency  Mode = "latency"  // a waiter spins for latencyBudget
	Economy  Mode = "economy"  // a waiter parks at once
)

// latencyBudget is the length of a spin in mode Latency.
const latencyBudget = 10 * time.Millisecond

// Check returns an error if m is not one of the modes, or if a machine with procs processors cannot use it.
func (m Mode) Check(procs int) error {
	switch m {
	case "", Balanced, Economy:
		return nil
	case Latency:
		if procs == 1 {
			return errOneProcessor
		}
		return nil
	}
	return fmt.Errorf("mode %q is unknown: use %q, %q or %q", m, Balanced, Latency, Economy)
}

var errOneProcessor = errors.New("mode \"latency\" needs two processors, because polls of 10 ms on the only one would delay the peers that they wait for; use \"balanced\" or \"economy\"")

// Policy is the spin policy of one engine. All methods are safe for concurrent use.
type Policy struct {
	mode  Mode
	fixed time.Duration // the budget instead of the process's; 0: none
	proc  *process

	spins, parks, yields, handOvers atomic.Uint64
}

// Counters counts the waits of an engine since it was opened.
type Counters struct {
	Spins     uint64 // waits that have spun, with or without success
	Parks     uint64 // waits that have parked and were woken
	Yields    uint64 // times that a spinning waiter gave its processor to other threads
	HandOvers uint64 // calls of HandOver
}

// New returns a Policy of mode m. The first call in a process that spins measures the price of a wake-up, which takes some
// milliseconds at most.
func New(m Mode) *Policy {
	p := &Policy{mode: cmp.Or(m, Balanced), proc: shared}
	if p.MaySpin() {
		shared.measureOnce.Do(shared.measure)
	}
	return p
}

// NewFixed returns a Policy of mode Balanced with a constant budget, for tests and benchmarks. If budget is not positive the mode is
// Economy.
func NewFixed(budget time.Duration) *Policy {
	if budget <= 0 {
		return &Policy{mode: Economy, proc: shared}
	}
	return &Policy{fixed: budget, proc: shared}
}

// Mode returns the mode that p was made with.
func (p *Policy) Mode() Mode { return p.mode }

// MaySpin reports whether waiters spin at all: the mode is not Economy, a peer can run while a waiter spins, and, in mode Balanced, the clock is not dear. A peer
// can run on another processor, or because waiters yield the only one.
func (p *Policy) MaySpin() bool {
	switch {
	case p.mode == Economy:
		return false
	case p.fixed > 0:
		return true
	}
	return (p.proc.procs > 1 || p.proc.yield != nil) && (p.mode == Latency || !p.proc.dearClock.Load())
}

// Budget returns the length of a usual spin.
func (p *Policy) Budget() time.Duration {
	switch {
	case !p.MaySpin():
		return 0
	case p.fixed > 0:
		return p.fixed
	case p.mode == Latency:
		return latencyBudget
	}
	return time.Duration(p.proc.budget.Load())
}

// Counters returns the present counts.
func (p *Policy) Counters() Counters {
	return Counters{Spins: p.spins.Load(), Parks: p.parks.Load(), Yields: p.yields.Load(), HandOvers: p.handOvers.Load()}
}

// HandOver runs the goroutines that are ready to run on this thread, and then returns. A reader calls it once after it has handed a
// request to another goroutine or has woken a waiter, and before it looks for further messages.
func (p *Policy) HandOver() {
	p.handOvers.Add(1)
	runtime.Gosched()
}

// Woken counts a wake-up, and adds its price to the samples. A goroutine that was parked calls it after the wake-up, before its first
// look. rang is the result of [Now] at the signal that woke the goroutine, or 0 if that time is not known; then there is no sample.
func (p *Policy) Woken(rang int64) {
	p.parks.Add(1)
	hook.late()
	if rang != 0 {
		p.proc.add(p.proc.now() - rang)
	}
}

// AddPair records a connection of which both ends are in this process. While such a connection exists, two goroutines of the process may spin
// instead of one, because each end waits for the other.
func (p *Policy) AddPair() { p.proc.pairs.Add(1) }

// RemovePair undoes one call of AddPair. The endpoint calls it when that connection has ended.
func (p *Policy) RemovePair() { p.proc.pairs.Add(-1) }

// process is the part of the policy that is shared by all engines of a process.
type process struct {
	procs   int          // processors that the process may use
	threads func() int   // number of threads that run goroutines; it may change
	now     func() int64 // nanoseconds
	run     func()       // lets other goroutines run on the thread of the caller
	yield   func()       // gives the processor to other threads; nil: the system has no such call

	drivers atomic.Int32 // waiters of calls that spin
	pollers atomic.Int32 // other goroutines that spin
	pairs   atomic.Int32

	measureOnce sync.Once
	budget      atomic.Int64 // nanoseconds
	dearClock   atomic.Bool  // a reading of the clock takes longer than the constant dearClock
	price
	yields
}

// shared is the process.
var shared = newProcess(runtime.NumCPU(), func() int { return runtime.GOMAXPROCS(0) }, Now, schedYield)

func newProcess(procs int, threads func() int, now func() int64, yield func()) *process {
	p := &process{procs: procs, threads: threads, now: now, run: runtime.Gosched, yield: yield}
	p.setPrice(initialPrice)
	return p
}

// limit returns the number of goroutines that may spin at the same time.
func (p *process) limit() int32 {
	if p.pairs.Load() > 0 && p.procs > 1 {
		return 2
	}
	return 1
}

var began = time.Now()

// Now returns the time for [Policy.Woken]: nanoseconds since the process started, never 0.
func Now() int64 { return int64(time.Since(began)) + 1 }
