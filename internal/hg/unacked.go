package hg

import (
	"errors"
	"maps"
	"slices"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
)

// Bounds of the answers that the peers of one host have to pull and do not.
const (
	// owedFree is how many of these answers may hold their handlers for as long as [patience] of ackTime allows, even if
	// the host pulls none, because a peer may be a C program that computes for a while.
	owedFree = 4
	// owedTime is for how long the host may acknowledge no answer, in addition to the time that the largest one takes at
	// the slowest rate. After it the answers beyond owedFree stop holding their handlers.
	owedTime = 5 * time.Second
	// owedLeft is how many answers may stay in memory for the peers of the host to pull although they hold no handler any
	// more. Beyond it the host's requests for long answers are refused.
	owedLeft = 64
)

var (
	errStalled = errors.New("peer pulls none of the responses that it has asked for")
	errOwing   = errors.New("peer has left responses unpulled: it has to pull what it was sent before it is sent more")
)

// owed keeps the unpulled answers of each host. Without it a host that asks for long answers and pulls none would hold all
// handlers that it may have for a minute, again and again. It goes by hosts, because one can have as many peers as ports.
//
// A peer cannot say that it has given up a call whose answer it therefore never pulls, and one that has given up several
// looks like one that pulls nothing. So a new answer of such a peer does not suffer for old ones: it takes the place of
// the oldest. Only a host that leaves owedLeft of those unpulled as well, and pulls none in between, is refused.
type owed struct {
	mu invariants.Mutex
	// +checklocks:mu
	byHost map[hostquota.Host]*owing
	// +checklocks:mu
	sweepAt int // at so many hosts, those that are gone are forgotten
}

// owing is the answers that one host has to pull. The mutex of owed guards it. It is kept while answers wait or are left,
// and after the host has stalled for as long as its connection lives.
type owing struct {
	waiting []*owedAnswer // answers that hold a handler, the oldest first
	left    int           // answers that hold no handler any more, but have memory for the peer to pull
	largest int           // bytes of the largest answer since none waited
	since   time.Time     // when the host last acknowledged an answer, or when the first began to wait
	stalled bool          // the host has let an answer wait too long, and has acknowledged none since
	gone    <-chan struct{}
}

// owedAnswer is one answer that a peer has to pull.
type owedAnswer struct {
	o     *owed
	host  hostquota.Host
	by    *owing
	left  bool          // it does not hold its handler any more
	evict chan struct{} // closed when a newer answer takes its place
}

// enter counts an answer of n bytes to peer a. It returns nil if its host must pull others first.
func (o *owed) enter(a na.Addr, n int) *owedAnswer {
	key, gone := hostOf(a), a.Done()
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.byHost[key]
	if w == nil || w.idle() && w.gone != gone { // another process, perhaps
		w = &owing{}
		o.addLocked(key, w)
	}
	if w.stalled && len(w.waiting) >= owedFree {
		if w.left >= owedLeft {
			return nil
		}
		oldest := w.waiting[0]
		o.leaveLocked(oldest)
		close(oldest.evict)
	}
	if len(w.waiting) == 0 {
		w.largest, w.since, w.gone = 0, time.Now(), gone
	}
	q := &owedAnswer{o: o, host: key, by: w, evict: make(chan struct{})}
	w.waiting = append(w.waiting, q)
	w.largest = max(w.largest, n)
	return q
}

// addLocked enters a peer, and forgets those that are gone when there are twice as many as the last time.
//
// +checklocks:o.mu
func (o *owed) addLocked(key hostquota.Host, w *owing) {
	if len(o.byHost) >= max(o.sweepAt, minSweep) {
		maps.DeleteFunc(o.byHost, func(_ hostquota.Host, w *owing) bool { return w.idle() && (w.gone == nil || rundown.IsClosed(w.gone)) })
		o.sweepAt = 2 * len(o.byHost)
	}
	o.byHost[key] = w
}

// idle tells that the peer has nothing to pull.
func (w *owing) idle() bool { return len(w.waiting) == 0 && w.left == 0 }

// leaveLocked has the answer hold its handler no longer.
//
// +checklocks:o.mu
func (o *owed) leaveLocked(q *owedAnswer) {
	w := q.by
	w.waiting = slices.DeleteFunc(w.waiting, func(other *owedAnswer) bool { return other == q })
	q.left = true
	w.left++
}

// overdue tells whether the answer has to stop holding its handler, because the peer pulls nothing and others of the same
// peer wait as well. Otherwise it returns how long to wait before asking again.
func (q *owedAnswer) overdue() (over bool, again time.Duration) {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	w := q.by
	left := patience(owedTime, w.largest) - time.Since(w.since)
	switch {
	case q.left:
		return true, 0
	case left > 0:
		return false, left
	case len(w.waiting) <= owedFree:
		return false, owedTime
	}
	w.stalled = true
	q.o.leaveLocked(q)
	return true, 0
}

// waited ends the waiting. err is how it ended: nil if the peer has acknowledged the answer. lingers says that the memory
// stays; then forget follows.
func (q *owedAnswer) waited(err error, lingers bool) {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	w := q.by
	switch {
	case err == nil:
		w.stalled, w.since = false, time.Now()
	case errors.Is(err, errUnacked):
		w.stalled = true
	}
	if !q.left {
		q.o.leaveLocked(q)
	}
	if !lingers {
		q.forgetLocked()
	}
}

// forget notes that the memory of an answer that has lingered is gone.
func (q *owedAnswer) forget() {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	q.forgetLocked()
}

// +checklocks:q.o.mu
func (q *owedAnswer) forgetLocked() {
	w := q.by
	w.left--
	if w.idle() && !w.stalled && q.o.byHost[q.host] == w {
		delete(q.o.byHost, q.host)
	}
}
