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
	near    *wire.Bulk              // the form of an own descriptor that travels over shared memory; nil: the transport has no shared memory
	remotes atomic.Pointer[remotes] // made on first use
}

// remotes has the handles of a descriptor as a transport reads them, one for each segment.
type remotes struct {
	c    *Class // the owner of the transport
	list []na.RemoteMemory
}

// Route is the network over which a message with a descriptor travels.
type Route uint8

const (
	OverNetwork      Route = iota // the network for which the transport was opened, or this process
	OverSharedMemory              // shared memory, of a transport that is a [na.SharedMemory]
	UnknownRoute                  // one of them
)

// RouteTo returns the network over which messages to a travel. Those to the own address stay in the process, where handles of both networks
// are of use, so it is shared memory for them.
func (c *Class) RouteTo(a na.Addr) Route {
	if c.shared != nil && a != nil && (c.shared.Shares(a) || c.self.Equal(a)) {
		return OverSharedMemory
	}
	return OverNetwork
}

// DecodeProc reads a descriptor that hg_proc_hg_bulk_t has written to the begin of b, and returns the number of bytes that it takes there. The
// descriptor is nil for HG_BULK_NULL. b is hostile and is not kept. by is the network that b has come over, see ParseDesc.
func DecodeProc(b []byte, by Route) (d *Desc, n int, err error) {
	raw, n, err := wire.CutProc(b)
	if raw == nil {
		return nil, n, err
	}
	d, err = ParseDesc(raw, by)
	return d, n, err
}

// ParseDesc reads a descriptor (HG_Bulk_deserialize). b is hostile; a copy of it is kept.
//
// by is the network that b has come over. Handles and addresses of shared memory are dropped unless that is shared memory, because they
// are addresses in the memory of any process of this user: a peer on another host could otherwise name memory that it has no access to.
//
// The Desc takes at most descCost times as much memory as b has bytes, and so does a transfer of all of it.
func ParseDesc(b []byte, by Route) (*Desc, error) {
	parsed, err := wire.ParseBulk(b)
	if err != nil {
		return nil, err
	}
	if by != OverSharedMemory {
		parsed = parsed.Network()
	}
	return &Desc{Bulk: parsed}, nil
}

// shares reports whether the memory has handles of shared memory.
func (d *Desc) shares() bool { return d.shared().Flags()&wire.BulkSM != 0 }

// shared returns the form of the descriptor with handles of shared memory, if there are any.
func (d *Desc) shared() *wire.Bulk {
	if d.near != nil {
		return d.near
	}
	return &d.Bulk
}

// on returns the form of the descriptor for messages over a network. The form for an unknown network has no handles of shared memory, and an own
// descriptor is bound in it, so that a peer which gets it over shared memory can access the memory over the network.
func (d *Desc) on(r Route) *wire.Bulk {
	switch {
	case r == OverSharedMemory:
		return d.shared()
	case d.near != nil && r == UnknownRoute && d.Bound() == nil:
		return &d.own.Bind().Bulk
	case d.Flags()&wire.BulkSM != 0:
		return new(d.Network())
	}
	return &d.Bulk
}

// Access returns the access that the owner allows.
func (d *Desc) Access() na.Access {
	return na.Access(d.Flags() & (wire.BulkReadOnly | wire.BulkWriteOnly))
}

// Append appends the descriptor as HG_Bulk_serialize writes it without the flag HG_BULK_SM.
func (d *Desc) Append(b []byte) []byte { return d.on(OverNetwork).Append(b) }

// AppendProc appends the descriptor as hg_proc_hg_bulk_t writes it for a message that travels over to: its size before it, and with the data
// of memory that peers may read if all of that fits into room bytes. The data is read now. Config.NoEager prevents that. A nil Desc is
// HG_BULK_NULL.
func (d *Desc) AppendProc(b []byte, room int, to Route) []byte {
	if d == nil {
		return wire.AppendNullProc(b)
	}
	form := d.on(to)
	if left := room - form.ProcSize(); d.mayEmbed() && left > 0 && d.Len() <= uint64(left) {
		if b, ok := d.own.appendEager(b, form); ok {
			return b
		}
	}
	return form.AppendProc(b)
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
