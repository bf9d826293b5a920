package progress

import (
	"sync/atomic"
	"time"
)

const (
	// sharedYield is the duration of a yield above which another thread has run on the processor. A yield without one takes 0.3 µs.
	sharedYield = time.Microsecond
	// hoggedYield is the duration of a yield above which the other thread has used its whole time slice.
	hoggedYield = 2 * time.Millisecond
	// earlyMessages is the number of messages for which waiters yield from the first look on.
	earlyMessages = 8
	// Without yields for pauseLeast after a hogged one, doubled for each further one up to pauseMost.
	pauseLeast    = 50 * time.Millisecond
	pauseDoubling = 4 // 800 ms
)

// yields is the record of a process about the results of its yields.
type yields struct {
	early  atomic.Int32 // number of further messages for which waiters yield from the first look on
	hogged atomic.Int32 // hogged yields since the last one that helped
	pause  atomic.Int64 // no yields until then
}

// mayYield reports whether waiters yield at all at present.
func (p *process) mayYield(now int64) bool {
	if p.yield == nil {
		return false
	}
	until := p.pause.Load()
	return until == 0 || now >= until
}

// yielded records the end and the duration of a yield. It reports whether another thread has run meanwhile.
func (p *process) yielded(now, took int64) (others bool) {
	if took > int64(hoggedYield) {
		n := p.hogged.Load()
		p.hogged.Store(min(n+1, pauseDoubling))
		p.pause.Store(now + int64(pauseLeast)<<n)
		p.early.Store(0)
	}
	return took > int64(sharedYield)
}

// found records that a look has found a message. others says that another thread ran in a yield just before.
func (p *process) found(others bool) {
	switch early := p.early.Load(); {
	case others:
		p.early.Store(earlyMessages)
		if p.hogged.Load() != 0 {
			p.hogged.Store(0)
		}
	case early > 0:
		p.early.Store(early - 1)
	}
}
