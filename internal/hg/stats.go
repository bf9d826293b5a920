package hg

import "sync/atomic"

// Stats are counts since the Class was made, and a few states of the moment. Names in parentheses are those of C's
// counters (HG_Class_get_counters).
type Stats struct {
	RequestsSent      uint64 // by calls that left this process (rpc_req_sent_count)
	RequestsShared    uint64 // those of RequestsSent that travelled over shared memory beside a network
	ResponsesRecvd    uint64 // to them (rpc_resp_recv_count)
	RequestsRecvd     uint64 // from the network (rpc_req_recv_count)
	ResponsesSent     uint64 // to them (rpc_resp_sent_count)
	RequestsExtra     uint64 // requests with overflow, sent or received (rpc_req_extra_count)
	ResponsesExtra    uint64 // responses with overflow, sent or received (rpc_resp_extra_count)
	Bulks             uint64 // memory exposed (bulk_count)
	SelfCalls         uint64 // calls to the own address, which do not count above
	RequestsDropped   uint64 // from the network: malformed, or with wrong checksums, or with an overflow that failed
	RequestsRefused   uint64 // answered with Again for want of memory for their overflow
	ResponsesFailed   uint64 // responses that the network did not take, and those with an overflow that was not pulled
	RequestsUnheard   uint64 // two-way requests that were freed without an answer
	AcksMissing       uint64 // overflows that a peer did not acknowledge in time
	Reads             uint64 // transfers that read from peers
	Writes            uint64 // transfers that wrote to peers
	BytesRead         uint64
	BytesWritten      uint64
	EagerCopies       uint64 // pulls that were served by the data in the descriptor
	LocalCopies       uint64 // transfers to and from this process's own memory
	CallsActive       int64  // started and not yet ended
	RequestsActive    int64  // received and not yet freed
	TransfersActive   int64  // started and not yet ended
	ResponsesUnsent   int64  // and acks: handed to the network, which has not taken them yet
	PayloadsLingering int64  // left to peers that may still pull them, by calls and responses that were given up
	OverflowBytes     int64  // memory that holds pulled payloads
}

// counters are the live form of Stats.
type counters struct {
	requestsShared, requestsSent, responsesRecvd, requestsRecvd, responsesSent atomic.Uint64
	requestsExtra, responsesExtra, bulks, selfCalls                            atomic.Uint64
	requestsDropped, requestsRefused, responsesFailed                          atomic.Uint64
	requestsUnheard, acksMissing                                               atomic.Uint64
	reads, writes, bytesRead, bytesWritten                                     atomic.Uint64
	eagerCopies, localCopies                                                   atomic.Uint64
	callsActive, requestsActive, transfersActive, unsent, budget, lingering    atomic.Int64
}

// Stats returns a snapshot; its numbers are read one after the other.
func (c *Class) Stats() Stats {
	n := &c.count
	return Stats{
		RequestsSent: n.requestsSent.Load(), RequestsShared: n.requestsShared.Load(), ResponsesRecvd: n.responsesRecvd.Load(),
		RequestsRecvd: n.requestsRecvd.Load(), ResponsesSent: n.responsesSent.Load(),
		RequestsExtra: n.requestsExtra.Load(), ResponsesExtra: n.responsesExtra.Load(),
		Bulks: n.bulks.Load(), SelfCalls: n.selfCalls.Load(),
		RequestsDropped: n.requestsDropped.Load(), RequestsRefused: n.requestsRefused.Load(),
		ResponsesFailed: n.responsesFailed.Load(), RequestsUnheard: n.requestsUnheard.Load(),
		AcksMissing: n.acksMissing.Load(),
		Reads:       n.reads.Load(), Writes: n.writes.Load(), BytesRead: n.bytesRead.Load(), BytesWritten: n.bytesWritten.Load(),
		EagerCopies: n.eagerCopies.Load(), LocalCopies: n.localCopies.Load(),
		CallsActive: n.callsActive.Load(), RequestsActive: n.requestsActive.Load(), TransfersActive: n.transfersActive.Load(),
		ResponsesUnsent: n.unsent.Load(), OverflowBytes: n.budget.Load(), PayloadsLingering: n.lingering.Load(),
	}
}

// Unsent returns the number of responses that the network has not taken yet. The layer above may refuse requests while it is large,
// because a peer that does not read its responses holds memory.
func (c *Class) Unsent() int { return int(c.count.unsent.Load()) }
