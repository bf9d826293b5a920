package ofiverbs

import (
	"encoding/binary"
	"fmt"
	"math"

	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// A memory handle describes registered memory to peers (struct na_ofi_mem_desc of Mercury's na_ofi.c), all integers little endian:
//
//	 0  remote key             8
//	 8  length                 8
//	16  number of pieces       8   1
//	24  access                 1
//	25  zero                   7
//	32  address of the memory  8   by which the device's peers name it
//	40  length                 8
//
// One key is one registration of the device, so a handle has one piece.
const (
	handleLen = 48

	offHandleKey    = 0
	offHandleSize   = 8
	offHandlePieces = 16
	offHandleAccess = 24
	offHandleAddr   = 32
	offHandleLen    = 40
)

// remote is a peer's memory, by its handle.
type remote struct {
	at     verbs.RemoteAddr
	size   uint64
	access na.Access
}

// Len implements [na.RemoteMemory].
func (r *remote) Len() uint64 { return r.size }

// appendHandle appends the handle of r.
func appendHandle(b []byte, r remote) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(r.at.RKey))
	b = binary.LittleEndian.AppendUint64(b, r.size)
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = append(b, byte(r.access), 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, r.at.Addr)
	return binary.LittleEndian.AppendUint64(b, r.size)
}

// parseHandle reads a handle, which is hostile, from all of b.
func parseHandle(b []byte) (remote, error) {
	if len(b) != handleLen {
		return remote{}, fmt.Errorf("%d bytes; a handle has %d", len(b), handleLen)
	}
	key := binary.LittleEndian.Uint64(b[offHandleKey:])
	r := remote{
		at:   verbs.RemoteAddr{Addr: binary.LittleEndian.Uint64(b[offHandleAddr:]), RKey: uint32(key)},
		size: binary.LittleEndian.Uint64(b[offHandleSize:]), access: na.Access(b[offHandleAccess]),
	}
	piece := binary.LittleEndian.Uint64(b[offHandleLen:])
	switch pieces := binary.LittleEndian.Uint64(b[offHandlePieces:]); {
	case key > math.MaxUint32:
		return remote{}, fmt.Errorf("key %#x; those of RDMA devices have 32 bits", key)
	case pieces != 1:
		return remote{}, fmt.Errorf("%d pieces; a handle of this network has one", pieces)
	case r.access < na.ReadOnly || r.access > na.ReadWrite:
		return remote{}, fmt.Errorf("access %d; it is 1, 2 or 3", r.access)
	case piece != r.size:
		return remote{}, fmt.Errorf("a piece of %d bytes in memory of %d", piece, r.size)
	case r.at.Addr+r.size < r.at.Addr:
		return remote{}, fmt.Errorf("%d bytes at %#x leave the address space", r.size, r.at.Addr)
	}
	return r, nil
}
