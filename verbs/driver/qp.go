package driver

// QPType is the transport service of a queue pair (enum ibv_qp_type).
type QPType uint32

const (
	RC        QPType = 2 // reliable connection
	UC        QPType = 3 // unreliable connection
	UD        QPType = 4 // unreliable datagram
	RawPacket QPType = 8
	XRCSend   QPType = 9
	XRCRecv   QPType = 10
)

// String names the type as rdma-core's tools do.
func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case RawPacket:
		return "RAW_PACKET"
	case XRCSend:
		return "XRC_SEND"
	case XRCRecv:
		return "XRC_RECV"
	}
	return "unknown"
}

// DefaultQKey is the key of a UD queue pair that was given none. It is the one
// that rdma-core's own example programs have.
const DefaultQKey = 0x11111111

// QPState is the state of a queue pair (enum ibv_qp_state).
type QPState uint32

const (
	StateReset QPState = iota
	StateInit          // receives may be posted
	StateRTR           // ready to receive
	StateRTS           // ready to send
	StateSQD           // send queue draining
	StateSQE           // send queue error (unreliable types)
	StateErr           // everything posted is flushed
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String names the state.
func (s QPState) String() string { return nameOf(qpStateNames[:], int(s)) }

// QPAttrMask says which fields of a [QPAttr] count (enum ibv_qp_attr_mask).
type QPAttrMask uint32

const (
	AttrState            QPAttrMask = 1 << 0
	AttrCurState         QPAttrMask = 1 << 1
	AttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	AttrAccess           QPAttrMask = 1 << 3
	AttrPKeyIndex        QPAttrMask = 1 << 4
	AttrPort             QPAttrMask = 1 << 5
	AttrQKey             QPAttrMask = 1 << 6
	AttrAV               QPAttrMask = 1 << 7
	AttrPathMTU          QPAttrMask = 1 << 8
	AttrTimeout          QPAttrMask = 1 << 9
	AttrRetryCount       QPAttrMask = 1 << 10
	AttrRNRRetry         QPAttrMask = 1 << 11
	AttrRQPSN            QPAttrMask = 1 << 12
	AttrMaxRDAtomic      QPAttrMask = 1 << 13
	AttrMinRNRTimer      QPAttrMask = 1 << 15
	AttrSQPSN            QPAttrMask = 1 << 16
	AttrMaxDestRDAtomic  QPAttrMask = 1 << 17
	AttrCap              QPAttrMask = 1 << 19
	AttrDestQPN          QPAttrMask = 1 << 20
)

// QPAttr are the attributes of a queue pair (struct ibv_qp_attr). Modify
// reads the fields that Mask names; Query fills all that the device knows and
// sets Mask to them.
type QPAttr struct {
	Mask            QPAttrMask
	State           QPState
	CurState        QPState
	Access          Access // what peers may do through this queue pair at all
	PKeyIndex       uint16
	Port            uint8
	QKey            uint32 // datagrams with another one are dropped; with bit 31 it takes CAP_NET_RAW
	AH              AHAttr // the way to the peer (AttrAV)
	PathMTU         MTU
	Timeout         uint8 // local ACK timeout, 4.096 µs × 2^Timeout
	RetryCount      uint8 // 0..7
	RNRRetry        uint8 // 0..7; 7 is for ever
	MinRNRTimer     uint8 // 0..31, the code of ibv_modify_qp(3); see RNRDelay
	MaxRDAtomic     uint8 // outstanding reads and atomics as initiator (ORD)
	MaxDestRDAtomic uint8 // and as target (IRD)
	RQPSN, SQPSN    uint32
	DestQPN         uint32
	Cap             QPCap // Query only
}

// QPCap are the limits of a queue pair (struct ibv_qp_cap).
type QPCap struct {
	MaxSendWR  int // depth of the send queue
	MaxRecvWR  int // depth of the receive queue
	MaxSendSGE int // gather entries of one send work request
	MaxRecvSGE int
	MaxInline  int // bytes of an Inline request
}

// QPInit is what a queue pair is created from (struct ibv_qp_init_attr).
type QPInit struct {
	Type      QPType
	SendCQ    CQ
	RecvCQ    CQ
	SRQ       SRQ // nil: a receive queue of its own
	Cap       QPCap
	SignalAll bool // sq_sig_all: every send work request makes a completion
	Context   any  // returned in asynchronous events
}

// SRQInit is what a shared receive queue is created from (struct ibv_srq_init_attr).
type SRQInit struct {
	MaxWR   int // depth
	MaxSGE  int // scatter entries of one request
	Limit   int // raise EventSRQLimitReached once when fewer are posted; 0: never
	Context any
}

// SRQAttr is the changeable part of a shared receive queue (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR int
	Limit int
}
