package sm

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"

	"cinnabar/internal/na"
)

// Sizes and offsets of a memory handle (na_sm_mem_desc), all integers little endian.
//
//	 0  segments   8   k
//	 8  length     8   of all segments together
//	16  access     1
//	17  zero       7   between endpoints of this package, the arena that the memory lies in
//	24  k times: virtual address in the owner's process 8, length 8
const (
	handleAccess  = 16
	handleHead    = 24
	handleSegment = 16
	handleLen     = handleHead + handleSegment
)

// maxSegments is the largest number of segments of a handle, in C too, because one system call takes as many (IOV_MAX).
const maxSegments = 1024

// segment is a range of addresses in a peer's process.
type segment struct{ addr, len uint64 }

// remote is the memory of a peer that a handle describes. It implements [na.RemoteMemory].
type remote struct {
	access na.Access
	arena  uint64 // 0: none, or not known
	size   uint64
	segs   []segment // none is empty
	ends   []uint64  // the end offset of each segment in the memory as a whole
}

// Len implements [na.RemoteMemory].
func (r *remote) Len() uint64 { return r.size }

// find returns the segment that contains the byte at off, and the number of bytes of the segment before it. off is less than size.
func (r *remote) find(off uint64) (seg int, skip uint64) {
	if len(r.segs) > 1 {
		seg = sort.Search(len(r.ends), func(i int) bool { return r.ends[i] > off })
	}
	return seg, r.segs[seg].len - (r.ends[seg] - off)
}

// appendHandle appends the handle of memory in segments.
func appendHandle(b []byte, segs []segment, access na.Access, arena uint64) []byte {
	var size uint64
	for _, s := range segs {
		size += s.len
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(segs)))
	b = binary.LittleEndian.AppendUint64(b, size)
	b = binary.LittleEndian.AppendUint64(b, uint64(access)|arena<<8)
	for _, s := range segs {
		b = appendSegment(b, s)
	}
	return b
}

// appendSegment appends a segment of a handle, or of a request to a relay.
func appendSegment(b []byte, s segment) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.addr)
	return binary.LittleEndian.AppendUint64(b, s.len)
}

// parseHandle parses all of b, which comes from a peer. It does not check the addresses, except that segments do not wrap around,
// because the kernel checks each access, and a peer can describe no memory but its own.
func parseHandle(b []byte) (*remote, error) {
	if len(b) < handleLen {
		return nil, fmt.Errorf("%d bytes; a handle has %d at least", len(b), handleLen)
	}
	k := binary.LittleEndian.Uint64(b)
	if k == 0 || k > maxSegments || uint64(len(b)) != handleHead+k*handleSegment {
		return nil, fmt.Errorf("%d segments in a handle of %d bytes; there are 1 to %d, of %d bytes each after the first %d",
			k, len(b), maxSegments, handleSegment, handleHead)
	}
	r := &remote{
		access: na.Access(b[handleAccess]), size: binary.LittleEndian.Uint64(b[8:]),
		arena: binary.LittleEndian.Uint64(b[handleAccess:]) >> 8,
	}
	if r.access < na.ReadOnly || r.access > na.ReadWrite {
		return nil, fmt.Errorf("access %d; it is 1, 2 or 3", r.access)
	}
	if err := r.parseSegments(b[handleHead:], int(k)); err != nil {
		return nil, err
	}
	return r, nil
}

// parseSegments parses b, which consists of k segments.
func (r *remote) parseSegments(b []byte, k int) error {
	r.segs, r.ends = make([]segment, 0, k), make([]uint64, 0, k)
	var sum uint64
	for ; len(b) > 0; b = b[handleSegment:] {
		s := segment{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
		if s.len > math.MaxInt64-sum || s.addr > math.MaxUint64-s.len {
			return fmt.Errorf("a segment of %d bytes at %#x is longer than memory can be", s.len, s.addr)
		}
		if sum += s.len; s.len > 0 {
			r.segs, r.ends = append(r.segs, s), append(r.ends, sum)
		}
	}
	if sum != r.size {
		return fmt.Errorf("segments of %d bytes in memory of %d", sum, r.size)
	}
	return nil
}
