package verbs

import "fmt"

// WCStatus is the outcome of a work request (enum ibv_wc_status).
type WCStatus uint32

const (
	// StatusSuccess: done.
	StatusSuccess WCStatus = iota // IBV_WC_SUCCESS
	// StatusLocLenErr: the message does not fit the local buffers.
	StatusLocLenErr
	// StatusLocQPOpErr: the queue pair could not process the request.
	StatusLocQPOpErr
	// StatusLocEECOpErr: of reliable datagrams, obsolete.
	StatusLocEECOpErr
	// StatusLocProtErr: a local key, range or right was wrong.
	StatusLocProtErr
	// StatusWRFlushErr: the queue pair was in error before the request was processed.
	StatusWRFlushErr
	// StatusMWBindErr: a memory window operation failed.
	StatusMWBindErr
	// StatusBadRespErr: the peer's answer fits no request.
	StatusBadRespErr
	// StatusLocAccessErr: an inbound operation hit protected local memory.
	StatusLocAccessErr
	// StatusRemInvReqErr: the peer refused the form of the request.
	StatusRemInvReqErr
	// StatusRemAccessErr: the peer refused key, range or right.
	StatusRemAccessErr
	// StatusRemOpErr: the peer could not complete the operation.
	StatusRemOpErr
	// StatusRetryExcErr: the peer does not answer.
	StatusRetryExcErr
	// StatusRNRRetryExcErr: the peer had no receive posted.
	StatusRNRRetryExcErr
	// StatusLocRDDViolErr: of reliable datagrams, obsolete.
	StatusLocRDDViolErr
	// StatusRemInvRDReqErr: of reliable datagrams, obsolete.
	StatusRemInvRDReqErr
	// StatusRemAbortErr: the peer aborted the operation.
	StatusRemAbortErr
	// StatusInvEECNErr: of reliable datagrams, obsolete.
	StatusInvEECNErr
	// StatusInvEECStateErr: of reliable datagrams, obsolete.
	StatusInvEECStateErr
	// StatusFatalErr: the device or the connection failed.
	StatusFatalErr
	// StatusRespTimeoutErr: no answer in time.
	StatusRespTimeoutErr
	// StatusGeneralErr: anything else.
	StatusGeneralErr
	// StatusTMErr: a tag matching error.
	StatusTMErr
	// StatusTMRndvIncomplete: a tag matching rendezvous left to software.
	StatusTMRndvIncomplete
)

var wcStatuses = [...]struct{ name, cause string }{
	StatusSuccess:          {"success", ""},
	StatusLocLenErr:        {"local length error", "the message is longer than the posted buffers or than the port's largest message"},
	StatusLocQPOpErr:       {"local QP operation error", "the request contradicts the queue pair's configuration"},
	StatusLocEECOpErr:      {"local EE context operation error", ""},
	StatusLocProtErr:       {"local protection error", "a gather entry names a wrong or closed lkey, leaves its region, lacks LocalWrite, or belongs to another protection domain"},
	StatusWRFlushErr:       {"Work Request Flushed Error", "the queue pair was already in error; an earlier completion or event has the cause"},
	StatusMWBindErr:        {"memory management operation error", "the window to bind is closed or already bound; its range names no region of the protection domain, or leaves that region; the region lacks MWBind, or lacks LocalWrite for a window that peers may write to; or no window that this connection has bound has the key to invalidate"},
	StatusBadRespErr:       {"bad response error", "the peer answered a request that was not made"},
	StatusLocAccessErr:     {"local access error", "the peer reached for memory of ours that it may not use"},
	StatusRemInvReqErr:     {"remote invalid request error", "the peer does not support the operation, or its receive buffer is too small"},
	StatusRemAccessErr:     {"remote access error", "the rkey is wrong or revoked, the range leaves the region, the access right is missing, or the protection domain differs"},
	StatusRemOpErr:         {"remote operation error", "the peer failed while it processed the request"},
	StatusRetryExcErr:      {"transport retry counter exceeded", "the peer is gone, unreachable, or its address or port changed"},
	StatusRNRRetryExcErr:   {"RNR retry counter exceeded", "the peer posted no receive in time; raise RNRRetry (7 waits for ever) or post receives earlier"},
	StatusLocRDDViolErr:    {"local RDD violation error", ""},
	StatusRemInvRDReqErr:   {"remote invalid RD request", ""},
	StatusRemAbortErr:      {"aborted error", "the peer aborted the operation"},
	StatusInvEECNErr:       {"invalid EE context number", ""},
	StatusInvEECStateErr:   {"invalid EE context state", ""},
	StatusFatalErr:         {"fatal error", "the device or the connection failed"},
	StatusRespTimeoutErr:   {"response timeout error", "the peer did not answer in time"},
	StatusGeneralErr:       {"general error", ""},
	StatusTMErr:            {"TM error", ""},
	StatusTMRndvIncomplete: {"TM software rendezvous", ""},
}

