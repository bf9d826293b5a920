package wire

import (
	"encoding/binary"
	"slices"
)

// Flags of bulk descriptors, HG_BULK_* in mercury_bulk.h and mercury_bulk.c.
const (
	BulkReadOnly  = 0x001 // HG_BULK_READ_ONLY: peers may pull
	BulkWriteOnly = 0x002 // HG_BULK_WRITE_ONLY: peers may push
	BulkEager     = 0x004 // HG_BULK_EAGER: the data is at the end
	BulkSM        = 0x008 // HG_BULK_SM: handles of shared memory follow those of the network
	BulkAlloc     = 0x010 // HG_BULK_ALLOC: never sent
	BulkBind      = 0x020 // HG_BULK_BIND: the owner's address is there
	BulkRegV      = 0x040 // HG_BULK_REGV: one handle for all segments
	BulkVirt      = 0x080 // HG_BULK_VIRT: sent on by a process that is not the owner
	BulkFirewall  = 0x100 // HG_BULK_FIREWALL_ADDR: the owner cannot be dialed, since 2.4.1
)

// Sizes of the parts of descriptors in bytes.
const (
	infoSize    = 16 // struct hg_bulk_desc_info
	segmentSize = 16 // struct hg_bulk_segment
	wordSize    = 8
	flagsAt     = 12 // of the info
)

// MaxSegments is the largest number of segments of memory that this process exposes.
const MaxSegments = 1 << 20

// Bulk is a bulk descriptor, hg_bulk_t on the wire. It describes memory of a process to others:
//
//	+----------------------+----------+-------+
//	| length of the memory | segments | flags |                   8 + 4 + 4
//	+----------------------+----------+-------+
//	| base address | length |  for each segment                   16 n
//	+--------------+--------+
//	| size | handle |            of one segment, or with REGV; nothing if its base is zero
//	| n sizes | n handles |     of several; size 0 and no handle where the base is zero
//	+--------------------+
//	| handles of shared memory, in the same form |  with SM
//	+--------------------+
//	| size | address | context id |      with BIND               8 + size + 1
//	+------+---------+------------+
//	| data |                             with EAGER             the length
//	+------+
//
// All numbers are little endian. A handle is opaque to all but the transport. A base address has no meaning for others, but for being
// zero or not.
//
// A Bulk is immutable and safe for concurrent use. One that came from a peer is written again as the same bytes.
type Bulk struct {
	raw     []byte // all of it; without data if NewBulk or Bind has made it
	total   uint64
	flags   uint32
	segs    []Segment
	shared  []place // of the handles of shared memory in raw, by segment; nil without BulkSM
	bound   []byte  // the address, a part of raw
	near    []byte  // the owner's address in shared memory, a part of raw
	context uint8
	eager   []byte // the data, a part of raw
}

// place is the position and the size of a handle in Bulk.raw; size 0: there is no handle.
type place struct{ at, size uint32 }

// Segment is one piece of described memory.
type Segment struct {
	Base, Length uint64
	place        // of the handle of the network
}

// AppendHandle appends the handle of segment i, or the one of all segments if the descriptor has the flag BulkRegV. It appends nothing for
// a segment with base zero.
type AppendHandle func(b []byte, i int) []byte

// NewBulk returns the descriptor of segs, which it keeps. There is at least one. network appends the handles of the network, and shared
// those of shared memory. If shared is nil the descriptor has none, and otherwise it has the flag BulkSM.
func NewBulk(flags uint32, segs []Segment, network, shared AppendHandle) Bulk {
	if shared != nil {
		flags |= BulkSM
	}
	d := Bulk{flags: flags, segs: segs}
	for _, s := range segs {
		d.total += s.Length
	}
	d.raw = appendInfo(nil, d.total, len(segs), flags)
	for _, s := range segs {
		d.raw = binary.LittleEndian.AppendUint64(d.raw, s.Base)
		d.raw = binary.LittleEndian.AppendUint64(d.raw, s.Length)
	}
	at := len(d.raw)
	d.raw = d.appendHandles(d.raw, network)
	if shared != nil {
		d.raw = d.appendHandles(d.raw, shared)
	}
	p := parser{b: d.raw[at:]}
	d.parseHandles(&p)
	return d
}

