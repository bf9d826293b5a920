package hg

import (
	"fmt"
	"slices"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// Bulk is memory of this process that peers may read or write as its access says (hg_bulk_t of the creator). It is safe
// for concurrent use.
type Bulk struct {
	c    *Class
	segs [][]byte    // none is empty, but for a single one
	mems []na.Memory // of the segments that are not empty; one memory may have several or all of them
	desc *Desc

	mu invariants.RWMutex // held for reading while this process reads or writes segs
	// +checklocks:mu
	closed bool
}

// Expose makes memory accessible to peers until Close. There are 1 to [wire.MaxSegments] segments; any may be empty. The descriptor
// leaves out empty segments, because Mercury 2.4.1 reads through a null pointer at one; if all are empty, it has one of them.
// The memory is used in place: it must not be used for anything else before Close returns.
func (c *Class) Expose(segs [][]byte, access na.Access) (*Bulk, error) {
	switch {
	case len(segs) == 0 || len(segs) > wire.MaxSegments:
		return nil, newError("expose", nil, codes.InvalidArg, fmt.Errorf("%d segments, allowed are 1 to %d", len(segs), wire.MaxSegments))
	case access != na.ReadOnly && access != na.WriteOnly && access != na.ReadWrite:
		return nil, newError("expose", nil, codes.InvalidArg, fmt.Errorf("access %d is none of read-only, write-only and read-write", access))
	}
	b := &Bulk{c: c, segs: NotEmpty(segs)}
	handles, flags, err := b.register(access)
	if err != nil {
		b.drain()
		return nil, newError("expose", nil, codeOf(err), err)
	}
	c.exposed.add(b, func(base uint64) { b.desc = b.describe(base, handles, flags) })
	c.count.bulks.Add(1)
	return b, nil
}

// NotEmpty returns the segments that are not empty, or the first one if all are empty. It does not change segs, and returns segs
// itself if no segment is empty.
func NotEmpty(segs [][]byte) [][]byte {
	empty := func(s []byte) bool { return len(s) == 0 }
	if !slices.ContainsFunc(segs, empty) {
		return segs
	}
	kept := slices.DeleteFunc(slices.Clone(segs), empty)
	if len(kept) == 0 {
		kept = segs[:1:1]
	}
	return kept
}

// register registers the segments and returns their handles and the descriptor's flags. The handle of an empty segment is nil. If
// the transport is a [na.SegmentRegistrar], one handle covers all segments (HG_BULK_REGV), up to the same number as in C.
func (b *Bulk) register(access na.Access) (handles []na.Handle, flags uint32, err error) {
	flags = uint32(access)
	if r, ok := b.c.ep.(na.SegmentRegistrar); ok && len(b.segs) > 1 && len(b.segs) <= r.MaxSegments() {
		m, err := r.RegisterSegments(b.segs, access)
		if err != nil {
			return nil, 0, err
		}
		b.mems = []na.Memory{m}
		return []na.Handle{m}, flags | wire.BulkRegV, nil
	}
	switch r, ok := b.c.ep.(na.PieceRegistrar); {
	case len(b.segs[0]) == 0: // all are empty
		handles = make([]na.Handle, 1)
	case ok && len(b.segs) > 1:
		b.mems, handles, err = r.RegisterPieces(b.segs, access)
	default:
		b.mems, handles, err = na.RegisterEach(b.c.ep, b.segs, access)
	}
	return handles, flags, err
}

// describe makes the descriptor. base becomes the address of the first segment that is not empty. The addresses are not those of the
// memory, because peers need not know them.
func (b *Bulk) describe(base uint64, handles []na.Handle, flags uint32) *Desc {
	segs := make([]wire.Segment, len(b.segs))
	for i, s := range b.segs {
		if n := uint64(len(s)); n > 0 {
			segs[i] = wire.Segment{Base: base, Length: n}
			base += n
		}
	}
	d := &Desc{own: b}
	network := func(raw []byte, i int) []byte {
		if handles[i] == nil { // of an empty segment
			return raw
		}
		return handles[i].AppendHandle(raw)
	}
	if b.c.shared != nil {
		d.near = new(wire.NewBulk(flags, slices.Clone(segs), network, func(raw []byte, i int) []byte {
			if handles[i] == nil {
				return raw
			}
			return handles[i].(na.SharedHandle).AppendSharedHandle(raw)
		}))
	}
	d.Bulk = wire.NewBulk(flags, segs, network, nil)
	return d
}

// Desc returns the descriptor by which a peer reaches the memory of the process that it got the descriptor from.
func (b *Bulk) Desc() *Desc { return b.desc }

// Bind returns a descriptor that names its owner too, so that it can be handed on (HG_Bulk_bind).
func (b *Bulk) Bind() *Desc {
	network := func(raw []byte) []byte { return b.c.ep.AppendAddr(raw, b.c.self) }
	d := &Desc{Bulk: b.desc.Bulk.Bind(network, nil), own: b}
	if b.desc.near != nil {
		d.near = new(b.desc.near.Bind(network, func(raw []byte) []byte { return b.c.shared.AppendSharedAddr(raw, b.c.self) }))
	}
	return d
}

// Close revokes the keys of b, and returns when neither peers nor transfers of this process touch the memory any more. It is
// idempotent.
//
// Close revokes all keys before it waits for the first access, so that it takes no longer for many segments than for one:
// [na.DrainTime] at most for accesses of peers.
func (b *Bulk) Close() {
	b.Revoke()
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.drain()
}

// Revoke revokes the keys of b, and does not wait for accesses under way. The caller calls Close afterwards. A caller that
// revokes several Bulks before it closes the first waits for all of them no longer than for one.
func (b *Bulk) Revoke() {
	b.c.exposed.remove(b)
	b.revoke()
}

// Withdraw is Revoke, except that a transport with [na.LateMemory] keeps the memory for the servers of given-up calls. hold is as
// in [na.LateMemory].
func (b *Bulk) Withdraw(hold func() (release func())) {
	b.c.exposed.remove(b)
	for _, m := range b.mems {
		if l, ok := m.(na.LateMemory); ok {
			l.Withdraw(hold)
		} else {
			m.Revoke()
		}
	}
}

// Late reports whether the server of a given-up call may still access the memory.
func (b *Bulk) Late() bool {
	return slices.ContainsFunc(b.mems, func(m na.Memory) bool {
		l, ok := m.(na.LateMemory)
		return ok && l.Late()
	})
}

func (b *Bulk) revoke() {
	for _, m := range b.mems {
		m.Revoke()
	}
}

func (b *Bulk) drain() {
	for _, m := range b.mems {
		m.Close()
	}
}

// appendEager appends a form of b's descriptor with the memory's data as [Desc.AppendProc] describes it. It refuses when the memory is gone.
func (b *Bulk) appendEager(to []byte, form *wire.Bulk) ([]byte, bool) {
	if b.c.cfg.NoEager {
		return to, false
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return to, false
	}
	start := len(to)
	to = form.AppendProcEager(to)
	for _, s := range b.segs { // which may be mappings of files that have become shorter
		n := len(to)
		to = slices.Grow(to, len(s))[:n+len(s)]
		if _, err := hostmem.Copy(to[n:], s); err != nil {
			b.c.log.Warn("memory is not embedded in its handle", "error", err)
			return to[:start], false
		}
	}
	return to, true
}

// appendShared returns the function that appends the handle of shared memory to a descriptor of m for a peer. It returns nil if messages to
// the peer do not travel over shared memory.
func (c *Class) appendShared(m na.Memory, peer na.Addr) func(b []byte) []byte {
	if c.RouteTo(peer) != OverSharedMemory {
		return nil
	}
	return m.(na.SharedHandle).AppendSharedHandle
}

// exposed finds the memory of this process by its descriptor, for descriptors that come back.
type exposed struct {
	mu invariants.Mutex
	// +checklocks:mu
	byBase map[uint64]*Bulk // by the address of the first segment that is not empty
	// +checklocks:mu
	next uint64
}

// basePage separates the invented addresses of different memory.
const basePage = 4096

// add gives b an address and has describe make use of it.
func (x *exposed) add(b *Bulk, describe func(base uint64)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	base := x.next + basePage
	describe(base)
	x.next = (base + b.desc.Len() + basePage - 1) &^ (basePage - 1)
	if b.desc.Len() > 0 {
		x.byBase[base] = b
	}
}

func (x *exposed) remove(b *Bulk) {
	if base := b.desc.base(); base != 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.byBase, base)
	}
}

// find returns the memory of this process that d describes, nil if it is none or is closed.
func (x *exposed) find(d *Desc) *Bulk {
	if d.own != nil {
		return d.own
	}
	x.mu.Lock()
	b := x.byBase[d.base()]
	x.mu.Unlock()
	if b == nil || !b.desc.same(d) {
		return nil
	}
	return b
}

// base returns the address of the first segment that has one, 0 if none has.
func (d *Desc) base() uint64 {
	for i := range d.Segments() {
		if s := d.Segment(i); s.Base != 0 {
			return s.Base
		}
	}
	return 0
}

// same reports whether both describe the same memory.
func (d *Desc) same(e *Desc) bool {
	if d.Len() != e.Len() || d.Segments() != e.Segments() || d.Access() != e.Access() {
		return false
	}
	for i := range d.Segments() {
		s, t := d.Segment(i), e.Segment(i)
		if s.Base != t.Base || s.Length != t.Length || string(d.Handle(i)) != string(e.Handle(i)) {
			return false
		}
	}
	return true
}