// NumWCStatus is the number of defined statuses, numbered from 0.
const NumWCStatus = len(wcStatuses)

// String returns the text that ibv_wc_status_str gives.
func (s WCStatus) String() string {
	if int(s) >= len(wcStatuses) {
		return "unknown"
	}
	return wcStatuses[s].name
}

// Cause returns the usual reasons for the status in words, or "".
func (s WCStatus) Cause() string {
	if int(s) >= len(wcStatuses) {
		return ""
	}
	return wcStatuses[s].cause
}

// WCOp is the kind of work that a completion reports (enum ibv_wc_opcode).
type WCOp uint32

const (
	// WCSend: a send.
	WCSend WCOp = 0
	// WCWrite: a write, with or without immediate data.
	WCWrite WCOp = 1
	// WCRead: a read.
	WCRead WCOp = 2
	// WCCompareSwap: an atomic compare and swap.
	WCCompareSwap WCOp = 3
	// WCFetchAdd: an atomic fetch and add.
	WCFetchAdd WCOp = 4
	// WCBindMW: the binding of a memory window.
	WCBindMW WCOp = 5
	// WCLocalInv: the revocation of a key.
	WCLocalInv WCOp = 6
	// WCRecv: a received message.
	WCRecv WCOp = 128 // bit 7 marks the receive side
	// WCRecvRDMAImm: a receive consumed by a write with immediate data.
	WCRecvRDMAImm WCOp = 129 // IBV_WC_RECV_RDMA_WITH_IMM
)

// IsRecv reports whether the completion belongs to a receive queue.
func (o WCOp) IsRecv() bool { return o&WCRecv != 0 }

var wcOpNames = map[WCOp]string{
	WCSend: "send", WCWrite: "rdma-write", WCRead: "rdma-read", WCCompareSwap: "atomic-cmp-and-swp",
	WCFetchAdd: "atomic-fetch-and-add", WCBindMW: "bind-mw", WCLocalInv: "local-inv",
	WCRecv: "recv", WCRecvRDMAImm: "recv-rdma-with-imm",
}

// String names the operation.
func (o WCOp) String() string {
	if s, ok := wcOpNames[o]; ok {
		return s
	}
	return "unknown"
}

// WC is a work completion (struct ibv_wc). When Status is not success, only
// ID, Status, QPNum, Vendor and WallclockNS mean anything; libibverbs has the same rule.
type WC struct {
	ID     uint64
	Status WCStatus
	Op     WCOp
	HasImm bool   // Imm is valid
	HasGRH bool   // datagrams: the 40 bytes in front are a global route header; see ParseGRH
	HasInv bool   // InvKey is valid: the peer revoked this key of ours
	SL     uint8  // datagrams: service level
	Imm    uint32 // immediate data as a number (network byte order on the wire)
	Len    uint32 // bytes received or read; of a datagram with the 40 of the global route header's place
	QPNum  uint32
	SrcQP  uint32 // datagrams: the sender's queue pair
	InvKey uint32
	Vendor uint32 // device's own detail of a failure, see the device's documentation

	SLID     uint16 // datagrams: the sender's LID
	PathBits uint8  // datagrams: low bits of the LID that was sent to

	// WallclockNS is the Unix time in nanoseconds at which the device added the completion to its queue (ibv_wc_read_completion_wallclock_ns). It is
	// 0 while [CQ.SetTimestamps] is off. It can go backwards, because the system's clock can be set.
	WallclockNS int64
}

// Err returns nil for success and a [*StatusError] otherwise. It allocates only on failure.
func (wc *WC) Err() error {
	if wc.Status == StatusSuccess {
		return nil
	}
	return &StatusError{ID: wc.ID, Status: wc.Status, QPNum: wc.QPNum, Vendor: wc.Vendor}
}

// StatusError is a completion that reports a failure.
type StatusError struct {
	ID     uint64
	Status WCStatus
	QPNum  uint32
	Vendor uint32
}

// Error gives request, queue pair, status in words and number, and the usual causes.
func (e *StatusError) Error() string {
	s := fmt.Sprintf("work request %d on queue pair %#06x: %s (status %d, vendor %#x)", e.ID, e.QPNum, e.Status, uint32(e.Status), e.Vendor)
	if c := e.Status.Cause(); c != "" {
		s += ": " + c
	}
	return s
}

// Is makes errors.Is(err, StatusXxxErr) work.
func (e *StatusError) Is(target error) bool {
	s, ok := target.(WCStatus)
	return ok && s == e.Status
}

// Error makes a status usable as a target of errors.Is.
func (s WCStatus) Error() string { return s.String() }
