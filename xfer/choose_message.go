package xfer

import (
	"encoding/binary"
	"math"
	"strings"
)

// The tail of WANT has requests. "uvarint" is a number in the form of package encoding/binary.
//
//	distance, uvarint    from the end of the last request of the same kind; of the first, from the end of the head
//	length, uvarint      2 times the length of the range; plus 1 if its sum is wanted
//
// The tail of a NOTE of the receiver has removals, or nothing: then it says only that the receiver works.
//
//	kind, 1 byte         1 a directory that stays, 2 no directory, 3 a directory
//	depth, uvarint
//	length, uvarint      of the name
//	name
//
// The NOTE by which the sender answers has the same number and no tail. Bit i of its word is set if removal i of the NOTE may not happen.
const (
	removalStays = 1
	removalOther = 2
	removalDir   = 3

	// mostRemovals is the largest number of removals of one NOTE, which are the bits of a word.
	mostRemovals = 32
	// mostListed is the largest number of removals of one transfer. It bounds the list that a hostile receiver makes a sender print.
	mostListed = 1 << 22
	// mostDepth is the largest depth of a removal.
	mostDepth = 1024
	// mostUnderWay is the largest number of WANT messages of which not all data has come, and of NOTE messages that are not answered.
	mostUnderWay = 8
	// leastRequest is the number of bytes that hold any request.
	leastRequest = 2 * binary.MaxVarintLen64
)

// ranges knows the ends of the last requests.
type ranges struct{ data, sum int64 }

// of returns the end of the last request of a kind.
func (g *ranges) of(sum bool) *int64 {
	if sum {
		return &g.sum
	}
	return &g.data
}

// fits reports whether a request may follow the others, of a source of so many bytes.
func (g *ranges) fits(r Range, size int64) bool {
	return r.Offset >= *g.of(r.Sum) && r.Length > 0 && r.Offset <= size && r.Length <= size-r.Offset && (!r.Sum || r.Length <= MaxSumRange)
}

// append appends the encoding of a request, which must fit.
func (g *ranges) append(b []byte, r Range) []byte {
	end := g.of(r.Sum)
	length := uint64(r.Length) << 1
	if r.Sum {
		length |= 1
	}
	b = binary.AppendUvarint(b, uint64(r.Offset-*end))
	*end = r.Offset + r.Length
	return binary.AppendUvarint(b, length)
}

// parse reads a request of a source of so many bytes, and its length, which is negative if it is malformed or may not follow the others.
func (g *ranges) parse(b []byte, size int64) (r Range, n int) {
	distance, n := binary.Uvarint(b)
	if n <= 0 || distance > math.MaxInt64 {
		return r, -1
	}
	length, k := binary.Uvarint(b[n:])
	if k <= 0 {
		return r, -1
	}
	r = Range{Length: int64(length >> 1), Sum: length&1 != 0}
	end := g.of(r.Sum)
	if int64(distance) > size-*end {
		return r, -1
	}
	r.Offset = *end + int64(distance)
	if !g.fits(r, size) {
		return r, -1
	}
	*end = r.Offset + r.Length
	return r, n + k
}

// appendRemoval appends the encoding of a removal.
func appendRemoval(b []byte, r Removal) []byte {
	kind := byte(removalOther)
	switch {
	case r.Stays:
		kind = removalStays
	case r.Dir:
		kind = removalDir
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(r.Depth))
	b = binary.AppendUvarint(b, uint64(len(r.Name)))
	return append(b, r.Name...)
}

// parseRemoval reads a removal and its length, which is negative if it is malformed.
func parseRemoval(b []byte) (r Removal, n int) {
	if len(b) == 0 || b[0] < removalStays || b[0] > removalDir {
		return r, -1
	}
	r.Stays, r.Dir = b[0] == removalStays, b[0] != removalOther
	depth, k := binary.Uvarint(b[1:])
	if k <= 0 || depth > mostDepth {
		return r, -1
	}
	n = 1 + k
	length, k := binary.Uvarint(b[n:])
	if n += k; k <= 0 || length > MaxName || int(length) > len(b)-n {
		return r, -1
	}
	r.Depth, r.Name = int(depth), string(b[n:n+int(length)])
	if !r.proper() {
		return r, -1
	}
	return r, n + int(length)
}

// proper reports whether the message can carry the removal.
func (r *Removal) proper() bool {
	return r.Name != "" && r.Name != "." && r.Name != ".." && len(r.Name) <= MaxName && !strings.ContainsAny(r.Name, "/\x00") && r.Depth >= 0 && r.Depth <= mostDepth &&
		(r.Dir || !r.Stays)
}

// removalPaths makes paths of the removals of one transfer.
type removalPaths struct{ above []string }

// path returns the path of the next removal; "", if it belongs to no directory before it.
func (p *removalPaths) path(r *Removal) string {
	if r.Depth > len(p.above) {
		return ""
	}
	p.above = p.above[:r.Depth]
	path := strings.Join(append(p.above, r.Name), "/")
	if r.Dir {
		p.above = append(p.above, r.Name)
	}
	return path
}
