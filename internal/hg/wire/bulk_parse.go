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

// parseHandles reads the handles of the network into the segments, and skips those of shared memory: the same memory is
// reached by both.
func (d *Bulk) parseHandles(p *parser) {
	if p.err != nil {
		return
	}
	if len(d.segs) == 1 || d.flags&BulkRegV != 0 {
		if d.segs[0].Base == 0 && d.flags&BulkRegV == 0 {
			return
		}
		d.setHandle(0, p.take("handle", p.word("size of the handle")), p)
		if d.flags&BulkSM != 0 {
			p.take("handle of shared memory", p.word("size of the handle of shared memory"))
		}
		return
	}
	d.parseHandleList(p, func(i int, h []byte) { d.setHandle(i, h, p) })
	if d.flags&BulkSM != 0 {
		d.parseHandleList(p, func(int, []byte) {})
	}
}

// setHandle notes where the handle h of segment i is, which p has just taken.
func (d *Bulk) setHandle(i int, h []byte, p *parser) {
	d.segs[i].at, d.segs[i].size = uint32(len(d.raw)-len(p.b)-len(h)), uint32(len(h))
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
	if d.bound, p.err = parseCoreAddr(core); p.err != nil {
		return
	}
	if b := p.take("context id", 1); b != nil {
		d.context = b[0]
	}
}

// parseCoreAddr returns the network's part of an address that HG_Core_addr_serialize has written. Builds of Mercury
// without shared memory leave out its last part. b is hostile, the result is a part of it.
func parseCoreAddr(b []byte) (network []byte, err error) {
	p := parser{b: b}
	network = p.take("address of the network", p.word("size of the address of the network"))
	if p.err == nil && len(p.b) > 0 {
		p.take("address of shared memory", p.word("size of the address of shared memory"))
	}
	switch {
	case p.err != nil:
		return nil, p.err
	case len(p.b) > 0:
		return nil, malformed("address in the descriptor has %d bytes after its end", len(p.b))
	case len(network) == 0:
		return nil, malformed("address in the descriptor is empty")
	}
	return network, nil
}