// appendHandles appends the handles of all segments in one network, with their sizes.
func (d *Bulk) appendHandles(b []byte, appendHandle AppendHandle) []byte {
	switch {
	case len(d.segs) > 1 && d.flags&BulkRegV == 0:
		at := len(b)
		b = append(b, make([]byte, wordSize*len(d.segs))...)
		for i := range d.segs {
			n := len(b)
			b = appendHandle(b, i)
			binary.LittleEndian.PutUint64(b[at+i*wordSize:], uint64(len(b)-n))
		}
	case d.segs[0].Base != 0 || d.flags&BulkRegV != 0:
		b = appendSized(b, func(b []byte) []byte { return appendHandle(b, 0) })
	}
	return b
}

// Bind returns d with the address of the owner. network appends the address as the transport writes it. shared appends the address in
// shared memory; Bind calls it if d has the flag BulkSM.
func (d *Bulk) Bind(network, shared func(b []byte) []byte) Bulk {
	bound := *d
	bound.flags |= BulkBind
	raw := slices.Clone(d.raw)
	binary.LittleEndian.PutUint32(raw[flagsAt:], bound.flags)
	if bound.flags&BulkSM == 0 {
		shared = nil
	}
	at := len(raw) + wordSize
	raw = appendSized(raw, func(b []byte) []byte { return appendCoreAddr(b, network, shared) })
	bound.bound, bound.near, _ = parseCoreAddr(raw[at:len(raw):len(raw)], shared != nil) // which has just been written
	bound.raw = append(raw, 0)                                                           // context id
	return bound
}

// Network returns d without the handles and the address of shared memory, as C sends a descriptor over a network that it got over shared
// memory. Without the flag BulkSM that is d itself.
func (d *Bulk) Network() Bulk {
	if d.flags&BulkSM == 0 {
		return *d
	}
	n := Bulk{total: d.total, flags: d.flags &^ BulkSM, segs: slices.Clone(d.segs), context: d.context}
	n.raw = appendInfo(make([]byte, 0, len(d.raw)), n.total, len(n.segs), n.flags)
	n.raw = append(n.raw, d.raw[infoSize:infoSize+len(d.segs)*segmentSize]...)
	at := len(n.raw)
	n.raw = n.appendHandles(n.raw, func(b []byte, i int) []byte { return append(b, d.Handle(i)...) })
	p := parser{b: n.raw[at:]}
	n.parseHandles(&p)
	if n.flags&BulkBind != 0 {
		at := len(n.raw) + 2*wordSize
		n.raw = appendSized(n.raw, func(b []byte) []byte {
			return appendCoreAddr(b, func(b []byte) []byte { return append(b, d.bound...) }, nil)
		})
		n.bound = n.raw[at:][:len(d.bound):len(d.bound)]
		n.raw = append(n.raw, n.context)
	}
	if n.flags&BulkEager != 0 {
		at := len(n.raw)
		n.raw = append(n.raw, d.eager...)
		n.eager = n.raw[at:len(n.raw):len(n.raw)]
	}
	return n
}

// Len returns the length of the memory in bytes.
func (d *Bulk) Len() uint64 { return d.total }

// Segments returns the number of pieces of the memory.
func (d *Bulk) Segments() int { return len(d.segs) }

// Segment returns piece i of the memory.
func (d *Bulk) Segment(i int) Segment { return d.segs[i] }

// Handle returns the handle of segment i for the transport, nil if it has none. The handle of all segments is that of the first. It must not be
// written to.
func (d *Bulk) Handle(i int) []byte {
	s := &d.segs[i]
	if s.size == 0 {
		return nil
	}
	return d.raw[s.at:][:s.size:s.size]
}

// SharedHandle returns the handle of segment i for shared memory, nil if it has none. Otherwise it is as Handle.
func (d *Bulk) SharedHandle(i int) []byte {
	if i >= len(d.shared) || d.shared[i].size == 0 {
		return nil
	}
	h := d.shared[i]
	return d.raw[h.at:][:h.size:h.size]
}

