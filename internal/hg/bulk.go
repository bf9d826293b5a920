package hg

import (
	"encoding/binary"
	"fmt"
	"slices"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// Bulk is memory of this process that peers may read or write as its access says (hg_bulk_t of the creator). It is safe
// for concurrent use.
type Bulk struct {
	c    *Class
	segs [][]byte    // none is empty, but for a single one
	mems []na.Memory // of the segments that are not empty, or one of all
	desc *Desc

	mu invariants.RWMutex // held for reading while this process reads or writes segs
	// +checklocks:mu
	closed bool
}

// Expose makes memory accessible to peers until Close. There are 1 to [MaxSegments] segments; any may be empty. The descriptor
// leaves out empty segments, because Mercury 2.4.1 reads through a null pointer at one; if all are empty, it has one of them.
// The memory is used in place: it must not be used for anything else before Close returns.
func (c *Class) Expose(segs [][]byte, access na.Access) (*Bulk, error) {
	switch {
	case len(segs) == 0 || len(segs) > MaxSegments:
		return nil, newError("expose", nil, InvalidArg, fmt.Errorf("%d segments, allowed are 1 to %d", len(segs), MaxSegments))
	case access != na.ReadOnly && access != na.WriteOnly && access != na.ReadWrite:
		return nil, newError("expose", nil, InvalidArg, fmt.Errorf("access %d is none of read-only, write-only and read-write", access))
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
func (b *Bulk) register(access na.Access) (handles []na.Memory, flags uint32, err error) {
	flags = uint32(access)
	if r, ok := b.c.ep.(na.SegmentRegistrar); ok && len(b.segs) > 1 && len(b.segs) <= r.MaxSegments() {
		m, err := r.RegisterSegments(b.segs, access)
		if err != nil {
			return nil, 0, err
		}
		b.mems = []na.Memory{m}
		return b.mems, flags | flagRegV, nil
	}
	handles = make([]na.Memory, len(b.segs))
	for i, s := range b.segs {
		if len(s) == 0 {
			continue
		}
		m, err := b.c.ep.Register(s, access)
		if err != nil {
			return nil, 0, err
		}
		b.mems, handles[i] = append(b.mems, m), m
	}
	return handles, flags, nil
}

// describe makes the descriptor. base becomes the address of the first segment that is not empty; the addresses are not
// those of the memory, which are nobody's business.
func (b *Bulk) describe(base uint64, handles []na.Memory, flags uint32) *Desc {
	d := &Desc{bulk: b, flags: flags, segs: make([]segment, len(b.segs))}
	for i, s := range b.segs {
		if n := uint64(len(s)); n > 0 {
			d.segs[i] = segment{base: base + d.total, length: n}
			d.total += n
		}
	}
	raw := appendInfo(nil, d.total, len(d.segs), d.flags)
	for _, s := range d.segs {
		raw = appendSegment(raw, s.base, s.length)
	}
	d.raw = appendHandles(raw, handles)
	p := parser{b: d.raw[infoSize+len(d.segs)*segmentSize:]}
	d.parseHandles(&p)
	return d
}

// appendHandles appends the handles part of a descriptor; nil stands for an empty segment.
func appendHandles(raw []byte, handles []na.Memory) []byte {
	if len(handles) == 1 {
		if handles[0] == nil {
			return raw
		}
		return appendSized(raw, handles[0].AppendHandle)
	}
	sizes := len(raw)
	raw = append(raw, make([]byte, wordSize*len(handles))...)
	for i, h := range handles {
		if h == nil {
			continue
		}
		at := len(raw)
		raw = h.AppendHandle(raw)
		binary.LittleEndian.PutUint64(raw[sizes+i*wordSize:], uint64(len(raw)-at))
	}
	return raw
}

// Desc returns the descriptor by which a peer reaches the memory of the process that it got the descriptor from.
func (b *Bulk) Desc() *Desc { return b.desc }

// Bind returns a descriptor that names its owner too, so that it can be handed on (HG_Bulk_bind).
func (b *Bulk) Bind() *Desc {
	d := &Desc{bulk: b, total: b.desc.total, flags: b.desc.flags | flagBind, segs: b.desc.segs}
	raw := append([]byte(nil), b.desc.raw...)
	binary.LittleEndian.PutUint32(raw[flagsAt:], d.flags)
	at := len(raw) + 2*wordSize
	raw = appendSized(raw, func(raw []byte) []byte { return appendCoreAddr(raw, b.c.ep, b.c.self) })
	d.bound = raw[at : len(raw)-wordSize : len(raw)-wordSize]
	d.raw = append(raw, 0) // context id
	return d
}

// Close revokes what peers were allowed and returns when neither they nor transfers of this process touch the memory any
// more. It is idempotent.
//
// All keys are revoked before the first access is waited for, so that Close takes no longer for many segments than for
// one: [na.DrainTime] at most for accesses of peers.
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

// appendEager appends d with the memory's data as AppendProc describes it. It refuses when the memory is gone.
func (b *Bulk) appendEager(to []byte, d *Desc) ([]byte, bool) {
	if b.c.cfg.NoEager {
		return to, false
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return to, false
	}
	start := len(to)
	to = binary.LittleEndian.AppendUint64(to, uint64(len(d.raw))+d.total)
	at := len(to)
	to = append(to, d.raw...)
	binary.LittleEndian.PutUint32(to[at+flagsAt:], d.flags|flagEager)
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
	x.next = (base + b.desc.total + basePage - 1) &^ (basePage - 1)
	if b.desc.total > 0 {
		x.byBase[base] = b
	}
}

func (x *exposed) remove(b *Bulk) {
	for _, s := range b.desc.segs {
		if s.base != 0 {
			x.mu.Lock()
			delete(x.byBase, s.base)
			x.mu.Unlock()
			return
		}
	}
}

// find returns the memory of this process that d describes, nil if it is none or is closed.
func (x *exposed) find(d *Desc) *Bulk {
	if d.bulk != nil {
		return d.bulk
	}
	for _, s := range d.segs {
		if s.base == 0 {
			continue
		}
		x.mu.Lock()
		b := x.byBase[s.base]
		x.mu.Unlock()
		if b != nil && b.desc.same(d) {
			return b
		}
		return nil
	}
	return nil
}

// same tells whether both describe the same memory.
func (d *Desc) same(e *Desc) bool {
	if d.total != e.total || len(d.segs) != len(e.segs) || d.Access() != e.Access() {
		return false
	}
	for i, s := range d.segs {
		t := e.segs[i]
		if s.base != t.base || s.length != t.length || string(d.handle(&s)) != string(e.handle(&t)) {
			return false
		}
	}
	return true
}
