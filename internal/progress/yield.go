package progress

import (
	"sync/atomic"
	"time"
)

const (
	// hoggedYield is the duration of a yield above which the other thread has used its whole time slice.
	hoggedYield = 2 * time.Millisecond
	// earlyMessages is the number of messages for which waiters yield from the first look on.
	earlyMessages = 8
	// Without yields for pauseLeast after a hogged one, doubled for each further one up to pauseMost.
	pauseLeast    = 50 * time.Millisecond
	pauseDoubling = 4 // 800 ms
	// partLeast is the number of messages in a row, each right after a yield to the peer, after which a waiter parks. After each such park the
	// number doubles, up to partMost. It is partLeast again after partAlone messages in a row without a yield to the peer before them.
	partLeast = 16
	partMost  = 512
	partAlone = 64
)

// yields is the record of a process about the results of its yields.
type yields struct {
	early  atomic.Int32 // number of further messages for which waiters yield from the first look on
	hogged atomic.Int32 // hogged yields since the last one that helped
	pause  atomic.Int64 // no yields until then

	together atomic.Int32 // messages in a row, each right after a yield to another thread
	alone    atomic.Int32 // messages in a row that were not right after a yield to another thread, counted up to partAlone
	part     atomic.Int32 // value of together at which a waiter parks; 0: partLeast
}

// mayYield reports whether waiters yield at all at present.
func (p *process) mayYield(now int64) bool {
	if p.yield == nil {
		return false
	}
	until := p.pause.Load()
	return until == 0 || now >= until
}

// single reports whether the process may use one processor only, and can yield it. Peers without another processor run while a waiter yields.
func (p *process) single() bool { return p.procs == 1 && p.yield != nil }

// crowded reports whether waiters must not spin at present, because they have only one processor and yields are paused.
func (p *process) crowded() bool {
	return p.single() && p.pause.Load() != 0 && !p.mayYield(p.now())
}

// yieldsEarly reports whether waiters yield from the first look on.
func (p *process) yieldsEarly() bool { return p.early.Load() > 0 || p.single() }

// yielded records the end and the duration of a yield.
func (p *process) yielded(now, took int64) {
	if took > int64(hoggedYield) {
		n := p.hogged.Load()
		p.hogged.Store(min(n+1, pauseDoubling))
		p.pause.Store(now + int64(pauseLeast)<<n)
		p.early.Store(0)
	}
}

// found records that a look has found a message. others says that another thread ran in a yield just before.
func (p *process) found(others bool) {
	switch early := p.early.Load(); {
	case others:
		p.together.Add(1)
		p.alone.Store(0)
		p.early.Store(earlyMessages)
		if p.hogged.Load() != 0 {
			p.hogged.Store(0)
		}
	case early > 0:
		p.early.Store(early - 1)
		p.together.Store(0)
	}
	if !others && p.part.Load() > partLeast && p.alone.Add(1) == partAlone {
		p.part.Store(partLeast)
	}
}

// partNow reports whether a waiter must park although its time is not over, because the peer has shared its processor for the last part
// messages. The wake-up can separate the two: the kernel puts a thread that it wakes on an idle processor, if there is one, but two threads
// that yield to each other may stay on one processor.
func (p *process) partNow() bool {
	part := max(p.part.Load(), partLeast)
	if p.together.Load() < part {
		return false
	}
	p.together.Store(0)
	p.alone.Store(0)
	p.part.Store(min(2*part, partMost))
	return true
}
