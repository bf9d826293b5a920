package iwarp

import (
	"time"

	"cinnabar/verbs"
)

// moderation delays the events of a queue. cq.mu guards it.
type moderation struct {
	count   int
	period  time.Duration
	pending int         // completions that asked for an event which has not been raised
	first   time.Time   // when the first of them came
	timer   *time.Timer // raises the event after period
}

// due counts a completion that asks for an event, and reports whether the event is due.
func (m *moderation) due() bool {
	if m.pending++; m.pending >= m.count {
		return true
	}
	if m.pending == 1 {
		m.first = time.Now()
		m.timer.Reset(m.period)
	}
	return false
}

// end forgets the pending completions and stops the timer. signalLocked calls it, and Moderate for the moderation that it replaces.
func (m *moderation) end() {
	m.pending = 0
	m.timer.Stop()
}

// Moderate implements [verbs.CQDriver].
func (q *cq) Moderate(count int, period time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.Errorf("moderate completion queue", verbs.ErrClosed, "the queue is closed")
	}
	if old := q.moderation; old != nil {
		if q.moderation = nil; old.pending > 0 {
			q.signalLocked() // so that no completion waits for the end of a moderation that is over
		}
		old.end()
	}
	if count > 1 {
		m := &moderation{count: count, period: period}
		m.timer = time.AfterFunc(period, func() { q.late(m) })
		m.timer.Stop()
		q.moderation = m
	}
	return nil
}

// late raises the event that m has delayed, unless it was raised meanwhile.
func (q *cq) late(m *moderation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.moderation != m || m.pending == 0 {
		return
	}
	if left := m.period - time.Since(m.first); left > 0 { // the timer has fired for completions before these
		m.timer.Reset(left)
		return
	}
	q.signalLocked()
}
