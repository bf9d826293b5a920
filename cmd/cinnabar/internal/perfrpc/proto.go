package perfrpc

import (
	"encoding/binary"
	"fmt"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codes"
)

// The protocol of Mercury's own perf programs (hg_perf_server, hg_rate, hg_bw_read, hg_bw_write): seven RPCs with ids
// that are numbers, not hashes of names (enum hg_perf_rpc_id). Either side may be one of those programs.
const (
	idRateInit = 1 + iota
	idRate
	idFirst
	idBwInit
	idBwRead
	idBwWrite
	idDone
)

// Directions of a transfer as the server sees them: HG_BULK_PUSH and HG_BULK_PULL.
const (
	opPush = 0
	opPull = 1
)

// none is the argument or result of an RPC that has none.
type none = struct{}

var (
	rateInitRPC = cinnabar.NewRPC[none, none]("rate init", cinnabar.WithID(idRateInit))
	rateRPC     = cinnabar.NewRPC[count, none]("rate", cinnabar.WithID(idRate))
	verifyRPC   = cinnabar.NewRPC[pattern, none]("rate", cinnabar.WithID(idRate))
	echoRPC     = cinnabar.NewRPC[block, block]("rate", cinnabar.WithID(idRate))
	callRPC     = cinnabar.NewRPC[block, none]("rate", cinnabar.WithID(idRate))
	firstRPC    = cinnabar.NewRPC[none, none]("first", cinnabar.WithID(idFirst))
	bwInitRPC   = cinnabar.NewRPC[bwInfo, none]("bw init", cinnabar.WithID(idBwInit))
	bwReadRPC   = cinnabar.NewRPC[transfer, none]("bw read", cinnabar.WithID(idBwRead))
	bwWriteRPC  = cinnabar.NewRPC[transfer, none]("bw write", cinnabar.WithID(idBwWrite))
	doneRPC     = cinnabar.NewRPC[none, none]("done", cinnabar.WithID(idDone))
)

// bwInfo announces one handle: struct hg_perf_bulk_init_info.
type bwInfo struct {
	Bulk     remoteHandle // null if each call brings its own
	Op       uint32       // opPush or opPull
	Handle   uint32       // number of the handle, over all processes of the client
	Handles  uint32       // of one process
	Count    uint32       // transfers of one call
	SizeMax  uint32       // bytes of the largest transfer, and their distance
	Clients  uint32       // processes of the client
	Target   uint32       // number of this server, of Targets
	Targets  uint32       // servers that the client uses
	Checking bool         // whether the data is verified
}

// transfer asks for the transfers of one call: struct hg_perf_bulk_info.
type transfer struct {
	Bulk   remoteHandle // null for the one announced
	Handle uint32       // bwInfo.Handle divided by Targets
	Size   uint32       // bytes of each transfer
}

// remoteHandle is the handle of a client's memory. A server keeps it for as long as the client stays, so its size has a
// limit: without one a client could leave a message's worth of embedded data in each.
type remoteHandle struct{ handle cinnabar.BulkHandle }

// maxRemote is the limit of a handle's bytes. A client has one segment, of which small data may be embedded.
const maxRemote = 16 << 10

func (r remoteHandle) AppendProcWith(c codec.Codec, to []byte) ([]byte, error) {
	return r.handle.AppendProcWith(c, to)
}

func (r *remoteHandle) DecodeProcWith(c codec.Codec, from []byte) (int, error) {
	if len(from) >= 8 {
		if n := binary.LittleEndian.Uint64(from); n > maxRemote {
			return 0, fmt.Errorf("%w: memory handle of %d bytes; at most %d are taken", codes.Overflow, n, maxRemote)
		}
	}
	return r.handle.DecodeProcWith(c, from)
}

// block is a counted block of bytes, as hg_perf_proc_iovec writes it: a length in 4 bytes, then the bytes.
type block struct{ data []byte }

func (b block) AppendProc(to []byte) ([]byte, error) {
	return append(binary.LittleEndian.AppendUint32(to, uint32(len(b.data))), b.data...), nil
}

func (b *block) DecodeProc(from []byte) (int, error) {
	data, n, err := split(from)
	b.data = append([]byte(nil), data...)
	return n, err
}

// count is a block that is received without being checked.
type count struct{ n int }

func (c count) AppendProc(to []byte) ([]byte, error) {
	return block{make([]byte, c.n)}.AppendProc(to)
}

func (c *count) DecodeProc(from []byte) (int, error) {
	data, n, err := split(from)
	c.n = len(data)
	return n, err
}

// pattern is a block that must hold the pattern.
type pattern struct{ n int }

func (p pattern) AppendProc(to []byte) ([]byte, error) {
	data := make([]byte, p.n)
	fill(data)
	return block{data}.AppendProc(to)
}

func (p *pattern) DecodeProc(from []byte) (int, error) {
	data, n, err := split(from)
	if err != nil {
		return n, err
	}
	p.n = len(data)
	return n, check(data)
}

// split takes a counted block off the start of from, which is hostile.
func split(from []byte) (data []byte, n int, err error) {
	if len(from) < 4 {
		return nil, 0, fmt.Errorf("block without its length: %w", codec.ErrOverflow)
	}
	size := binary.LittleEndian.Uint32(from)
	if uint64(size) > uint64(len(from)-4) {
		return nil, 0, fmt.Errorf("block of %d bytes where %d follow: %w", size, len(from)-4, codec.ErrOverflow)
	}
	return from[4 : 4+size], 4 + int(size), nil
}

// fill writes the pattern of hg_perf_init_data: each 4-byte integer but the first holds its index. The first, which
// fillAll sets, and the bytes behind the last whole integer stay as they are.
func fill(b []byte) {
	for i := 1; i < len(b)/4; i++ {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i))
	}
}

// fillAll writes the pattern, with the number of the handle in the first integer, into each part of b.
func fillAll(b []byte, each int64, handle uint32) {
	for ; int64(len(b)) >= each; b = b[each:] {
		fill(b[:each])
		if each >= 4 {
			binary.LittleEndian.PutUint32(b, handle)
		}
	}
}

// check compares b with the pattern (hg_perf_verify_data).
func check(b []byte) error {
	for i := 1; i < len(b)/4; i++ {
		if got := binary.LittleEndian.Uint32(b[4*i:]); got != uint32(i) {
			return fmt.Errorf("%w: wrong data: integer %d is %d, want %d", codes.Fault, i, int32(got), i)
		}
	}
	return nil
}

// checkAll compares the first size bytes of each part of b with the pattern of fillAll.
func checkAll(b []byte, each, size int64, handle uint32) error {
	for ; int64(len(b)) >= each; b = b[each:] {
		if size >= 4 {
			if got := binary.LittleEndian.Uint32(b); got != handle {
				return fmt.Errorf("%w: wrong data: that of handle %d, want that of handle %d", codes.Fault, got, handle)
			}
		}
		if err := check(b[:size]); err != nil {
			return err
		}
	}
	return nil
}
