package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// CutProc returns the bytes of the descriptor that hg_proc_hg_bulk_t has written to the begin of b, nil for HG_BULK_NULL, and the number of
// bytes of b that they take with their size. b is hostile, and the result is a part of it.
func CutProc(b []byte) (desc []byte, n int, err error) {
	if len(b) < wordSize {
		return nil, 0, truncated("size", wordSize, len(b))
	}
	size, rest := binary.LittleEndian.Uint64(b), b[wordSize:]
	if size == 0 {
		return nil, wordSize, nil
	}
	if size > uint64(len(rest)) {
		return nil, 0, truncated("descriptor", size, len(rest))
	}
	return rest[:size:size], wordSize + int(size), nil
}

// ParseBulk reads a descriptor (HG_Bulk_deserialize). b is hostile; a copy of it is kept.
//
// Lengths must add up: the segments to the length of the memory, the parts to len(b). Bits that no release has defined
// are kept and have no meaning, because releases before 2.4.1 leave stale memory in some of them.
//
// The Bulk takes at most 4 times as much memory as b has bytes.
func ParseBulk(b []byte) (Bulk, error) {
	if uint64(len(b)) > math.MaxUint32 {
		return Bulk{}, malformed("descriptor of %d bytes; it has less than 4 GiB", len(b))
	}
	d := Bulk{raw: slices.Clone(b)}
	p := parser{b: d.raw}
	d.parseSegments(&p)
	d.parseHandles(&p)
	if d.flags&BulkBind != 0 {
		d.parseBound(&p)
	}
	if d.flags&BulkEager != 0 {
		d.eager = p.take("data", d.total)
	}
	if p.err == nil && len(p.b) > 0 {
		p.err = malformed("descriptor has %d bytes after its end", len(p.b))
	}
	if p.err != nil {
		return Bulk{}, p.err
	}
	return d, nil
}

// parser takes one part after the other. After an error take returns nil.
type parser struct {
	b   []byte
	err error
}

func truncated(part string, need any, left int) *Error {
	return malformed("descriptor ends in its %s: %d bytes are announced, %d are left", part, need, left)
}

func (p *parser) take(what string, n uint64) []byte {
	if p.err != nil {
		return nil
	}
	if n > uint64(len(p.b)) {
		p.err = truncated(what, n, len(p.b))
		return nil
	}
	part := p.b[:n:n]
	p.b = p.b[n:]
	return part
}

func (p *parser) word(what string) uint64 {
	if b := p.take(what, wordSize); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *Bulk) parseSegments(p *parser) {
	info := p.take("first part", infoSize)
	if info == nil {
		return
	}
	d.total = binary.LittleEndian.Uint64(info)
	n := binary.LittleEndian.Uint32(info[8:])
	d.flags = binary.LittleEndian.Uint32(info[flagsAt:])
	if n == 0 {
		p.err = malformed("descriptor has no segments")
		return
	}
	list := p.take("segments", uint64(n)*segmentSize)
	if list == nil {
		return
	}
	d.segs = make([]Segment, n) // n is bounded by len(b)
	var sum uint64
	for i := range d.segs {
		s := list[i*segmentSize:]
		d.segs[i].Base, d.segs[i].Length = binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint64(s[wordSize:])
		var carry uint64
		if sum, carry = bits.Add64(sum, d.segs[i].Length, 0); carry != 0 {
			p.err = malformed("lengths of the %d segments exceed 64 bits", n)
			return
		}
	}
	if sum != d.total {
		p.err = malformed("segments have %d bytes together, descriptor says %d", sum, d.total)
	}
}

// parseHandles reads the handles of the network into the segments, and those of shared memory into d.shared: the same memory is
// reached by both.
func (d *Bulk) parseHandles(p *parser) {
	if p.err != nil {
		return
	}
	one := len(d.segs) == 1 || d.flags&BulkRegV != 0
	absent := one && d.segs[0].Base == 0 && d.flags&BulkRegV == 0
	network := func(i int, h []byte) { d.segs[i].place = d.placeOf(h, p) }
	switch {
	case absent:
	case one:
		network(0, p.take("handle", p.word("size of the handle")))
	default:
		d.parseHandleList(p, network)
	}
	if d.flags&BulkSM == 0 || p.err != nil {
		return
	}
	if one {
		d.shared = make([]place, 1)
	} else {
		d.shared = make([]place, len(d.segs))
	}
	shared := func(i int, h []byte) { d.shared[i] = d.placeOf(h, p) }
	switch {
	case absent:
	case one:
		shared(0, p.take("handle of shared memory", p.word("size of the handle of shared memory")))
	default:
		d.parseHandleList(p, shared)
	}
}

// placeOf returns the place of the handle h, which p has just taken.
func (d *Bulk) placeOf(h []byte, p *parser) place {
	return place{at: uint32(len(d.raw) - len(p.b) - len(h)), size: uint32(len(h))}
}

// parseHandleList reads the sizes and then the handles of several segments.
func (d *Bulk) parseHandleList(p *parser, store func(i int, handle []byte)) {
	sizes := p.take("sizes of the handles", uint64(len(d.segs))*wordSize)
	if sizes == nil {
		return
	}
	for i := range d.segs {
		size := binary.LittleEndian.Uint64(sizes[i*wordSize:])
		if d.segs[i].Base == 0 && size != 0 {
			p.err = malformed("segment %d of the descriptor has no address but a handle of %d bytes", i, size)
			return
		}
		if size > uint64(len(p.b)) {
			p.err = truncated(fmt.Sprintf("handle %d", i), size, len(p.b))
			return
		}
		if size > 0 {
			store(i, p.take("handles", size))
		}
	}
}

// parseBound reads the owner's address and context id.
func (d *Bulk) parseBound(p *parser) {
	core := p.take("address", p.word("size of the address"))
	if p.err != nil {
		return
	}
	if d.bound, d.near, p.err = parseCoreAddr(core, d.flags&BulkSM != 0); p.err != nil {
		return
	}
	if b := p.take("context id", 1); b != nil {
		d.context = b[0]
	}
}

// parseCoreAddr returns the parts of an address that HG_Core_addr_serialize has written: that of the network, and that in shared memory,
// which is nil if it is empty. Builds of Mercury without shared memory leave out the latter. near is true if the descriptor has the flag
// BulkSM: the room for the identifier of the host is behind the address then. Without that flag Mercury writes no address in shared
// memory, so parseCoreAddr ignores one: it would otherwise come from a peer on the network. b is hostile, the results are parts of it.
func parseCoreAddr(b []byte, near bool) (network, shared []byte, err error) {
	p := parser{b: b}
	network = p.take("address of the network", p.word("size of the address of the network"))
	if p.err == nil && len(p.b) > 0 {
		shared = p.take("address of shared memory", p.word("size of the address of shared memory"))
	}
	if near && len(shared) > 0 && len(p.b) == hostIDSize {
		p.b = nil
	}
	switch {
	case p.err != nil:
		return nil, nil, p.err
	case len(p.b) > 0:
		return nil, nil, malformed("address in the descriptor has %d bytes after its end", len(p.b))
	case len(network) == 0:
		return nil, nil, malformed("address in the descriptor is empty")
	case !near || len(shared) == 0:
		shared = nil
	}
	return network, shared, nil
}
