package hg

import (
	"sync/atomic"

	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
)

// Desc is a bulk descriptor together with the objects of this process that belong to it: the memory, if the descriptor is this process's own,
// and the handles as a transport reads them. It must not be copied. It is immutable for its users and safe for concurrent use.
type Desc struct {
	wire.Bulk
	own     *Bulk                   // the memory, if it is this process's own descriptor
	remotes atomic.Pointer[remotes] // made on first use
}

// remotes has the handles of a descriptor as a transport reads them, one for each segment.
type remotes struct {
	c    *Class // the owner of the transport
	list []na.RemoteMemory
}

// DecodeProc reads a descriptor that hg_proc_hg_bulk_t has written to the begin of b, and returns the number of bytes that it takes there. The
// descriptor is nil for HG_BULK_NULL. b is hostile and is not kept.
func DecodeProc(b []byte) (d *Desc, n int, err error) {
	raw, n, err := wire.CutProc(b)
	if raw == nil {
		return nil, n, err
	}
	d, err = ParseDesc(raw)
	return d, n, err
}

// ParseDesc reads a descriptor (HG_Bulk_deserialize). b is hostile; a copy of it is kept.
//
// The Desc takes at most descCost times as much memory as b has bytes, and so does a transfer of all of it.
func ParseDesc(b []byte) (*Desc, error) {
	parsed, err := wire.ParseBulk(b)
	if err != nil {
		return nil, err
	}
	return &Desc{Bulk: parsed}, nil
}

// Access returns the access that the owner allows.
func (d *Desc) Access() na.Access {
	return na.Access(d.Flags() & (wire.BulkReadOnly | wire.BulkWriteOnly))
}

// AppendProc appends the descriptor as hg_proc_hg_bulk_t writes it: its size before it, and with the data of memory that
// peers may read if all of that fits into room bytes. The data is read now. Config.NoEager prevents that. A nil Desc is HG_BULK_NULL.
func (d *Desc) AppendProc(b []byte, room int) []byte {
	if d == nil {
		return wire.AppendNullProc(b)
	}
	if left := room - d.Bulk.ProcSize(); d.mayEmbed() && left > 0 && d.Len() <= uint64(left) {
		if b, ok := d.own.appendEager(b, d); ok {
			return b
		}
	}
	return d.Bulk.AppendProc(b)
}

// mayEmbed reports whether AppendProc may append the data of the memory, given enough room.
func (d *Desc) mayEmbed() bool {
	return d.own != nil && d.Len() > 0 && d.Flags()&wire.BulkReadOnly != 0
}

// ProcSize returns how many bytes AppendProc appends at least, and at most, given enough room.
func (d *Desc) ProcSize() (least, most int) {
	if d == nil {
		return wire.NullProcSize, wire.NullProcSize
	}
	least = d.Bulk.ProcSize()
	if !d.mayEmbed() || d.Len() > 1<<30 {
		return least, least
	}
	return least, least + int(d.Len())
}
