package verbs

import (
	"math/bits"
	"strings"
	"time"
)

// QPType is the transport service of a queue pair (enum ibv_qp_type).
type QPType uint32

const (
	// RC is the reliable connection.
	RC QPType = 2
	// UC is the unreliable connection.
	UC QPType = 3
	// UD are unreliable datagrams.
	UD QPType = 4
	// RawPacket sends frames as they are.
	RawPacket QPType = 8
	// XRCSend is the initiating half of an extended reliable connection.
	XRCSend QPType = 9
	// XRCRecv is its target half.
	XRCRecv QPType = 10
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
	// StateReset is the state after creation.
	StateReset QPState = iota
	// StateInit accepts receives.
	StateInit
	// StateRTR receives messages.
	StateRTR
	// StateRTS sends and receives.
	StateRTS
	// StateSQD drains the send queue.
	StateSQD
	// StateSQE is a failed send queue of an unreliable type.
	StateSQE
	// StateErr flushes everything posted.
	StateErr
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String names the state.
func (s QPState) String() string { return nameOf(qpStateNames[:], int(s)) }

// QPAttrMask says which fields of a [QPAttr] count (enum ibv_qp_attr_mask).
type QPAttrMask uint32

const (
	// AttrState selects QPAttr.State.
	AttrState QPAttrMask = 1 << 0
	// AttrCurState selects QPAttr.CurState.
	AttrCurState QPAttrMask = 1 << 1
	// AttrEnSQDAsyncNotify asks for EventSQDrained.
	AttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	// AttrAccess selects QPAttr.Access.
	AttrAccess QPAttrMask = 1 << 3
	// AttrPKeyIndex selects QPAttr.PKeyIndex.
	AttrPKeyIndex QPAttrMask = 1 << 4
	// AttrPort selects QPAttr.Port.
	AttrPort QPAttrMask = 1 << 5
	// AttrQKey selects QPAttr.QKey.
	AttrQKey QPAttrMask = 1 << 6
	// AttrAV selects QPAttr.AH.
	AttrAV QPAttrMask = 1 << 7
	// AttrPathMTU selects QPAttr.PathMTU.
	AttrPathMTU QPAttrMask = 1 << 8
	// AttrTimeout selects QPAttr.Timeout.
	AttrTimeout QPAttrMask = 1 << 9
	// AttrRetryCount selects QPAttr.RetryCount.
	AttrRetryCount QPAttrMask = 1 << 10
	// AttrRNRRetry selects QPAttr.RNRRetry.
	AttrRNRRetry QPAttrMask = 1 << 11
	// AttrRQPSN selects QPAttr.RQPSN.
	AttrRQPSN QPAttrMask = 1 << 12
	// AttrMaxRDAtomic selects QPAttr.MaxRDAtomic.
	AttrMaxRDAtomic QPAttrMask = 1 << 13
	// AttrMinRNRTimer selects QPAttr.MinRNRTimer.
	AttrMinRNRTimer QPAttrMask = 1 << 15
	// AttrSQPSN selects QPAttr.SQPSN.
	AttrSQPSN QPAttrMask = 1 << 16
	// AttrMaxDestRDAtomic selects QPAttr.MaxDestRDAtomic.
	AttrMaxDestRDAtomic QPAttrMask = 1 << 17
	// AttrCap selects QPAttr.Cap.
	AttrCap QPAttrMask = 1 << 19
	// AttrDestQPN selects QPAttr.DestQPN.
	AttrDestQPN QPAttrMask = 1 << 20
)

// qpAttrNames are the names of the bits of QPAttrMask, by bit number.
var qpAttrNames = [...]string{
	0: "AttrState", 1: "AttrCurState", 2: "AttrEnSQDAsyncNotify", 3: "AttrAccess", 4: "AttrPKeyIndex",
	5: "AttrPort", 6: "AttrQKey", 7: "AttrAV", 8: "AttrPathMTU", 9: "AttrTimeout", 10: "AttrRetryCount",
	11: "AttrRNRRetry", 12: "AttrRQPSN", 13: "AttrMaxRDAtomic", 15: "AttrMinRNRTimer", 16: "AttrSQPSN",
	17: "AttrMaxDestRDAtomic", 19: "AttrCap", 20: "AttrDestQPN",
}

// String lists the names of the bits, "none" if there are none.
func (m QPAttrMask) String() string {
	if m == 0 {
		return "none"
	}
	var s []string
	for rest := uint32(m); rest != 0; rest &= rest - 1 {
		s = append(s, nameOf(qpAttrNames[:], bits.TrailingZeros32(rest)))
	}
	return strings.Join(s, "|")
}

// QPAttr are the attributes of a queue pair (struct ibv_qp_attr). Modify
// reads the fields that Mask names; Query fills all that the device knows and
// sets Mask to them.
type QPAttr struct {
	Mask            QPAttrMask
	State           QPState
	CurState        QPState
	Access          Access // rights of the peer through this queue pair; the region must permit the access too
	PKeyIndex       uint16
	Port            uint8
	QKey            uint32 // datagrams with another one are dropped; a key with bit 31 requires CAP_NET_RAW
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

// SRQAttr is the changeable part of a shared receive queue (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR int
	Limit int
}

// rnrTimers are the delays of the 5-bit RNR timer code, in units of 10 µs
// (InfiniBand table "Encoding for RNR NAK timer field", as printed in ibv_modify_qp(3)).
var rnrTimers = [32]int32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay returns the time that a MinRNRTimer code stands for, 10 µs to
// 655.36 ms. Bits above the fifth are ignored.
func RNRDelay(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}
