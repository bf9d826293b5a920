package iwarp

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
)

const (
	// peerWrites are the rights by which peers change the bytes of a region.
	peerWrites = verbs.RemoteWrite | verbs.RemoteAtomic
	// peerReads are the rights by which a peer may read the bytes of a region. MWBind is one of them, because a window of the region may give
	// peers the right to read, and windows are not listed in an exposure.
	peerReads = verbs.RemoteRead | verbs.MWBind
	// peerAccess are the rights by which peers may change or read the bytes of a region.
	peerAccess = peerWrites | peerReads
)

// exposed is the exposure of this process's memory by all its devices, because two devices may have regions of the same memory.
var exposed exposure

// An exposure reports whether a peer may read a span of memory, or writes to it, while the span holds bytes that a wrong guess has put there and that
// belong elsewhere. RegMR adds a region with a right of peerAccess before the region has a key, and Close drops it after the last access. A region whose
// key was revoked stays until Close, because an access that was asked for before may still be under way.
//
// A connection begins a watch of the span, and ends it later. A Write or atomic of a peer begins before the device stores its bytes, and ends when they
// are stored. Each of the two looks for the other after it has made itself visible, so at least one of them finds the other:
//
//	begin                                  beginWrite
//	adds 1 to watching                     adds 1 to writers of the region
//	returns false if writers of an         if watching is above 0, sets reached
//	overlapping region is above 0          of each overlapping watch
//
// A region that peers may read prevents a watch of its bytes, because a read response takes its bytes from the memory at any time. Such a region is
// added when no watch of its bytes is left.
//
// Regions are sorted, so one search finds those that begin before the end of the span. Each has the largest end of itself and of those before it, so the
// walk from there to lower addresses ends when no region is left that reaches the span:
//
//	regions   ├───────────┤   ├──┤     ├────────┤
//	begin     a               b        c
//	reach     A               A B      C
//	span                 ├─────┤
type exposure struct {
	watching watchCount

	mu sync.Mutex
	// regions are sorted by their beginnings.
	// +checklocks:mu
	regions []exposedRegion
	// +checklocks:mu
	watches []*watch
	ended   sync.Cond // signalled when a watch ends; once sets its L
	once    sync.Once
}

// watchCount is the number of watches.
type watchCount struct {
	n atomic.Int64
	// onTurn is nil except in tests. It is called before a watch is counted, and when beginWrite has looked at the number.
	onTurn func()
}

// Add adds d to the number.
func (c *watchCount) Add(d int64) {
	if c.onTurn != nil && d > 0 {
		c.onTurn()
	}
	c.n.Add(d)
}

// Load returns the number.
func (c *watchCount) Load() int64 {
	n := c.n.Load()
	if c.onTurn != nil {
		c.onTurn()
	}
	return n
}

// Limits on the work of begin, because many regions may have the same memory.
const (
	longestWalk = 1024 // regions that begin passes
	mostLooks   = 64   // regions that overlap the span, for each of which begin loads a counter from memory of the region
)

// exposedRegion is a region in an exposure.
type exposedRegion struct {
	span
	reach uint64 // largest end of this region and of those before it
	m     *mr
}

// span is a range of virtual addresses. end is the address behind it.
type span struct{ begin, end uint64 }

func spanOf(b []byte) span {
	a := hostmem.Addr(b)
	return span{a, a + uint64(len(b))}
}

func compareBegin(r exposedRegion, a uint64) int { return cmp.Compare(r.begin, a) }

func (s span) overlaps(o span) bool { return s.begin < o.end && o.begin < s.end }

// watch is a span that holds bytes of guesses. It has a place in an exposure from begin to end.
type watch struct {
	span
	index   int  // in exposure.watches
	reached bool // set when a peer begins to write to the span; guarded by exposure.mu
}

// add adds a region that has no key yet. For a region that peers may read it waits for the watches of its bytes, each of which lasts for one system call
// and the processing of the bytes that the call has read.
func (e *exposure) add(m *mr) {
	s := spanOf(m.buf)
	e.mu.Lock()
	defer e.mu.Unlock()
	i, _ := slices.BinarySearchFunc(e.regions, s.begin, compareBegin)
	e.regions = slices.Insert(e.regions, i, exposedRegion{span: s, m: m}) // before the wait, so that no further watch of the bytes begins
	e.measureLocked(i)
	e.once.Do(func() { e.ended.L = &e.mu })
	for m.access&peerReads != 0 && slices.ContainsFunc(e.watches, func(w *watch) bool { return w.overlaps(s) }) {
		e.ended.Wait()
	}
}

// drop removes a region that was added, and to which no access is under way.
func (e *exposure) drop(m *mr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, _ := slices.BinarySearchFunc(e.regions, spanOf(m.buf).begin, compareBegin)
	for e.regions[i].m != m { // several regions may begin there
		i++
	}
	e.regions = slices.Delete(e.regions, i, i+1)
	e.measureLocked(i)
	if len(e.regions) == 0 {
		e.regions = nil // releases the array, which may have had room for many regions
	}
}

// measureLocked sets the reach of region i and of those behind it. The reach of each region was correct before a region was added or removed at i.
//
// +checklocks:e.mu
func (e *exposure) measureLocked(i int) {
	var reach uint64
	if i > 0 {
		reach = e.regions[i-1].reach
	}
	for ; i < len(e.regions); i++ {
		r := &e.regions[i]
		if reach = max(reach, r.end); r.reach == reach {
			return // the others do not change either
		}
		r.reach = reach
	}
}

// begin starts the watch w of s. It returns false, and starts none, if peers may read a region that overlaps s, if a peer is writing to such a region,
// or if the search exceeds longestWalk or mostLooks.
func (e *exposure) begin(w *watch, s span) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watching.Add(1)
	i, _ := slices.BinarySearchFunc(e.regions, s.end, compareBegin)
	looks := 0
	for walk := 0; i > 0 && e.regions[i-1].reach > s.begin; walk++ {
		i--
		r := &e.regions[i]
		overlaps := r.overlaps(s)
		if overlaps {
			looks++
		}
		if walk == longestWalk || looks > mostLooks || overlaps && (r.m.access&peerReads != 0 || r.m.writers.Load() > 0) {
			e.watching.Add(-1)
			return false
		}
	}
	*w = watch{span: s, index: len(e.watches)}
	e.watches = append(e.watches, w)
	return true
}

// reached reports whether a peer has begun to write to the span of w since begin.
func (e *exposure) reached(w *watch) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.reached
}

// end ends the watch w, which has begun.
func (e *exposure) end(w *watch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watching.Add(-1)
	last := len(e.watches) - 1
	e.watches[w.index] = e.watches[last]
	e.watches[w.index].index = w.index
	e.watches[last] = nil
	e.watches = e.watches[:last]
	e.ended.Broadcast()
}

// beginWrite precedes the storing of bytes of a peer in s, which is in m. The caller calls endWrite when they are stored.
func (e *exposure) beginWrite(m *mr, s span) {
	m.writers.Add(1)
	if e.watching.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.watches {
		w.reached = w.reached || w.overlaps(s)
	}
}

func (e *exposure) endWrite(m *mr) { m.writers.Add(-1) }
