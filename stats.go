package cinnabar

import (
	"cinnabar/internal/hg"
	"cinnabar/internal/hostquota"
)

// Stats are counts since the engine was made, and a few states of the moment.
type Stats struct {
	NetStats
	Handlers PoolStats            // outside pools
	Pools    map[string]PoolStats // by name
	Security SecurityStats
}

// SecurityStats are the amounts of limited resources that hosts hold, and the counts of events that matter for security.
type SecurityStats struct {
	Quotas []Quota         `json:"quotas"`
	Events []SecurityEvent `json:"events"` // that have happened
}

// Quota is a resource that hosts have shares of. Handlers and queued requests are in [PoolStats].
type Quota struct {
	Resource string `json:"resource"` // "connections", "bytes of memory"
	Used     int64  `json:"used"`     // by all hosts together
	Limit    int64  `json:"limit"`    // of that
	Refused  uint64 `json:"refused"`  // how many times a host got no more
}

// SecurityEvent counts the events of one kind that had one cause. The log names the hosts.
type SecurityEvent struct {
	Event string `json:"event"` // "refused", "remote shutdown"
	Cause string `json:"cause"`
	Count uint64 `json:"count"`
}

// security returns the engine's SecurityStats.
func (e *Engine) security() (s SecurityStats) {
	book := e.cfg.quota
	for _, r := range []hostquota.Resource{hostquota.Connections, hostquota.Handshakes, hostquota.Unsent, hostquota.Pulls, hostquota.Memory} {
		s.Quotas = append(s.Quotas, Quota{Resource: r.String(), Used: book.Used(r), Limit: book.Limit(r), Refused: book.Refused(r)})
	}
	for _, c := range e.cfg.trail.Counts() {
		s.Events = append(s.Events, SecurityEvent{Event: c.Event.String(), Cause: c.Cause, Count: c.N})
	}
	return s
}

// NetStats are what went over the network. Names in parentheses are those of Mercury's counters
// (HG_Class_get_counters).
type NetStats struct {
	RequestsSent    uint64 // by calls that left this process (rpc_req_sent_count)
	ResponsesRecvd  uint64 // to them (rpc_resp_recv_count)
	RequestsRecvd   uint64 // from the network (rpc_req_recv_count)
	ResponsesSent   uint64 // to them (rpc_resp_sent_count)
	RequestsExtra   uint64 // requests with overflow, sent or received (rpc_req_extra_count)
	ResponsesExtra  uint64 // responses with overflow, sent or received (rpc_resp_extra_count)
	Bulks           uint64 // memory exposed (bulk_count)
	SelfCalls       uint64 // calls to the own address, which do not count above
	RequestsDropped uint64 // from the network: malformed, or with wrong checksums, or with an overflow that failed
	RequestsRefused uint64 // answered codes.Again for want of memory for their overflow
	ResponsesFailed uint64 // responses that the network did not take, or whose overflow was not pulled
	RequestsUnheard uint64 // requests that were given up without an answer
	AcksMissing     uint64 // overflows that a peer did not acknowledge in time
	Reads           uint64 // transfers that read from peers
	Writes          uint64 // transfers that wrote to peers
	BytesRead       uint64
	BytesWritten    uint64
	EagerCopies     uint64 // pulls that were served by the data in the handle
	LocalCopies     uint64 // transfers to and from this process's own memory
	CallsActive     int64  // started and not yet ended
	RequestsActive  int64  // received and not yet done with
	TransfersActive int64  // started and not yet ended
	ResponsesUnsent int64  // handed to the network, which has not taken them yet
	OverflowBytes   int64  // memory that holds arguments and results too long for a message
}

// Counter is a number with the name that Mercury has for it.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns the numbers that Mercury counts too, under its names and in its order (HG_Diag_dump_counters).
// Requests are never copied out of receive buffers that they share, so that number is 0.
func (s *NetStats) Counters() []Counter {
	return []Counter{
		{"rpc_req_sent_count", s.RequestsSent}, {"rpc_req_recv_count", s.RequestsRecvd},
		{"rpc_resp_sent_count", s.ResponsesSent}, {"rpc_resp_recv_count", s.ResponsesRecvd},
		{"rpc_req_extra_count", s.RequestsExtra}, {"rpc_resp_extra_count", s.ResponsesExtra},
		{"rpc_req_recv_active_count", uint64(max(s.RequestsActive, 0))}, {"rpc_multi_recv_copy_count", 0},
		{"bulk_count", s.Bulks},
	}
}

// PoolStats is what a pool of handlers has done and does.
type PoolStats struct {
	Running int    // handlers that run now
	Waiting int    // handlers that wait for a call or transfer of theirs now
	Queued  int    // requests that wait for a handler now
	Most    int    // the largest number of handlers at once so far
	Served  uint64 // handlers begun
	Refused uint64 // requests answered codes.Again
}

// Stats returns what the engine has done so far and what it does now. The numbers are read one after the other.
func (e *Engine) Stats() Stats {
	s := Stats{
		NetStats: netStats(e.core.Stats()),
		Handlers: PoolStats(e.handlers.pools.other.Stats()),
		Pools:    map[string]PoolStats{},
		Security: e.security(),
	}
	for _, p := range e.Pools() {
		s.Pools[p.Name()] = p.Stats()
	}
	return s
}

func netStats(h hg.Stats) NetStats {
	return NetStats{
		RequestsSent: h.RequestsSent, ResponsesRecvd: h.ResponsesRecvd, RequestsRecvd: h.RequestsRecvd, ResponsesSent: h.ResponsesSent,
		RequestsExtra: h.RequestsExtra, ResponsesExtra: h.ResponsesExtra, Bulks: h.Bulks, SelfCalls: h.SelfCalls,
		RequestsDropped: h.RequestsDropped, RequestsRefused: h.RequestsRefused, ResponsesFailed: h.ResponsesFailed,
		RequestsUnheard: h.RequestsUnheard, AcksMissing: h.AcksMissing,
		Reads: h.Reads, Writes: h.Writes, BytesRead: h.BytesRead, BytesWritten: h.BytesWritten,
		EagerCopies: h.EagerCopies, LocalCopies: h.LocalCopies,
		CallsActive: h.CallsActive, RequestsActive: h.RequestsActive, TransfersActive: h.TransfersActive,
		ResponsesUnsent: h.ResponsesUnsent, OverflowBytes: h.OverflowBytes,
	}
}
