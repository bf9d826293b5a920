package cinnabar

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"math"

	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/codecplan"
	"cinnabar/internal/hg"
	"cinnabar/internal/sglist"
)

// BulkHandle is the description of exposed memory: its size in bytes, the accesses that peers have, and the keys with which the
// network reaches it. [Bulk.Handle] makes it, and it travels as a field of an RPC's arguments, to and from C programs'
// hg_bulk_t too. It is a comparable value; the zero value is the null handle, C's HG_BULK_NULL.
//
// A handle does not keep the memory exposed: its owner must keep the Bulk open until the peer is done. Nor does it say
// where the memory is, unless it is bound ([Bulk.Bound]): the receiver joins it with the sender by [BulkHandle.On].
// A received handle may be passed on and then travels in the same bytes, except that the handles of shared memory in it
// travel over shared memory only ([Config].AutoSM).
//
// The keys in a handle are all that a process needs for an access, so the handle is as confidential as the memory.
//
// Programs compare a handle with BulkHandle{}, to know whether it is null. A handle is a [codec.AppenderWith] and [codec.DecoderWith], so
// types with such methods can call those of a handle in them.
type BulkHandle struct{ procHandle }

// procHandle is a BulkHandle with the methods that the codecs call: it is a [codec.AppenderWith] and [codec.DecoderWith], and also a
// [codec.Appender] and [codec.Decoder], so that types with the methods of these can call those of a handle.
type procHandle struct{ d *hg.Desc }

// Handle describes b for peers. A view's handle gives access to the view's part only: for each different part the
// network gets keys of its own, which are revoked when the whole Bulk is closed.
//
// If b is closed, or is a view of a part that does not exist, the handle is null.
func (b *Bulk) Handle() BulkHandle { return b.describe((*hg.Bulk).Desc) }

// Bound is Handle with the owner's address in it (HG_Bulk_bind), for memory that third parties are to reach: a process that
// receives the handle from another process than the owner finds the owner with [BulkHandle.Owner].
func (b *Bulk) Bound() BulkHandle { return b.describe((*hg.Bulk).Bind) }

func (b *Bulk) describe(desc func(*hg.Bulk) *hg.Desc) BulkHandle {
	if b.use("describe") != nil {
		return BulkHandle{}
	}
	defer b.life.Release()
	core, err := b.mem.part(span{b.off, b.n})
	if err != nil {
		return BulkHandle{}
	}
	return BulkHandle{procHandle{desc(core)}}
}

