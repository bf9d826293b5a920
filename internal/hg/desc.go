package hg

import (
	"encoding/binary"
	"sync/atomic"

	"cinnabar/internal/na"
)

// Flags of descriptors, HG_BULK_* in mercury_bulk.h and mercury_bulk.c.
const (
	flagReadOnly  = 0x001 // HG_BULK_READ_ONLY: peers may pull
	flagWriteOnly = 0x002 // HG_BULK_WRITE_ONLY: peers may push
	flagEager     = 0x004 // HG_BULK_EAGER: the data is at the end
	flagSM        = 0x008 // HG_BULK_SM: handles of shared memory follow those of the network
	flagAlloc     = 0x010 // HG_BULK_ALLOC: never sent
	flagBind      = 0x020 // HG_BULK_BIND: the owner's address is there
	flagRegV      = 0x040 // HG_BULK_REGV: one handle for all segments
	flagVirt      = 0x080 // HG_BULK_VIRT: sent on by someone who is not the owner
	flagFirewall  = 0x100 // HG_BULK_FIREWALL_ADDR: the owner cannot be dialed, since 2.4.1
)

// Sizes of the parts of descriptors in bytes.
const (
	infoSize    = 16 // struct hg_bulk_desc_info
	segmentSize = 16 // struct hg_bulk_segment
	wordSize    = 8
	flagsAt     = 12 // of the info
)

// MaxSegments is how many segments memory can have that this process exposes.
const MaxSegments = 1 << 20

// Desc describes memory of some process to others, hg_bulk_t on the wire:
//
//	+----------------------+----------+-------+
//	| length of the memory | segments | flags |                   8 + 4 + 4
//	+----------------------+----------+-------+
//	| base address | length |  for each segment                   16 n
//	+--------------+--------+
//	| size | handle |            of one segment, or with REGV; nothing if its base is zero
//	| n sizes | n handles |     of several; size 0 and no handle where the base is zero
//	+--------------------+
//	| size | address | context id |      with BIND               8 + size + 1
//	+------+---------+------------+
//	| data |                             with EAGER             the length
//	+------+
//
// All numbers are little endian. In a handle the transport has what it needs; a base address means nothing to others, but
// for being zero or not.
//
// A Desc is immutable and safe for concurrent use. One that came from a peer is written again as the same bytes.
type Desc struct {
	raw     []byte // all of it; for own descriptors without data
	total   uint64
	flags   uint32
	segs    []segment
	bound   []byte // the address, a part of raw
	context uint8
	eager   []byte // the data, a part of raw
	bulk    *Bulk  // the memory, if it is this process's own descriptor

	remotes atomic.Pointer[remotes] // made on first use
}

// remotes are the handles of a descriptor as a transport reads them, one for each segment.
type remotes struct {
	c    *Class // whose transport it is
	list []na.RemoteMemory
}

// segment is one piece of described memory.
type segment struct {
	base, length uint64
	at, size     uint32 // of the handle in raw; there is none of size 0
}

// handle returns the handle of a segment, nil if it has none.
func (d *Desc) handle(s *segment) []byte {
	if s.size == 0 {
		return nil
	}
	return d.raw[s.at:][:s.size:s.size]
}

// Len returns the length of the memory in bytes.
func (d *Desc) Len() uint64 { return d.total }

// Segments returns how many pieces the memory has.
func (d *Desc) Segments() int { return len(d.segs) }

// Flags returns the flags as they came, or as they go out without data.
func (d *Desc) Flags() uint32 { return d.flags }

// Access returns what the owner allows.
func (d *Desc) Access() na.Access { return na.Access(d.flags & (flagReadOnly | flagWriteOnly)) }

// Bound returns the owner's address as the transport writes it, nil if the descriptor has none.
func (d *Desc) Bound() []byte { return d.bound }

// Context returns the context id of a bound descriptor's owner.
func (d *Desc) Context() uint8 { return d.context }

// Eager returns the data that came inside the descriptor, nil if there is none. It must not be written to.
func (d *Desc) Eager() []byte { return d.eager }

// Append appends the descriptor as HG_Bulk_serialize writes it: without data of the own process.
func (d *Desc) Append(b []byte) []byte { return append(b, d.raw...) }

// AppendProc appends the descriptor as hg_proc_hg_bulk_t writes it: its size before it, and with the data of memory that
// peers may read if all of that fits into room bytes. The data is read now. Config.NoEager prevents that.
func (d *Desc) AppendProc(b []byte, room int) []byte {
	if d == nil {
		return binary.LittleEndian.AppendUint64(b, 0) // HG_BULK_NULL
	}
	if d.bulk != nil && d.total > 0 && d.flags&flagReadOnly != 0 && d.fits(room) {
		if b, ok := d.bulk.appendEager(b, d); ok {
			return b
		}
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(d.raw)))
	return append(b, d.raw...)
}

// fits tells whether the data fits into room bytes too.
func (d *Desc) fits(room int) bool {
	left := room - wordSize - len(d.raw)
	return left > 0 && d.total <= uint64(left)
}

// ProcSize returns how many bytes AppendProc appends at least, and at most, given enough room.
func (d *Desc) ProcSize() (least, most int) {
	if d == nil {
		return wordSize, wordSize
	}
	least = wordSize + len(d.raw)
	if d.bulk == nil || d.flags&flagReadOnly == 0 || d.total > 1<<30 {
		return least, least
	}
	return least, least + int(d.total)
}

// appendInfo appends the first part.
func appendInfo(b []byte, total uint64, segments int, flags uint32) []byte {
	b = binary.LittleEndian.AppendUint64(b, total)
	b = binary.LittleEndian.AppendUint32(b, uint32(segments))
	return binary.LittleEndian.AppendUint32(b, flags)
}

func appendSegment(b []byte, base, length uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, base)
	return binary.LittleEndian.AppendUint64(b, length)
}

// appendSized appends what f appends, with its size as a word before it.
func appendSized(b []byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = f(binary.LittleEndian.AppendUint64(b, 0))
	binary.LittleEndian.PutUint64(b[at:], uint64(len(b)-at-wordSize))
	return b
}

// appendCoreAddr appends a bound address as HG_Core_addr_serialize writes it: the transport's part, then that of shared
// memory, which is empty but must be announced, for builds with shared memory read its size in any case.
func appendCoreAddr(b []byte, ep na.Endpoint, a na.Addr) []byte {
	b = appendSized(b, func(b []byte) []byte { return ep.AppendAddr(b, a) })
	return binary.LittleEndian.AppendUint64(b, 0)
}
