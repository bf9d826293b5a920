//go:build linux

package uverbs

import (
	"encoding/binary"
	"sync/atomic"
)

// The constants and structs of this file are those that the kernel's siw driver, software for iWARP, shares with programs (rdma/siw-abi.h).

const (
	siwMaxSGE    = 6                         // SIW_MAX_SGE: entries of a request
	siwMaxInline = (siwMaxSGE - 1) * sgeSize // SIW_MAX_INLINE, bytes: inline data lies in the place of the entries from the second on
)

// Sizes of the structs, bytes.
const (
	siwSQELen  = 120 // siw_sqe
	siwRQELen  = 112 // siw_rqe
	siwCQELen  = 32  // siw_cqe
	siwCtrlLen = 8   // siw_cq_ctrl, which follows the last siw_cqe
)

// enum siw_opcode: those that a program may post, and that of receives.
const (
	siwOpWrite         = 0
	siwOpRead          = 1
	siwOpReadLocalInv  = 2
	siwOpSend          = 3
	siwOpSendImm       = 4
	siwOpSendRemoteInv = 5
	siwOpFetchAdd      = 6
	siwOpCompareSwap   = 7
	siwOpReceive       = 8
)

// enum siw_wqe_flags.
const (
	siwValid     = 1 << 0 // the owner is the reader of the queue
	siwInline    = 1 << 1
	siwSignalled = 1 << 2
	siwSolicited = 1 << 3
	siwReadFence = 1 << 4
)

// enum siw_notify_flags: what a completion queue is armed for.
const (
	siwNotifySolicited = 1 << 0
	siwNotifyNext      = 1 << 1
)

// Operations of completions (enum ibv_wc_opcode of infiniband/verbs.h).
const (
	wcOpcodeSend        = 0
	wcOpcodeWrite       = 1
	wcOpcodeRead        = 2
	wcOpcodeCompareSwap = 3
	wcOpcodeFetchAdd    = 4
	wcOpcodeRecv        = 128
)

// Statuses of completions (enum ibv_wc_status of infiniband/verbs.h).
const (
	wcStatusSuccess      = 0
	wcStatusLocLenErr    = 1
	wcStatusLocQPOpErr   = 2
	wcStatusLocProtErr   = 4
	wcStatusWRFlushErr   = 5
	wcStatusBadRespErr   = 7
	wcStatusLocAccessErr = 8
	wcStatusRemInvReqErr = 9
	wcStatusRemAccessErr = 10
	wcStatusGeneralErr   = 21
)

// siwSQE is struct siw_sqe, an element of a send queue.
type siwSQE struct {
	id    uint64
	head  atomic.Uint32 // flags, num_sge and opcode, see siwHead; stored last
	rkey  uint32        // of RDMA; of a send with invalidate the key to invalidate
	raddr uint64
	sge   [siwMaxSGE]SGE // as struct siw_sge; inline data lie in sge[1:], with their length in sge[0]
}

// siwRQE is struct siw_rqe, an element of a receive queue.
type siwRQE struct {
	id   uint64
	head atomic.Uint32 // as in siwSQE, without opcode
	_    uint32
	sge  [siwMaxSGE]SGE
}

// siwCQE is struct siw_cqe, an element of a completion queue.
type siwCQE struct {
	id    uint64
	head  atomic.Uint32 // flags, opcode and status, see siwResult
	bytes uint32
	_     uint64 // immediate data
	qp    uint64 // its number
}

// siwHead makes the word of an element that holds its flags (16 bits), its number of
// entries and its opcode (8 bits each), in the order of their bytes in memory.
func siwHead(flags uint16, entries, opcode uint8) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint16(b[:], flags)
	b[2], b[3] = entries, opcode
	return binary.NativeEndian.Uint32(b[:])
}

// siwFlags is the inverse of siwHead for the flags.
func siwFlags(head uint32) uint16 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], head)
	return binary.NativeEndian.Uint16(b[:])
}

// siwResult splits the word of a completion that holds its flags and its opcode (8
// bits each) and its status (16 bits), in the order of their bytes in memory.
func siwResult(head uint32) (flags, opcode uint8, status uint16) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], head)
	return b[0], b[1], binary.NativeEndian.Uint16(b[2:])
}
