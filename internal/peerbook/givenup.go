package peerbook

import (
	"iter"
	"slices"
	"sync/atomic"
)

// A connection remembers up to MaxGivenUp given-up calls with up to MaxGivenUpHandles handles in their requests; one call may have more handles.
// Beyond these limits it forgets the oldest calls.
const (
	MaxGivenUp        = 4096
	MaxGivenUpHandles = 1 << 16
)

// GivenUp holds the calls that their callers have given up, by the connection C and the tag of the request. The servers of these calls may still
// access the memory that has handles in the request. T is the transport's record of a call. The zero GivenUp holds none. The caller
// guards all methods but Len by a lock.
type GivenUp[C comparable, T any] struct {
	n     atomic.Int64 // number of calls
	conns map[C]*givenUpOf[T]
}

// givenUpOf holds the calls of one connection.
type givenUpOf[T any] struct {
	byTag   map[uint32]*givenUp[T]
	order   []*givenUp[T] // the oldest first; calls that are over may still be in it
	handles int           // number of handles in the requests of byTag
}

type givenUp[T any] struct {
	call    T
	tag     uint32
	handles int
	over    bool
}

// Len returns the number of calls. It needs no lock.
func (g *GivenUp[C, T]) Len() int64 { return g.n.Load() }

// Add adds a call with the number of handles in its request. To make room it removes and returns calls: one with the same tag, which is there if
// the tags have wrapped around, and the oldest ones beyond the limits.
func (g *GivenUp[C, T]) Add(c C, tag uint32, call T, handles int) (forgotten []T) {
	of := g.conns[c]
	if of == nil {
		of = &givenUpOf[T]{byTag: make(map[uint32]*givenUp[T])}
		if g.conns == nil {
			g.conns = make(map[C]*givenUpOf[T])
		}
		g.conns[c] = of
	}
	if old := of.byTag[tag]; old != nil {
		forgotten = append(forgotten, g.remove(of, old))
	}
	for len(of.byTag) > 0 && (len(of.byTag) >= MaxGivenUp || of.handles+handles > MaxGivenUpHandles) {
		if oldest := of.order[0]; !oldest.over {
			forgotten = append(forgotten, g.remove(of, oldest))
		}
		of.order = of.order[1:]
	}
	if len(of.order) >= 2*MaxGivenUp {
		of.order = slices.DeleteFunc(of.order, func(o *givenUp[T]) bool { return o.over })
	}
	added := &givenUp[T]{call: call, tag: tag, handles: handles}
	of.byTag[tag] = added
	of.order = append(of.order, added)
	of.handles += handles
	g.n.Add(1)
	return forgotten
}

// remove ends a call of a connection.
func (g *GivenUp[C, T]) remove(of *givenUpOf[T], u *givenUp[T]) T {
	u.over = true
	delete(of.byTag, u.tag)
	of.handles -= u.handles
	g.n.Add(-1)
	call := u.call
	var none T
	u.call = none // because order still refers to u, and would keep the memory of the call
	return call
}

// Answered removes and returns the call with tag; ok is false if there is none.
func (g *GivenUp[C, T]) Answered(c C, tag uint32) (call T, ok bool) {
	of := g.conns[c]
	if of == nil || of.byTag[tag] == nil {
		return call, false
	}
	call = g.remove(of, of.byTag[tag])
	if len(of.byTag) == 0 { // because transports do not call Lost while Len is 0
		delete(g.conns, c)
	}
	return call, true
}

// Lost removes and returns the calls of a connection that has ended.
func (g *GivenUp[C, T]) Lost(c C) (calls []T) {
	of := g.conns[c]
	if of == nil {
		return nil
	}
	for _, u := range of.byTag {
		calls = append(calls, g.remove(of, u))
	}
	delete(g.conns, c)
	return calls
}

// Of returns the calls of a connection, in no order.
func (g *GivenUp[C, T]) Of(c C) iter.Seq[T] {
	return func(yield func(T) bool) {
		if of := g.conns[c]; of != nil {
			for _, u := range of.byTag {
				if !yield(u.call) {
					return
				}
			}
		}
	}
}
