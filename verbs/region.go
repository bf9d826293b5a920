package verbs

import "encoding/binary"

// Region is the address, key and size that a peer needs to use a memory region. A program sends it in the private data of a
// connection, in a message, or in the line of text that verbs/oob exchanges.
type Region struct {
	RemoteAddr
	Size uint64 // bytes
}

// Region returns the whole region for a peer.
func (mr *MR) Region() Region {
	reg := mr.reg.Load()
	return Region{RemoteAddr: RemoteAddr{Addr: reg.iova, RKey: reg.rkey}, Size: uint64(len(reg.buf))}
}

// RegionLen is the length of an encoded [Region].
const RegionLen = 20

// AppendBinary appends the encoding to b: address (8 bytes), key (4), size (8),
// in network byte order. The error is always nil.
func (r Region) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint64(b, r.Size), nil
}

// ParseRegion decodes the first [RegionLen] bytes of b, which may be longer,
// since transports pad private data.
func ParseRegion(b []byte) (Region, error) {
	if len(b) < RegionLen {
		return Region{}, Errorf("parse region", ErrInvalid, "%d bytes, the least is %d", len(b), RegionLen)
	}
	r := Region{
		RemoteAddr: RemoteAddr{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:])},
		Size:       binary.BigEndian.Uint64(b[12:]),
	}
	return r, r.Check()
}

// Check refuses, with [ErrInvalid], a region that goes beyond the end of the address space.
func (r Region) Check() error {
	if r.Addr+r.Size < r.Addr {
		return Errorf("parse region", ErrInvalid, "%d bytes at %#x leave the address space", r.Size, r.Addr)
	}
	return nil
}
