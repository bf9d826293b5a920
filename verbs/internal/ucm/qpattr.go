//go:build linux

package ucm

// QPAttr are the attributes of the next state of a queue pair, from struct ib_uverbs_qp_attr of rdma/ib_user_verbs.h. QPAttr has no
// fields for the attributes that the caller decides: the rights of the peer, the reads under way and the timer for a receiver that is not ready. The mask of
// [ID.QPAttr] says which are set. Numbers are those of the structure's fields.
type QPAttr struct {
	State, CurState, PathMTU            uint32
	QKey, RQPSN, SQPSN, DestQPN         uint32
	AH                                  AHAttr
	PKeyIndex                           uint16
	Port, Timeout, RetryCount, RNRRetry uint8
}

// AHAttr is an address vector, from struct ib_uverbs_ah_attr.
type AHAttr struct {
	DGID                              [16]byte
	FlowLabel                         uint32
	SGIDIndex, HopLimit, TrafficClass uint8
	DLID                              uint16
	SL, SrcPathBits                   uint8
	Global                            bool
	Port                              uint8
}

// roceBits are bits 21 to 24 of a mask, which old kernels set for RoCE (IB_QP_SMAC to IB_QP_ALT_VID of
// rdma/ib_verbs.h) although user space has no such attributes.
const roceBits = 0xf << 21

func parseQPAttr(b []byte) (mask uint32, a QPAttr) {
	u32 := func(off int) uint32 { return order.Uint32(b[off:]) }
	return u32(0) &^ roceBits, QPAttr{
		State: u32(4), CurState: u32(8), PathMTU: u32(12), QKey: u32(20), RQPSN: u32(24), SQPSN: u32(28), DestQPN: u32(32),
		AH: parseAHAttr(b[40:72]), PKeyIndex: order.Uint16(b[124:]), Port: b[133], Timeout: b[134], RetryCount: b[135], RNRRetry: b[136],
	}
}

func parseAHAttr(b []byte) AHAttr {
	return AHAttr{
		DGID: [16]byte(b[:16]), FlowLabel: order.Uint32(b[16:]), SGIDIndex: b[20], HopLimit: b[21], TrafficClass: b[22],
		DLID: order.Uint16(b[24:]), SL: b[26], SrcPathBits: b[27], Global: b[29] != 0, Port: b[30],
	}
}
