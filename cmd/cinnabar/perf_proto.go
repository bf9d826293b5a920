package main

import (
	"encoding/binary"
	"fmt"

	"cinnabar"
	"cinnabar/codec"
)

// The protocol of Mercury's own perf programs (hg_perf_server, hg_rate, hg_bw_read, hg_bw_write): seven RPCs with ids
// that are numbers, not hashes of names (enum hg_perf_rpc_id). Either side may be one of those programs.
const (
	perfIDRateInit = 1 + iota
	perfIDRate
	perfIDFirst
	perfIDBwInit
	perfIDBwRead
	perfIDBwWrite
	perfIDDone
)

// Directions of a transfer as the server sees them: HG_BULK_PUSH and HG_BULK_PULL.
const (
	perfPush = 0
	perfPull = 1
)

// none is the argument or result of an RPC that has none.
type none = struct{}

var (
	perfRateInit = cinnabar.NewRPC[none, none]("rate init", cinnabar.WithID(perfIDRateInit))
	perfRate     = cinnabar.NewRPC[perfCount, none]("rate", cinnabar.WithID(perfIDRate))
	perfVerify   = cinnabar.NewRPC[perfPattern, none]("rate", cinnabar.WithID(perfIDRate))
	perfEcho     = cinnabar.NewRPC[perfBlock, perfBlock]("rate", cinnabar.WithID(perfIDRate))
	perfCall     = cinnabar.NewRPC[perfBlock, none]("rate", cinnabar.WithID(perfIDRate))
	perfFirst    = cinnabar.NewRPC[none, none]("first", cinnabar.WithID(perfIDFirst))
	perfBwInit   = cinnabar.NewRPC[perfBwInfo, none]("bw init", cinnabar.WithID(perfIDBwInit))
	perfBwRead   = cinnabar.NewRPC[perfTransfer, none]("bw read", cinnabar.WithID(perfIDBwRead))
	perfBwWrite  = cinnabar.NewRPC[perfTransfer, none]("bw write", cinnabar.WithID(perfIDBwWrite))
	perfDone     = cinnabar.NewRPC[none, none]("done", cinnabar.WithID(perfIDDone))
)

// perfBwInfo announces one handle: struct hg_perf_bulk_init_info.
type perfBwInfo struct {
	Bulk     perfRemote // null if each call brings its own
	Op       uint32     // perfPush or perfPull
	Handle   uint32     // number of the handle, over all processes of the client
	Handles  uint32     // of one process
	Count    uint32     // transfers of one call
	SizeMax  uint32     // bytes of the largest transfer, and their distance
	Clients  uint32     // processes of the client
	Target   uint32     // number of this server, of Targets
	Targets  uint32     // servers that the client uses
	Checking bool       // whether the data is verified
}

// perfTransfer asks for the transfers of one call: struct hg_perf_bulk_info.
type perfTransfer struct {
	Bulk   perfRemote // null for the one announced
	Handle uint32     // perfBwInfo.Handle divided by Targets
	Size   uint32     // bytes of each transfer
}

// perfRemote is the handle of a client's memory. A server keeps it for as long as the client stays, so its size has a
// limit: without one a client could leave a message's worth of embedded data in each.
type perfRemote struct{ handle cinnabar.BulkHandle }

// perfMaxRemote is the limit of a handle's bytes. A client has one segment, of which small data may be embedded.
const perfMaxRemote = 16 << 10

func (r perfRemote) AppendProc(to []byte) ([]byte, error) { return r.handle.AppendProc(to) }

func (r *perfRemote) DecodeProc(from []byte) (int, error) {
	if len(from) >= 8 {
		if n := binary.LittleEndian.Uint64(from); n > perfMaxRemote {
			return 0, fmt.Errorf("%w: memory handle of %d bytes; at most %d are taken", cinnabar.CodeOverflow, n, perfMaxRemote)
		}
	}
	return r.handle.DecodeProc(from)
}

// perfBlock is a counted block of bytes, as hg_perf_proc_iovec writes it: a length in 4 bytes, then the bytes.
type perfBlock struct{ data []byte }

func (b perfBlock) AppendProc(to []byte) ([]byte, error) {
	return append(binary.LittleEndian.AppendUint32(to, uint32(len(b.data))), b.data...), nil
}

func (b *perfBlock) DecodeProc(from []byte) (int, error) {
	data, n, err := perfSplit(from)
	b.data = append([]byte(nil), data...)
	return n, err
}

// perfCount is a block that nobody looks into.
type perfCount struct{ n int }

func (c perfCount) AppendProc(to []byte) ([]byte, error) {
	return perfBlock{make([]byte, c.n)}.AppendProc(to)
}

func (c *perfCount) DecodeProc(from []byte) (int, error) {
	data, n, err := perfSplit(from)
	c.n = len(data)
	return n, err
}

// perfPattern is a block that must hold the pattern.
type perfPattern struct{ n int }

func (p perfPattern) AppendProc(to []byte) ([]byte, error) {
	data := make([]byte, p.n)
	perfFill(data)
	return perfBlock{data}.AppendProc(to)
}

func (p *perfPattern) DecodeProc(from []byte) (int, error) {
	data, n, err := perfSplit(from)
	if err != nil {
		return n, err
	}
	p.n = len(data)
	return n, perfCheck(data)
}

// perfSplit takes a counted block off the start of from, which is hostile.
func perfSplit(from []byte) (data []byte, n int, err error) {
	if len(from) < 4 {
		return nil, 0, fmt.Errorf("block without its length: %w", codec.ErrOverflow)
	}
	size := binary.LittleEndian.Uint32(from)
	if uint64(size) > uint64(len(from)-4) {
		return nil, 0, fmt.Errorf("block of %d bytes where %d follow: %w", size, len(from)-4, codec.ErrOverflow)
	}
	return from[4 : 4+size], 4 + int(size), nil
}

// perfFill writes the pattern of hg_perf_init_data: each 4-byte integer but the first holds its index. The first is
// perfMark's; what is left of a last integer stays as it is.
func perfFill(b []byte) {
	for i := 1; i < len(b)/4; i++ {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i))
	}
}

// perfFillAll writes the pattern, with the number of the handle in the first integer, into each part of b.
func perfFillAll(b []byte, each int64, handle uint32) {
	for ; int64(len(b)) >= each; b = b[each:] {
		perfFill(b[:each])
		if each >= 4 {
			binary.LittleEndian.PutUint32(b, handle)
		}
	}
}

// perfCheck compares b with the pattern (hg_perf_verify_data).
func perfCheck(b []byte) error {
	for i := 1; i < len(b)/4; i++ {
		if got := binary.LittleEndian.Uint32(b[4*i:]); got != uint32(i) {
			return fmt.Errorf("%w: wrong data: integer %d is %d, want %d", cinnabar.CodeFault, i, int32(got), i)
		}
	}
	return nil
}

// perfCheckAll compares the first size bytes of each part of b with what perfFillAll writes.
func perfCheckAll(b []byte, each, size int64, handle uint32) error {
	for ; int64(len(b)) >= each; b = b[each:] {
		if size >= 4 {
			if got := binary.LittleEndian.Uint32(b); got != handle {
				return fmt.Errorf("%w: wrong data: that of handle %d, want that of handle %d", cinnabar.CodeFault, got, handle)
			}
		}
		if err := perfCheck(b[:size]); err != nil {
			return err
		}
	}
	return nil
}
