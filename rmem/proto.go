package rmem

import (
	"time"

	"cinnabar"
)

// op is the operation that a request asks for. The order is part of the protocol.
type op uint32

const (
	opHello op = 1 + iota // begin a session
	opBye                 // end it
	opAlloc
	opFree
	opRenew
	opStat
	opCompareAndSwap
	opFetchAdd
	opRead  // of servers that are strict
	opWrite // of servers that are strict
	opCopy  // from another region
	opUsage // report quota, clients and regions
	opClaim // have a region that can be read once
)

// request is the message of a client. Fields that an operation does not use are zero.
type request struct {
	Op      uint32
	Session uint64
	ID      uint64   // of the region
	Secret  [16]byte // of the region's owner
	Size    int64    // in bytes: of a new region, of a read, of a copy
	Offset  int64    // in the region, in bytes
	Lease   int64    // nanoseconds; 0: none
	Compare uint64
	Value   uint64 // swap, or addend
	Length  uint32 // of Data
	Data    []byte `proc:"count=Length"`

	SourceID     uint64 // of the region that is copied from, if it is this server's
	SourceOffset int64
	SourceLen    uint32 // of Source
	Source       []byte `proc:"count=SourceLen"` // handle of the region that is copied from, bound, if it is another server's

	Once, Wipe bool // of a new region: see AllocOptions
}

// response is the message of a server.
type response struct {
	Status  uint32
	Session uint64
	ID      uint64
	Secret  [16]byte
	Size    int64
	Lease   int64  // nanoseconds that are left; 0: no lease
	Value   uint64 // before the operation
	Limit   int64  // the limit that a status names
	Left    int64
	Strict  bool
	Once    bool   // the region is to be claimed, and there is no way to its memory before
	Length  uint32 // of Data
	Data    []byte `proc:"count=Length"`
	Addr    uint64 // of the region's memory, and its key, over verbs
	Key     uint32
	BulkLen uint32 // of Bulk
	// Bulk is the bound handle of the region as HG_Bulk_serialize writes it: an hg_bulk_t field would bring the contents of
	// small regions along, and reads would return them for ever.
	Bulk []byte `proc:"count=BulkLen"`
}

// setBulk puts a handle into r.
func (r *response) setBulk(h cinnabar.BulkHandle) (err error) {
	r.Bulk, err = h.AppendBinary(nil)
	r.BulkLen = uint32(len(r.Bulk))
	return err
}

// The RPCs. A client has one rmem_watch under way for as long as it lives; it is answered when the session ends.
var (
	rpcRequest = cinnabar.NewRPC[request, response]("rmem_request")
	rpcWatch   = cinnabar.NewRPC[request, response]("rmem_watch")
)

// strictChunk is how many bytes one read or write of a strict server moves.
const strictChunk = 1 << 20

func leaseOf(r *response) time.Duration { return time.Duration(r.Lease) }
