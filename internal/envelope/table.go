package envelope

import "cinnabar/internal/invariants"

// Limits of the memory for cancels that come before their calls.
const (
	earlyEach  = 32  // calls of one connection
	earlyConns = 256 // connections
)

// Table has the calls that an engine serves and that their callers can cancel. A call is named by the connection of its request and by the id
// that its caller has chosen, so no peer can name a call of another one. The zero Table is empty. It is safe for concurrent use.
type Table struct {
	mu invariants.Mutex
	// +checklocks:mu
	calls map[callKey]Canceller
	// early has the cancelled calls that are not in the table, because the server still fetches their arguments, or because they have
	// ended. The latter are forgotten in time: newer ids take the places of older ones.
	// +checklocks:mu
	early map[<-chan struct{}]*earlyIDs
}

// Canceller is a call in a [Table].
type Canceller interface {
	// Cancel ends the call for its caller. It must not block.
	Cancel()
}

type callKey struct {
	conn <-chan struct{}
	id   uint64
}

type earlyIDs struct {
	ids  [earlyEach]uint64
	next int
}

// take removes id and reports whether it was there.
func (e *earlyIDs) take(id uint64) bool {
	for i, x := range e.ids {
		if x == id {
			e.ids[i] = 0
			return true
		}
	}
	return false
}

// Add adds a call. Its id is not 0. cancelled is true if the cancel came before the call. ok is false if the
// connection has a call with that id; the call is not added then.
func (t *Table) Add(conn <-chan struct{}, id uint64, call Canceller) (cancelled, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := callKey{conn, id}
	if _, taken := t.calls[k]; taken {
		return false, false
	}
	if t.calls == nil {
		t.calls = map[callKey]Canceller{}
	}
	t.calls[k] = call
	e := t.early[conn]
	return e != nil && e.take(id), true
}

// Empty reports whether the engine serves no call.
func (t *Table) Empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.calls) == 0
}

// Remove removes a call that was added.
func (t *Table) Remove(conn <-chan struct{}, id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.calls, callKey{conn, id})
}

// Cancel cancels calls of one connection. Ids of 0 are ignored.
func (t *Table) Cancel(conn <-chan struct{}, ids []uint64) {
	for _, id := range ids {
		if call := t.find(conn, id); call != nil {
			call.Cancel()
		}
	}
}

// find returns a call. If there is none, it keeps the id for the call that may still come.
func (t *Table) find(conn <-chan struct{}, id uint64) (call Canceller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if call = t.calls[callKey{conn, id}]; call != nil || id == 0 {
		return call
	}
	e := t.early[conn]
	if e == nil {
		e = t.earlyOf(conn)
	}
	e.ids[e.next%earlyEach] = id
	e.next++
	return nil
}

// earlyOf makes room for the cancelled calls of a connection. It forgets those of an arbitrary other connection if there are too many.
// +checklocks:t.mu
func (t *Table) earlyOf(conn <-chan struct{}) *earlyIDs {
	if t.early == nil {
		t.early = map[<-chan struct{}]*earlyIDs{}
	}
	for other := range t.early {
		if len(t.early) < earlyConns {
			break
		}
		delete(t.early, other)
	}
	e := new(earlyIDs)
	t.early[conn] = e
	return e
}