// Flags returns the flags as they came, or as they are sent without data.
func (d *Bulk) Flags() uint32 { return d.flags }

// Bound returns the owner's address as the transport writes it, nil if the descriptor has none.
func (d *Bulk) Bound() []byte { return d.bound }

// BoundShared returns the owner's address in shared memory, nil if the descriptor has none or lacks the flag BulkSM.
func (d *Bulk) BoundShared() []byte { return d.near }

// Context returns the context id of a bound descriptor's owner.
func (d *Bulk) Context() uint8 { return d.context }

// Eager returns the data that came inside the descriptor, nil if there is none. It must not be written to.
func (d *Bulk) Eager() []byte { return d.eager }

// Append appends the descriptor as HG_Bulk_serialize writes it.
func (d *Bulk) Append(b []byte) []byte { return append(b, d.raw...) }

// ProcSize returns the number of bytes that AppendProc appends.
func (d *Bulk) ProcSize() int { return wordSize + len(d.raw) }

// AppendProc appends the descriptor as hg_proc_hg_bulk_t writes it: its size, and then its bytes.
func (d *Bulk) AppendProc(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(d.raw)))
	return append(b, d.raw...)
}

// AppendProcEager is AppendProc for a descriptor with data, except that the caller appends the data behind it: d.Len() bytes.
func (d *Bulk) AppendProcEager(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(d.raw))+d.total)
	at := len(b)
	b = append(b, d.raw...)
	binary.LittleEndian.PutUint32(b[at+flagsAt:], d.flags|BulkEager)
	return b
}

// NullProcSize is the number of bytes that AppendNullProc appends.
const NullProcSize = wordSize

// AppendNullProc appends HG_BULK_NULL as hg_proc_hg_bulk_t writes it.
func AppendNullProc(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, 0) }

// LentBase is the base address of lent payloads. It must not be zero, and has no other meaning for the peer.
const LentBase = 0x1000

// AppendLent appends the descriptor that travels in the place of a payload of n bytes: hg_proc_hg_bulk_t for one read-only segment without
// data inside. network appends the handle of the payload's memory, and shared its handle of shared memory; nil: the descriptor has none.
func AppendLent(b []byte, n int, network, shared func(b []byte) []byte) []byte {
	flags := uint32(BulkReadOnly)
	if shared != nil {
		flags |= BulkSM
	}
	return appendSized(b, func(b []byte) []byte {
		b = appendInfo(b, uint64(n), 1, flags)
		b = binary.LittleEndian.AppendUint64(b, LentBase)
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
		b = appendSized(b, network)
		if shared != nil {
			b = appendSized(b, shared)
		}
		return b
	})
}

// appendInfo appends the first part.
func appendInfo(b []byte, total uint64, segments int, flags uint32) []byte {
	b = binary.LittleEndian.AppendUint64(b, total)
	b = binary.LittleEndian.AppendUint32(b, uint32(segments))
	return binary.LittleEndian.AppendUint32(b, flags)
}

// appendSized appends the bytes that f appends, with their number as a word before them.
func appendSized(b []byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = f(binary.LittleEndian.AppendUint64(b, 0))
	binary.LittleEndian.PutUint64(b[at:], uint64(len(b)-at-wordSize))
	return b
}

// hostIDSize is the size of the identifier of a host (na_sm_id_t) in bytes. C reserves room for it behind an address in shared memory, and
// writes nothing there.
const hostIDSize = 8

// appendCoreAddr appends a bound address as HG_Core_addr_serialize writes it: the transport's part, then that of shared memory. If shared
// is nil the latter is empty, but its size is written, because builds with shared memory read it in any case.
func appendCoreAddr(b []byte, network, shared func([]byte) []byte) []byte {
	b = appendSized(b, network)
	if shared == nil {
		return binary.LittleEndian.AppendUint64(b, 0)
	}
	b = appendSized(b, shared)
	return append(b, make([]byte, hostIDSize)...)
}
