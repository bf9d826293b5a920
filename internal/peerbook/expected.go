package peerbook

import (
	"sync/atomic"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// Waiter is an operation that waits for an expected message (NA_Msg_recv_expected).
type Waiter struct {
	Op  *na.Op
	Buf []byte // the message is copied into it; the transport owns it until Op has finished
}

// Expected holds the operations that wait for expected messages of one peer, by tag. The zero Expected holds none. All methods are safe
// for concurrent use.
type Expected struct {
	n  atomic.Int32 // length of tags
	mu invariants.Mutex
	// +checklocks:mu
	tags map[uint32]Waiter
}

// Len returns the number of operations, without a lock.
func (x *Expected) Len() int { return int(x.n.Load()) }

// Add adds an operation, and returns false if another one waits for tag. Add calls begin with the Expected locked, so begin may call
// [Active.Add].
func (x *Expected) Add(tag uint32, w Waiter, begin func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, taken := x.tags[tag]; taken {
		return false
	}
	if x.tags == nil {
		x.tags = make(map[uint32]Waiter)
	}
	x.tags[tag] = w
	x.n.Add(1)
	begin()
	return true
}

// Has reports whether an operation waits for tag.
func (x *Expected) Has(tag uint32) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.tags[tag]
	return ok
}

// Take removes and returns the operation that waits for tag. The caller finishes it.
func (x *Expected) Take(tag uint32) (w Waiter, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w, ok = x.tags[tag]; ok {
		delete(x.tags, tag)
		x.n.Add(-1)
	}
	return w, ok
}

// TakeAll removes and returns all operations, except those for the tags in but.
func (x *Expected) TakeAll(but map[uint32]bool) []Waiter {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make([]Waiter, 0, len(x.tags))
	for tag, w := range x.tags {
		if !but[tag] {
			list = append(list, w)
			delete(x.tags, tag)
		}
	}
	x.n.Store(int32(len(x.tags)))
	return list
}

// Remove removes op, and reports whether it was there. The caller then finishes it.
func (x *Expected) Remove(op *na.Op) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for tag, w := range x.tags {
		if w.Op == op {
			delete(x.tags, tag)
			x.n.Add(-1)
			return true
		}
	}
	return false
}

// IfEmpty calls f if there is no operation, with the Expected locked, so f may call [Active.Remove].
func (x *Expected) IfEmpty(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.tags) == 0 {
		f()
	}
}
