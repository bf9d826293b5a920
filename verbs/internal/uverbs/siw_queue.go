//go:build linux

package uverbs

import (
	"errors"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// The queues that siw and a program share are rings of elements, each with a flag that
// names its owner, the kernel or the program. There are no shared indices: each side counts for itself. The
// kernel's contents decide only what a completion says and whether a place is free,
// never which address is accessed.

// siwRing views the n elements at the start of mem, which is aligned to 8 bytes and
// which the ring keeps alive if it is memory of Go. It fails with EPROTO for a number
// that the kernel does not give (it is a power of two) or that mem has no room for.
func siwRing[T any](mem []byte, n uint32) ([]T, error) {
	ring, ok := view[T](mem, n)
	if !ok || n == 0 || n&(n-1) != 0 {
		return nil, syscall.EPROTO
	}
	return ring, nil
}

// siwCQ is a completion queue. Its methods must not be called concurrently.
type siwCQ struct {
	ring []siwCQE
	get  uint32         // the next element to look at, modulo the size
	ctrl *atomic.Uint32 // siw_cq_ctrl.flags
	mem  []byte         // the mapping
}

// newSiwCQ makes a queue of the elements at the start of mem and the siw_cq_ctrl behind them.
func newSiwCQ(ring []siwCQE, mem []byte) *siwCQ {
	return &siwCQ{ring: ring, ctrl: word(mem, len(ring)*siwCQELen), mem: mem}
}

// siwWCOps gives the operation of a completion by its opcode (enum siw_opcode).
var siwWCOps = [...]uint32{
	siwOpWrite: wcOpcodeWrite, siwOpRead: wcOpcodeRead, siwOpReadLocalInv: wcOpcodeRead, siwOpSend: wcOpcodeSend, siwOpSendImm: wcOpcodeSend,
	siwOpSendRemoteInv: wcOpcodeSend, siwOpFetchAdd: wcOpcodeFetchAdd, siwOpCompareSwap: wcOpcodeCompareSwap, siwOpReceive: wcOpcodeRecv,
}

// siwWCStatus gives the status of a completion by the driver's (enum siw_wc_status).
var siwWCStatus = [...]uint32{
	wcStatusSuccess, wcStatusLocLenErr, wcStatusLocProtErr, wcStatusLocQPOpErr, wcStatusWRFlushErr, wcStatusBadRespErr,
	wcStatusLocAccessErr, wcStatusRemAccessErr, wcStatusRemInvReqErr, wcStatusGeneralErr,
}

// poll takes completions off the queue, as many as there are and out has room for. An
// opcode or a status that siw does not have makes a general error of a completion.
func (q *siwCQ) poll(out []WC) (int, error) {
	for i := range out {
		e := &q.ring[q.get&uint32(len(q.ring)-1)]
		flags, op, status := siwResult(e.head.Load())
		if flags&siwValid == 0 {
			return i, nil
		}
		wc := WC{ID: e.id, Status: wcStatusGeneralErr, Len: e.bytes, QPN: uint32(e.qp)}
		if int(op) < len(siwWCOps) && int(status) < len(siwWCStatus) {
			wc.Op, wc.Status = siwWCOps[op], siwWCStatus[status]
		}
		out[i] = wc
		e.head.Store(0) // the element is the kernel's again, which looks at its flags alone
		q.get++
	}
	return len(out), nil
}

// arm makes the next completion ring, or with solicited the next one that the sender
// asked to (siw_cq_notify_now). It makes no system call, and tells nothing of
// completions that are in the queue already: the caller polls afterwards.
func (q *siwCQ) arm(solicited bool) error {
	flags := uint32(siwNotifySolicited | siwNotifyNext)
	if solicited {
		flags = siwNotifySolicited
	}
	q.ctrl.Store(flags)
	return nil
}

// resized is not called, because sizes has none for the command.
func (q *siwCQ) resized([]byte) error { return syscall.EOPNOTSUPP }

func (q *siwCQ) close() error { return unix.Munmap(q.mem) }

// siwSQ is a send queue. Its methods must not be called concurrently.
type siwSQ struct {
	ring      []siwSQE
	put       uint32 // the next element to fill, modulo the size
	signalAll bool
	bell      func(payload uint64) error // the doorbell: makes the kernel look at the queue; payload in bytes. ENOTCONN: it does not look in this state
	mem       []byte                     // the mapping
}

// postSend puts requests into the queue and rings the doorbell. It returns the number of
// requests taken and the error of the next one: ENOMEM if the queue is full, EINVAL if
// siw has no such request, or the kernel's, ENOTCONN for a queue pair that is not connected. See [QP.PostSend] for errors with all requests taken.
func (q *siwSQ) postSend(wrs []SendWR, sges []SGE) (int, error) {
	var (
		err     error
		payload uint64
		mask    = uint32(len(q.ring) - 1)
		put     = q.put
	)
	for i := range wrs {
		e := &q.ring[put&mask]
		if siwFlags(e.head.Load())&siwValid != 0 {
			err = syscall.ENOMEM
			break
		}
		var n uint64
		if n, err = q.fill(e, &wrs[i], sges); err != nil {
			break
		}
		payload += n
		put++
	}
	// An element before ours that the kernel has not taken yet means that it is at work on the queue, and will find ours (siw_qp_sq_process). If the
	// queue was filled whole, that element is one of ours.
	before := &q.ring[(q.put-1)&mask]
	if idle := put-q.put > mask || siwFlags(before.head.Load())&siwValid == 0; idle && put != q.put {
		if bellErr := q.bell(payload); bellErr != nil {
			err = bellErr
			if errors.Is(bellErr, syscall.EINVAL) || errors.Is(bellErr, syscall.ENOTCONN) {
				if put = q.withdraw(put); int(put-q.put) == len(wrs) {
					err = nil
				}
			}
		}
	}
	taken := int(put - q.put)
	q.put = put
	return taken, err
}

// withdraw takes back, from the last one on, the elements before put that this post has
// filled and the kernel has not taken, because it refused to look at them: it would do
// so for ever at a request that it refuses, and would send the others at some later
// post. After other errors than the two of the caller the kernel may be at work on the elements, so they stay.
// It returns the position behind the last one that the kernel has taken.
func (q *siwSQ) withdraw(put uint32) uint32 {
	for ; put != q.put; put-- {
		e := &q.ring[(put-1)&uint32(len(q.ring)-1)]
		head := e.head.Load()
		if siwFlags(head)&siwValid == 0 || !e.head.CompareAndSwap(head, 0) {
			break
		}
	}
	return put
}

// fill writes a request to an element and hands it to the kernel. It returns the
// number of bytes that the request sends. It fails with EINVAL for what siw does not
// have, and for what siw_activate_tx_from_sq refuses, because that would block the queue.
func (q *siwSQ) fill(e *siwSQE, wr *SendWR, sges []SGE) (uint64, error) {
	var op uint8
	rkey, inline := wr.RKey, wr.Flags&sendInline != 0
	switch wr.Op {
	case opWrite:
		op = siwOpWrite
	case opSend:
		op = siwOpSend
	case opSendInv:
		op, rkey = siwOpSendRemoteInv, wr.Imm
	case opRead:
		op = siwOpRead
	default:
		return 0, syscall.EINVAL
	}
	limit := siwMaxSGE
	switch {
	case inline && op != siwOpWrite && op != siwOpSend:
		return 0, syscall.EINVAL
	case inline:
		limit = len(sges)
	case op == siwOpRead:
		limit = 1
	}
	list, ok := entries(sges, wr.First, wr.Num, limit)
	if !ok {
		return 0, syscall.EINVAL
	}
	payload, n := totalLength(list), uint8(1)
	switch {
	case inline && payload > siwMaxInline:
		return 0, syscall.EINVAL
	case inline:
		gatherInline(sgeBytes(e.sge[1:]), list)
		e.sge[0] = SGE{Length: uint32(payload)} // the kernel fills in the address
	case op == siwOpRead:
		e.sge[0] = SGE{} // the kernel takes one always
		copy(e.sge[:], list)
		payload = 0 // the request is short
	default:
		n = e.gather(list)
	}
	e.id, e.rkey, e.raddr = wr.ID, rkey, wr.Remote
	e.head.Store(siwHead(q.flags(wr.Flags, op), n, op))
	return payload, nil
}

// flags translates the flags of a request (IBV_SEND_*). The fence of a read is left
// out: the kernel refuses it, and the peer answers reads in their order anyway.
func (q *siwSQ) flags(flags uint32, op uint8) uint16 {
	f := uint16(siwValid)
	if q.signalAll || flags&sendSignaled != 0 {
		f |= siwSignalled
	}
	if flags&sendSolicited != 0 {
		f |= siwSolicited
	}
	if flags&sendInline != 0 {
		f |= siwInline
	}
	if flags&sendFence != 0 && op != siwOpRead {
		f |= siwReadFence
	}
	return f
}

// gather sets the entries of a send or a write and returns their number. It leaves
// empty ones out, because the kernel never gets past one between others (siw_tx_hdt).
func (e *siwSQE) gather(list []SGE) (n uint8) {
	for _, s := range list {
		if s.Length > 0 {
			e.sge[n] = s
			n++
		}
	}
	return n
}

// siwRQ is a receive queue, of a queue pair or shared. Its methods must not be called
// concurrently.
type siwRQ struct {
	ring []siwRQE
	put  uint32 // the next element to fill, modulo the size
	mem  []byte // the mapping; nil if the queue has no elements
}

// postRecv puts receives into the queue, which the kernel takes when messages come. It
// returns the number taken and the error of the next one: ENOMEM if the queue is full,
// EINVAL for a list that is too long or if there is no queue.
func (q *siwRQ) postRecv(wrs []RecvWR, sges []SGE) (int, error) {
	if len(q.ring) == 0 {
		return 0, syscall.EINVAL
	}
	for i := range wrs {
		wr := &wrs[i]
		e := &q.ring[q.put&uint32(len(q.ring)-1)]
		if siwFlags(e.head.Load())&siwValid != 0 {
			return i, syscall.ENOMEM
		}
		list, ok := entries(sges, wr.First, wr.Num, siwMaxSGE)
		if !ok {
			return i, syscall.EINVAL
		}
		copy(e.sge[:], list)
		e.id = wr.ID
		e.head.Store(siwHead(siwValid, uint8(wr.Num), 0))
		q.put++
	}
	return len(wrs), nil
}

func (q *siwRQ) close() error {
	if q.mem == nil {
		return nil
	}
	return unix.Munmap(q.mem)
}
