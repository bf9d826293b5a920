package hg

import (
	"errors"
	"maps"
	"sync"
	"time"

	"cinnabar/internal/na"
)

// Bounds of the answers that one peer has to pull and does not.
const (
	// owedFree is how many of them may hold their handlers for as long as [patience] of ackTime allows, whatever the peer
	// does: it may be a C program that computes for a while.
	owedFree = 4
	// owedTime is for how long the peer may acknowledge nothing, beside what the largest of them takes at the slowest
	// rate, before the others stop holding theirs.
	owedTime = 5 * time.Second
)

var (
	errStalled = errors.New("peer pulls none of the responses that it has asked for")
	errOwing   = errors.New("peer has left responses unpulled: it has to pull what it was sent before it is sent more")
)

// owed knows which peers have answers to pull. Without it one peer that asks for long answers and pulls none would hold
// every handler of the process for a minute, again and again.
type owed struct {
	mu sync.Mutex
	// +checklocks:mu
	byPeer map[string]*owing
	// +checklocks:mu
	sweepAt int // at so many, those that are gone are forgotten
}

// owing is what one peer has to pull. The mutex of owed guards it. It is remembered while answers wait; if the peer has
// stalled, for as long as its connection lives.
type owing struct {
	waiting int       // answers that hold a handler
	leaving int       // of them, those that are about to stop
	largest int       // bytes of the largest answer since waiting was 0
	since   time.Time // when the peer last acknowledged one, or when the first began to wait
	stalled bool      // it has let one wait too long, and has acknowledged none since
	gone    <-chan struct{}
}

// owedAnswer is one answer that waits to be pulled.
type owedAnswer struct {
	o       *owed
	peer    string
	by      *owing
	leaving bool // overdue has said so
}

// enter counts an answer of n bytes to peer a. It returns nil if the peer must pull others first.
func (o *owed) enter(a na.Addr, n int) *owedAnswer {
	key, gone := a.String(), a.Done()
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.byPeer[key]
	if w == nil || w.waiting == 0 && w.gone != gone { // another process, perhaps
		w = &owing{}
		o.addLocked(key, w)
	}
	if w.stalled && w.waiting-w.leaving >= owedFree {
		return nil
	}
	if w.waiting == 0 {
		w.largest, w.since, w.gone = 0, time.Now(), gone
	}
	w.waiting++
	w.largest = max(w.largest, n)
	return &owedAnswer{o: o, peer: key, by: w}
}

// addLocked enters a peer, and forgets those that are gone when there are twice as many as the last time.
//
// +checklocks:o.mu
func (o *owed) addLocked(key string, w *owing) {
	if len(o.byPeer) >= max(o.sweepAt, minSweep) {
		maps.DeleteFunc(o.byPeer, func(_ string, w *owing) bool { return w.waiting == 0 && (w.gone == nil || isClosed(w.gone)) })
		o.sweepAt = 2 * len(o.byPeer)
	}
	o.byPeer[key] = w
}

// overdue tells whether the answer has to stop holding its handler, because the peer pulls nothing and others of the same
// peer wait as well. Otherwise it returns how long to wait before asking again.
func (q *owedAnswer) overdue() (over bool, again time.Duration) {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	w := q.by
	left := patience(owedTime, w.largest) - time.Since(w.since)
	switch {
	case left > 0:
		return false, left
	case w.waiting-w.leaving <= owedFree:
		return false, owedTime
	}
	w.leaving++
	w.stalled, q.leaving = true, true
	return true, 0
}

// leave ends the waiting. err is how it ended: nil if the peer has acknowledged the answer.
func (q *owedAnswer) leave(err error) {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	w := q.by
	w.waiting--
	if q.leaving {
		w.leaving--
	}
	switch {
	case err == nil:
		w.stalled, w.since = false, time.Now()
	case errors.Is(err, errUnacked):
		w.stalled = true
	}
	if w.waiting == 0 && !w.stalled && q.o.byPeer[q.peer] == w {
		delete(q.o.byPeer, q.peer)
	}
}
