package ofitcp

import (
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/sockio"
)

// spinner bounds how long a goroutine spins. Not more than Endpoint.maxSpin goroutines do at a time; drivers go first.
type spinner struct {
	driver bool
	policy *spinPolicy
	on     bool
	rounds int
	until  time.Time
	end    time.Time // a driver's: when driveTime is over; set when the clock is first looked at
}

// spinPolicy records whether spinning has paid lately. If it has not, because the peer takes its time or other programs use the
// processors, shouldSpin returns true only now and then.
type spinPolicy struct {
	misses  atomic.Int32 // spins in a row that brought nothing
	chances atomic.Int32 // calls of shouldSpin since then
}

const (
	spinMisses = 4  // spins in a row without result that are normal
	spinRetry  = 16 // after them, every 16th chance is taken
)

// shouldSpin reports whether to spin.
func (p *spinPolicy) shouldSpin() bool {
	return p.misses.Load() < spinMisses || p.chances.Add(1)%spinRetry == 0
}

// spinRounds is the number of reads without result after which the spinner reads the clock and yields: a yield makes the scheduler
// wake a thread to look for work, which takes its time from the peer if that is on this machine. Goroutines that the last read
// has made ready run in the first round.
const spinRounds = 16

// spinWithin is how many times as long a goroutine spins in the midst of a message: the peer is sending the rest.
const spinWithin = 4

// spin is called after a vain read and reports whether to go on. within says that a part of a message has come.
func (s *spinner) spin(e *Endpoint, within bool) bool {
	if !s.on && !s.begin(e, within) {
		return false
	}
	switch {
	case s.rounds == 0:
		if !s.aim(e, within) {
			return false
		}
	case (s.rounds%spinRounds == 0 || e.alone) && time.Now().After(s.until):
		if !s.driver || s.until.Before(s.end) { // or it had too little time left
			s.policy.misses.Add(1)
		}
		return false
	case !s.driver && e.driving.Load()+e.spinning.Load() > e.maxSpin, shared.crowded():
		return false
	}
	if (s.rounds%spinRounds == 0 && e.poller.Poll() > 0) || e.alone {
		runtime.Gosched()
	}
	s.rounds++
	return true
}

// aim looks at the clock and decides until when to spin. False: not at all.
func (s *spinner) aim(e *Endpoint, within bool) bool {
	now, d := time.Now(), e.cfg.Spin
	if within {
		d *= spinWithin
	}
	s.until = now.Add(d)
	if !s.driver {
		return true
	}
	if s.late(now) {
		return false
	}
	if s.until.After(s.end) {
		s.until = s.end
	}
	return true
}

// late reports whether a driver has to come back to its caller.
func (s *spinner) late(now time.Time) bool {
	if s.end.IsZero() {
		s.end = now.Add(driveTime)
	}
	return now.After(s.end)
}

func (s *spinner) begin(e *Endpoint, within bool) bool {
	if !sockio.Direct || e.cfg.Spin <= 0 || shared.crowded() || !within && !s.policy.shouldSpin() {
		return false
	}
	s.on = true
	n := s.count(e).Add(1)
	if n > e.maxSpin || !s.driver && n+e.driving.Load() > e.maxSpin {
		s.stop(e)
	}
	return s.on
}

func (s *spinner) count(e *Endpoint) *atomic.Int32 {
	if s.driver {
		return &e.driving
	}
	return &e.spinning
}

// reset starts the time anew, after something has come.
func (s *spinner) reset() {
	if s.rounds > 0 {
		s.policy.misses.Store(0)
		s.rounds = 0
	}
}

func (s *spinner) stop(e *Endpoint) {
	if s.on {
		s.on = false
		s.count(e).Add(-1)
	}
}