// part returns the registration of a part of m, which is made at the first call for it.
func (m *memory) part(s span) (*hg.Bulk, error) {
	if s == (span{0, m.size}) {
		return m.core, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if core, ok := m.views[s]; ok {
		return core, nil
	}
	segs := sglist.Slice(nil, m.segs, s.off, s.n)
	if len(segs) == 0 {
		segs = [][]byte{nil} // an empty part is a Bulk too
	}
	core, err := m.e.core.Expose(segs, m.mode.access())
	if err != nil {
		return nil, err
	}
	if m.views == nil {
		m.views = make(map[span]*hg.Bulk)
	}
	m.views[s] = core
	return core, nil
}

// On joins the handle with the process that holds the memory, which is the one that the handle came from unless the
// program says otherwise: [InfoFrom] in an RPC's handler.
func (h BulkHandle) On(ep *Endpoint) RemoteBulk { return RemoteBulk{h: h, ep: ep, n: h.Len()} }

// Len is the number of bytes in all segments together, as the handle says.
func (h BulkHandle) Len() int64 {
	if h.d == nil {
		return 0
	}
	return int64(min(h.d.Len(), math.MaxInt64))
}

// Mode returns the accesses that the handle names; the owner of the memory checks each access again.
func (h BulkHandle) Mode() Mode {
	if h.d == nil {
		return 0
	}
	return Mode(h.d.Flags()) & ReadWrite
}

// bound reports whether the handle has its owner's address in it.
func (h BulkHandle) bound() bool { return h.d != nil && h.d.Bound() != nil }

// Owner returns the process at the address in a bound handle (HG_Bulk_get_addr). The maker of the handle chose the address, and Owner
// does not verify it. There is no traffic. A handle that is not bound, the null handle among them, gives an [*Error] of
// [codes.InvalidArg].
func (h BulkHandle) Owner(e *Engine) (*Endpoint, error) {
	if !h.bound() {
		return nil, argumentError("find owner", "", "", "the handle is not bound; its owner makes one that is with Bulk.Bound")
	}
	a, err := e.core.Owner(h.d)
	if err != nil {
		return nil, errorFrom("find owner", "", "", err)
	}
	return &Endpoint{e: e, addr: a}, nil
}

// String describes the handle without its keys.
func (h BulkHandle) String() string {
	if h.d == nil {
		return "null bulk"
	}
	s := fmt.Sprintf("%v bulk of %d bytes in %d segments", h.Mode(), h.Len(), h.d.Segments())
	if h.bound() {
		s += ", bound"
	}
	return s
}

// AppendBinary appends the bytes of HG_Bulk_serialize, which other means than RPC arguments can carry. They name the memory for the network,
// without the handles and addresses of shared memory that [Config].AutoSM adds to arguments, because AppendBinary does not know who reads
// them. The null handle has no bytes.
func (h BulkHandle) AppendBinary(b []byte) ([]byte, error) {
	if h.d == nil {
		return b, argumentError("serialize", "", "", "the handle is null")
	}
	return h.d.Append(b), nil
}

// UnmarshalBinary reads the bytes that AppendBinary or HG_Bulk_serialize wrote. It does not keep b, which may come from an untrusted
// peer: it returns an [*Error] of [codes.ProtocolError] for malformed bytes.
func (h *BulkHandle) UnmarshalBinary(b []byte) error {
	d, err := hg.ParseDesc(b, hg.UnknownRoute)
	if err != nil {
		return &Error{Op: "deserialize", Code: codes.ProtocolError, Err: err}
	}
	h.d = d
	return nil
}

// AppendProc appends the handle as an RPC's argument (hg_proc_hg_bulk_t). Small memory that peers may read is
// appended itself, as it is at this moment, if it fits into the rest of the message: pulling it then takes no
// transfer. If the program changes such memory while the call is under way, the peer may see the old bytes or the new ones.
//
// With [Config].AutoSM the bytes depend on the network that the message travels over, which AppendProc does not know: a peer in Go that
// gets them over shared memory accesses the memory over the network, and a peer in C cannot access it. Types with methods of their own
// call AppendProcWith instead.
func (h procHandle) AppendProc(b []byte) ([]byte, error) { return h.appendTo(b, hg.UnknownRoute) }

// AppendProcWith is AppendProc for a message that c encodes. c is the codec that the method AppendProcWith of the type around the handle
// gets ([codec.AppenderWith]).
func (h procHandle) AppendProcWith(c codec.Codec, b []byte) ([]byte, error) {
	return h.appendTo(b, routeOf(c))
}

func (h procHandle) appendTo(b []byte, to hg.Route) ([]byte, error) {
	if h.d == nil {
		return binary.LittleEndian.AppendUint64(b, 0), nil
	}
	return h.d.AppendProc(b, cap(b)-len(b), to), nil
}

// DecodeProc reads the bytes that AppendProc or C's hg_proc_hg_bulk_t wrote, and returns how many they are. It does not keep b. With
// [Config].AutoSM the handle reaches the memory over the network only, because DecodeProc does not know whether b has come over shared
// memory. Types with methods of their own call DecodeProcWith instead.
func (h *procHandle) DecodeProc(b []byte) (int, error) { return h.decode(b, hg.UnknownRoute) }

// DecodeProcWith is DecodeProc for a message that c decodes. c is the codec that the method DecodeProcWith of the type around the handle
// gets ([codec.DecoderWith]).
func (h *procHandle) DecodeProcWith(c codec.Codec, b []byte) (int, error) {
	return h.decode(b, routeOf(c))
}

func (h *procHandle) decode(b []byte, by hg.Route) (int, error) {
	const word = 8 // the size in front
	if len(b) < word || binary.LittleEndian.Uint64(b) > uint64(len(b)-word) {
		return 0, codec.ErrOverflow
	}
	d, n, err := hg.DecodeProc(b, by)
	if err != nil {
		return 0, &Error{Op: "deserialize", Code: codes.ProtocolError, Err: err}
	}
	h.d = d
	return n, nil
}

// routeOf returns the network of a message that c encodes or decodes.
func routeOf(c codec.Codec) hg.Route {
	if codecplan.IsOverSharedMemory(c) {
		return hg.OverSharedMemory
	}
	return hg.OverNetwork
}

var (
	_ codec.Appender             = BulkHandle{}
	_ codec.Decoder              = (*BulkHandle)(nil)
	_ codec.AppenderWith         = BulkHandle{}
	_ codec.DecoderWith          = (*BulkHandle)(nil)
	_ encoding.BinaryAppender    = BulkHandle{}
	_ encoding.BinaryUnmarshaler = (*BulkHandle)(nil)
)

// MarshalText implements [encoding.TextMarshaler]. The text has no keys, so it does not give access to the memory.
func (h BulkHandle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }
