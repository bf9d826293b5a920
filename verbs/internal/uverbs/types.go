//go:build linux

package uverbs

// SGE is an entry of a gather or scatter list, as struct ibv_sge.
type SGE struct {
	Addr         uint64
	Length, LKey uint32
}

// RecvWR is a receive request into sges[First:First+Num].
type RecvWR struct {
	ID         uint64
	First, Num int
}

// SendWR is a send request from (or, reads and atomics, into) sges[First:First+Num].
type SendWR struct {
	ID        uint64
	Op, Flags uint32 // IBV_WR_*, IBV_SEND_*
	Imm       uint32 // host byte order; for SEND_WITH_INV and LOCAL_INV the key
	RKey      uint32
	Remote    uint64
	// CompareAdd and Swap are the operands of atomics.
	CompareAdd, Swap uint64
	// AH, QPN and QKey are the destination of a datagram.
	AH         *AH
	QPN, QKey  uint32
	First, Num int
	Bind       *Bind // of BIND_MW
}

// Bind tells what a window is bound to. Len 0 binds it to nothing, and MR may then be nil.
type Bind struct {
	MW        *MW
	MR        *MR
	Addr, Len uint64
	Access    uint32
	RKey      uint32 // the new key of a type 2 window
}

// WC is a completion, as struct ibv_wc.
type WC struct {
	ID                uint64
	Status, Op, Flags uint32 // IBV_WC_*
	Imm               uint32 // host byte order, or the invalidated key
	Len, QPN, SrcQP   uint32
	Vendor            uint32
	SLID              uint16
	SL, PathBits      uint8
}

// DeviceAttr has what struct ibv_device_attr tells; GUIDs are in host byte order.
type DeviceAttr struct {
	Firmware                                  string
	NodeGUID, SysGUID, MaxMRSize, PageSizeCap uint64
	CapFlags                                  uint64
	Vendor, Part, HW                          uint32
	MaxQP, MaxQPWR, MaxSGE, MaxSGERd          int
	MaxCQ, MaxCQE, MaxMR, MaxPD               int
	MaxRdAtomic, MaxInitRdAtomic              int
	MaxSRQ, MaxSRQWR, MaxSRQSGE, MaxAH, MaxMW int
	AtomicCap                                 int // IBV_ATOMIC_*
	Ports                                     int
}

// PortAttr has what struct ibv_port_attr tells.
type PortAttr struct {
	State, MaxMTU, ActiveMTU, MaxMsg, GIDs, LID, SMLID, LinkLayer uint32
}

// Path is the way to a peer, as struct ibv_ah_attr.
type Path struct {
	DGID                          [16]byte
	FlowLabel                     uint32
	DLID                          uint16
	SL, PathBits, Port, SGIDIndex uint8
	TrafficClass, HopLimit        uint8
	Global                        bool
}

// QPAttr are attributes of a queue pair; Mask (IBV_QP_*) tells which ones count.
type QPAttr struct {
	Path                                   Path
	Mask, State, CurState, Access          uint32
	QKey, RQPSN, SQPSN, DestQPN, PathMTU   uint32
	PKeyIndex                              uint16
	Port, Timeout, Retry, RNRRetry, MinRNR uint8
	RdAtomic, DestRdAtomic, SQDNotify      uint8
}

// QPCap are the sizes of a queue pair: requests, entries of a request, bytes of inline data.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
}

// QPInit tells what queue pair to create. The receive sizes are ignored with a SRQ.
type QPInit struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // or nil
	ID             uint64
	Type           uint32 // IBV_QPT_*
	SignalAll      bool   // every send request makes a completion

	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
}

// Numbers of rdma/ib_user_verbs.h (enum ib_uverbs_wr_opcode) and infiniband/verbs.h.
const (
	opWrite = iota
	opWriteImm
	opSend
	opSendImm
	opRead
	opCompareSwap
	opFetchAdd
	opLocalInv
	opBindMW
	opSendInv
	opTSO
	opReadInv
)

const ( // IBV_SEND_*
	sendFence = 1 << iota
	sendSignaled
	sendSolicited
	sendInline
)

const ( // IBV_WC_*
	wcGRH     = 1 << 0
	wcWithImm = 1 << 1
	wcWithInv = 1 << 3
)

const ( // IBV_QPT_*
	qptRC = 2
	qptUC = 3
	qptUD = 4
)

const ( // IBV_QPS_*
	qpsReset = iota
	qpsInit
	qpsRTR
	qpsRTS
	qpsSQD
	qpsSQE
	qpsErr
)

const ( // IBV_QP_*, the mask of attributes
	attrState = 1 << iota
	attrCurState
	attrSQDNotify
	attrAccess
	attrPKeyIndex
	attrPort
	attrQKey
	attrAV
	attrPathMTU
	attrTimeout
	attrRetry
	attrRNRRetry
	attrRQPSN
	attrRdAtomic
	attrAltPath
	attrMinRNR
	attrSQPSN
	attrDestRdAtomic
	attrPathMigState
	attrCap
	attrDestQPN
)

const ( // IBV_ACCESS_*
	accessZeroBased     = 1 << 5
	accessOptionalRange = (1<<30 - 1) &^ (1<<20 - 1)
)
