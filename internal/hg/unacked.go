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

// Bounds of the responses with overflow that the peers of one host have to pull and do not.
const (
	// unackedFree is the number of these responses that may hold their handlers for as long as [patience] of ackTime allows, even if
	// the host pulls none, because a peer may be a C program that computes for a while.
	unackedFree = 4
	// unackedTime is for how long the host may acknowledge no response, in addition to the time that the largest one takes at
	// the slowest rate. After it the responses beyond unackedFree stop holding their handlers.
	unackedTime = 5 * time.Second
	// unackedLeft is the number of responses that may stay in memory for the peers of the host to pull although they hold no handler
	// any more. Beyond it the host's requests for long responses are refused.
	unackedLeft = 64
)

var (
	errStalled  = errors.New("peer pulls none of the responses that it has asked for")
	errUnpulled = errors.New("peer has left responses unpulled: it has to pull them before it is sent more")
)

// unackedTable has the responses with overflow that are not acknowledged, by host. Without it a host that asks for long responses and pulls
// none would hold all handlers that it may have for a minute, again and again. It counts hosts and not peers, because a host can have
// as many peers as ports.
//
// A peer does not report that it has given up a call, and never pulls the response of such a call. So a peer that has given up several
// looks like one that pulls nothing. Therefore a new response to such a peer takes the place of the oldest one. A host is refused only
// if it leaves unackedLeft of those unpulled as well, and pulls none in between.
type unackedTable struct {
	mu invariants.Mutex
	// +checklocks:mu
	byHost map[hostquota.Host]*hostUnacked
	// +checklocks:mu
	sweepAt int // number of hosts at which addLocked deletes those without a connection
}

// hostUnacked has the responses that the peers of one host have to pull. The mutex of unackedTable guards it. It is kept while responses
// wait or are left, and after the host has stalled for as long as its connection lives.
type hostUnacked struct {
	waiting []*unackedResponse // responses that hold a handler, the oldest first
	left    int                // responses that hold no handler any more, but have memory for the peer to pull
	largest int                // bytes of the largest response since none waited
	since   time.Time          // when the host last acknowledged a response, or when the first began to wait
	stalled bool               // the host has let a response wait too long, and has acknowledged none since
	gone    <-chan struct{}
}

// unackedResponse is one response that a peer has to pull.
type unackedResponse struct {
	o     *unackedTable
	host  hostquota.Host
	by    *hostUnacked
	left  bool          // it does not hold its handler any more
	evict chan struct{} // closed when a newer response takes its place
}

// enter counts a response of n bytes to peer a. It returns nil if its host must pull others first.
func (o *unackedTable) enter(a na.Addr, n int) *unackedResponse {
	key, gone := hostOf(a), a.Done()
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.byHost[key]
	if w == nil || w.idle() && w.gone != gone { // another process, perhaps
		w = &hostUnacked{}
		o.addLocked(key, w)
	}
	if w.stalled && len(w.waiting) >= unackedFree {
		if w.left >= unackedLeft {
			return nil
		}
		oldest := w.waiting[0]
		o.leaveLocked(oldest)
		close(oldest.evict)
	}
	if len(w.waiting) == 0 {
		w.largest, w.since, w.gone = 0, time.Now(), gone
	}
	q := &unackedResponse{o: o, host: key, by: w, evict: make(chan struct{})}
	w.waiting = append(w.waiting, q)
	w.largest = max(w.largest, n)
	return q
}

// addLocked enters a host. When there are twice as many hosts as after the last sweep, it deletes those that are idle and have no connection.
//
// +checklocks:o.mu
func (o *unackedTable) addLocked(key hostquota.Host, w *hostUnacked) {
	if len(o.byHost) >= max(o.sweepAt, minSweep) {
		maps.DeleteFunc(o.byHost, func(_ hostquota.Host, w *hostUnacked) bool {
			return w.idle() && (w.gone == nil || rundown.IsClosed(w.gone))
		})
		o.sweepAt = 2 * len(o.byHost)
	}
	o.byHost[key] = w
}

// idle reports whether the host has nothing to pull.
func (w *hostUnacked) idle() bool { return len(w.waiting) == 0 && w.left == 0 }

// leaveLocked records that the response does not hold its handler any more.
//
// +checklocks:o.mu
func (o *unackedTable) leaveLocked(q *unackedResponse) {
	w := q.by
	w.waiting = slices.DeleteFunc(w.waiting, func(other *unackedResponse) bool { return other == q })
	q.left = true
	w.left++
}

// overdue reports whether the response has to stop holding its handler, because the host pulls nothing and others of its responses wait as
// well. Otherwise it returns how long to wait before the next call.
func (q *unackedResponse) overdue() (over bool, again time.Duration) {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	w := q.by
	left := patience(unackedTime, w.largest) - time.Since(w.since)
	switch {
	case q.left:
		return true, 0
	case left > 0:
		return false, left
	case len(w.waiting) <= unackedFree:
		return false, unackedTime
	}
	w.stalled = true
	q.o.leaveLocked(q)
	return true, 0
}

// waited ends the waiting. err is nil if the peer has acknowledged the response. If lingers is true, the memory stays, and the caller
// calls forget later.
func (q *unackedResponse) waited(err error, lingers bool) {
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

// forget ends the count of a response that has lingered, because its memory is closed.
func (q *unackedResponse) forget() {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	q.forgetLocked()
}

// +checklocks:q.o.mu
func (q *unackedResponse) forgetLocked() {
	w := q.by
	w.left--
	if w.idle() && !w.stalled && q.o.byHost[q.host] == w {
		delete(q.o.byHost, q.host)
	}
}
