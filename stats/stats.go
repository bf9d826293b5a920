// Package stats has the reports of an engine about its own work: a [Snapshot] of its counters, which [cinnabar.Engine.Stats]
// returns, a [State] with its services and the operations under way, which [cinnabar.Engine.State] returns, and the events
// that a [Monitor] in [cinnabar.Config] receives at the start and the end of each operation.
//
// All values are plain. The engine does not change them after it has returned them or passed them to a Monitor.
package stats

// Snapshot has counters since the engine was opened and a few states of the moment. The engine reads its numbers one after the
// other, so two of them may differ by the operations in between.
type Snapshot struct {
	Net
	Handlers Pool            // of the handlers outside named pools
	Pools    map[string]Pool // by name
	Security Security
}

// Security has the amounts of limited resources that hosts hold, and the counts of events that matter for security.
type Security struct {
	Quotas []Quota         `json:"quotas"`
	Events []SecurityEvent `json:"events"` // of which the count is not 0
}

// Quota is a resource that hosts have shares of. Handlers and queued requests are in [Pool].
type Quota struct {
	Resource string `json:"resource"` // "connections", "bytes of memory"
	Used     int64  `json:"used"`     // by all hosts together
	Limit    int64  `json:"limit"`    // of Used
	Refused  uint64 `json:"refused"`  // how many times a host got no more
}

// SecurityEvent counts the events of one kind that had one cause. The log names the hosts.
type SecurityEvent struct {
	Event string `json:"event"` // "refused", "remote shutdown"
	Cause string `json:"cause"`
	Count uint64 `json:"count"`
}

// Net counts messages and transfers. Names in parentheses are those of Mercury's counters (HG_Class_get_counters). Fields with
// names that end in Active or Unsent, and OverflowBytes, are states of the moment; the others only grow.
type Net struct {
	RequestsSent    uint64 // by calls that left this process (rpc_req_sent_count)
	RequestsShared  uint64 // those of RequestsSent that travelled over shared memory, of an engine with Config.AutoSM
	ResponsesRecvd  uint64 // to them (rpc_resp_recv_count)
	RequestsRecvd   uint64 // from the network (rpc_req_recv_count)
	ResponsesSent   uint64 // to them (rpc_resp_sent_count)
	RequestsExtra   uint64 // requests with overflow, sent or received (rpc_req_extra_count)
	ResponsesExtra  uint64 // responses with overflow, sent or received (rpc_resp_extra_count)
	Bulks           uint64 // exposed memories (bulk_count)
	SelfCalls       uint64 // calls to the own address, which do not count above
	RequestsDropped uint64 // from the network: malformed, with wrong checksums, or with an overflow that failed
	RequestsRefused uint64 // answered codes.Again, because no memory was left for their overflow
	ResponsesFailed uint64 // that the network did not accept, or with overflow that the caller did not pull
	RequestsUnheard uint64 // requests that were freed although their callers wait for an answer
	AcksMissing     uint64 // overflows that a peer did not acknowledge in time
	Reads           uint64 // transfers that read from peers
	Writes          uint64 // transfers that wrote to peers
	BytesRead       uint64
	BytesWritten    uint64
	BytesRDMA       uint64 // of BytesRead and BytesWritten, those that an RDMA device moved between the memories of the two processes
	BytesBounced    uint64 // of BytesRDMA, those that were copied through a buffer, because that takes less time than registering their memory
	EagerCopies     uint64 // pulls that copied the data in the handle
	LocalCopies     uint64 // transfers to and from this process's own memory
	CallsActive     int64  // calls that were started and have not ended
	RequestsActive  int64  // requests that were received and are not freed
	TransfersActive int64  // transfers that were started and have not ended
	ResponsesUnsent int64  // responses that the network has not yet accepted
	OverflowBytes   int64  // memory that holds arguments and results too long for a message
	Spins           uint64 // waits for the network that looked for messages before they parked, or instead
	Parks           uint64 // waits for the network that parked and were woken
	Yields          uint64 // times that a waiter gave its processor to threads of other processes between two looks
	HandOvers       uint64 // times that a reader gave its processor to a goroutine that it had given work to
}

// Counter is a number with the name that Mercury has for it.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns the numbers that Mercury counts too, under its names and in its order (HG_Diag_dump_counters).
// The engine never copies requests out of receive buffers that they share, so that number is 0.
func (s *Net) Counters() []Counter {
	return []Counter{
		{"rpc_req_sent_count", s.RequestsSent}, {"rpc_req_recv_count", s.RequestsRecvd},
		{"rpc_resp_sent_count", s.ResponsesSent}, {"rpc_resp_recv_count", s.ResponsesRecvd},
		{"rpc_req_extra_count", s.RequestsExtra}, {"rpc_resp_extra_count", s.ResponsesExtra},
		{"rpc_req_recv_active_count", uint64(max(s.RequestsActive, 0))}, {"rpc_multi_recv_copy_count", 0},
		{"bulk_count", s.Bulks},
	}
}

// Pool counts the handlers of a handler pool.
type Pool struct {
	Running int    // handlers that run now
	Waiting int    // handlers that wait for a call or transfer of theirs now
	Queued  int    // requests that wait for a worker now
	Most    int    // the largest number of handlers at once so far
	Served  uint64 // handlers begun
	Refused uint64 // requests answered codes.Again
}
