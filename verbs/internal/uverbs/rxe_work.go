//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"syscall"
)

// Where struct rxe_send_wqe has its fields. The first 144 bytes are struct rxe_send_wr.
const (
	rxeOpcodeAt = 12
	rxeFlagsAt  = 16
	rxeImmAt    = 20
	rxeUnionAt  = 24
	rxeUDAVAt   = 56
	rxeIovaAt   = 152
	rxeDMAAt    = 184
	rxeSendSize = 208 // what precedes entries or inline data
)

// Where struct rxe_recv_wqe has its fields.
const (
	rxeRecvDMAAt = 16
	rxeRecvSize  = 40
)

// maxMessage is the longest message of the InfiniBand architecture. Ports have limits of
// their own, which callers know from QueryPort.
const maxMessage = 1 << 31

// putRxeDMA writes struct rxe_dma_info but for what follows it.
func putRxeDMA(b []byte, length, num uint32) {
	native.PutUint32(b[0:], length)
	native.PutUint32(b[4:], length) // resid
	native.PutUint32(b[8:], 0)      // cur_sge
	native.PutUint32(b[12:], num)
	native.PutUint64(b[16:], 0) // sge_offset
}

// rxeRQ is a receive queue.
type rxeRQ struct {
	queue  rxeQueue
	maxSGE int
}

func mapRxeRQ(fd int, info []byte, maxSGE int) (rxeRQ, error) {
	q, err := mapRxeQueue(fd, info, rxeRecvSize+maxSGE*sgeSize)
	return rxeRQ{queue: q, maxSGE: maxSGE}, err
}

func (r *rxeRQ) postRecv(wrs []RecvWR, sges []SGE) (int, error) {
	if r.queue.mem == nil {
		return 0, syscall.EINVAL // it has none, because it takes from a shared one
	}
	n := 0
	var err error
	for ; n < len(wrs); n++ {
		if r.queue.full() {
			err = syscall.ENOMEM
			break
		}
		list, ok := entries(sges, wrs[n].First, wrs[n].Num, r.maxSGE)
		if !ok {
			err = syscall.EINVAL
			break
		}
		putRxeRecv(r.queue.slot(r.queue.own), wrs[n].ID, list)
		r.queue.advance()
	}
	if n > 0 {
		r.queue.publish()
	}
	return n, err
}

// putRxeRecv writes struct rxe_recv_wqe.
func putRxeRecv(b []byte, id uint64, list []SGE) {
	native.PutUint64(b[0:], id)
	putRxeDMA(b[rxeRecvDMAAt:], uint32(totalLength(list)), uint32(len(list)))
	if len(list) > 0 {
		copy(b[rxeRecvSize:], sgeBytes(list))
	}
}

func (r *rxeRQ) close() error { return r.queue.unmap() }

func (rxe) openSRQ(s *SRQ, resp []byte) (srqRing, error) {
	r, err := mapRxeRQ(s.ctx.fd, resp, s.maxSGE)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// rxeQP is the pair of work queues.
type rxeQP struct {
	qp   *QP
	sq   rxeQueue
	rq   rxeRQ
	bell doorbell
}

// openQP: the response is struct rxe_create_qp_resp; that of the receive queue comes first.
func (rxe) openQP(q *QP, resp []byte) (qpRing, error) {
	r := &rxeQP{qp: q}
	r.bell.initSend(q.ctx.fd, q.handle)
	var err error
	r.sq, err = mapRxeQueue(q.ctx.fd, resp[16:], rxeSendSize+max(q.Cap.MaxSendSGE*sgeSize, q.Cap.MaxInline))
	if err != nil {
		return nil, err
	}
	if q.srq == nil {
		if r.rq, err = mapRxeRQ(q.ctx.fd, resp, q.Cap.MaxRecvSGE); err != nil {
			return nil, errors.Join(err, r.sq.unmap())
		}
	}
	return r, nil
}

func (r *rxeQP) close() error { return errors.Join(r.sq.unmap(), r.rq.close()) }

func (r *rxeQP) postRecv(wrs []RecvWR, sges []SGE) (int, error) {
	if r.qp.state.Load() == qpsReset {
		return 0, syscall.EINVAL
	}
	return r.rq.postRecv(wrs, sges)
}

// postSend rings the doorbell when the queue is full, too, because what was posted
// before the kernel could send it only moves on with a doorbell. If the doorbell fails, the
// requests stay in the queue unless the kernel cannot have looked at them, because its
// requester may have read the producer's index already and would run through the whole ring
// if that went back.
func (r *rxeQP) postSend(wrs []SendWR, sges []SGE) (int, error) {
	if r.sq.mem == nil {
		return 0, syscall.EINVAL
	}
	n, start := 0, r.sq.own
	var payload uint64
	if !r.sq.empty() {
		payload = longPayload
	}
	var err error
	for ; n < len(wrs) && err == nil; n++ {
		var length uint64
		if length, err = r.putSend(&wrs[n], sges); err != nil {
			break
		}
		payload += length
		r.sq.advance()
	}
	if n == 0 && !errors.Is(err, syscall.ENOMEM) {
		return 0, err
	}
	r.sq.publish()
	if bell := r.bell.ring(payload); bell != nil {
		if r.qp.state.Load() < qpsRTS {
			r.sq.withdraw(start)
			return 0, bell
		}
		err = bell
	}
	for i := range wrs[:n] {
		if b := wrs[i].Bind; b != nil {
			b.MW.RKey = b.RKey
		}
	}
	return n, err
}

// putSend writes a request at the end of the queue. length is the number of bytes that the
// kernel moves while it starts the request.
func (r *rxeQP) putSend(wr *SendWR, sges []SGE) (length uint64, err error) {
	list, ok := entries(sges, wr.First, wr.Num, r.qp.Cap.MaxSendSGE)
	if !ok {
		return 0, syscall.EINVAL
	}
	length = totalLength(list)
	if !r.valid(wr, length) {
		return 0, syscall.EINVAL
	}
	if r.sq.full() {
		return 0, syscall.ENOMEM
	}
	b := r.sq.slot(r.sq.own)
	putRxeSend(b, wr, r.qp.typ)
	putRxeDMA(b[rxeDMAAt:], uint32(length), uint32(len(list)))
	if len(list) > 0 {
		if wr.Flags&sendInline != 0 {
			gatherInline(b[rxeSendSize:], list)
		} else {
			copy(b[rxeSendSize:], sgeBytes(list))
		}
	}
	if wr.Op == opRead {
		length = 0 // the bytes come later
	}
	return length, nil
}

// valid checks what validate_send_wr of the C library's provider checks, and what would
// otherwise lead the kernel astray: opcodes that it has no table entry for, datagrams
// without an address, inline data where entries tell where bytes go to.
func (r *rxeQP) valid(wr *SendWR, length uint64) bool {
	inline := wr.Flags&sendInline != 0
	if length > maxMessage || inline && length > uint64(r.qp.Cap.MaxInline) {
		return false
	}
	switch wr.Op {
	case opSend, opSendImm:
		return r.qp.typ != qptUD || wr.AH != nil
	case opWrite, opWriteImm, opSendInv, opLocalInv:
		return r.qp.typ != qptUD
	case opRead:
		return r.qp.typ != qptUD && !inline
	case opCompareSwap, opFetchAdd:
		return r.qp.typ != qptUD && !inline && length >= 8 && wr.Remote%8 == 0
	case opBindMW:
		return r.qp.typ != qptUD && wr.Bind != nil && wr.Num == 0 && wr.Imm == 0
	}
	return false
}

// putRxeSend writes struct rxe_send_wqe but for struct rxe_dma_info.
func putRxeSend(b []byte, wr *SendWR, typ uint32) {
	clear(b[:rxeDMAAt])
	native.PutUint64(b[0:], wr.ID)
	native.PutUint32(b[rxeOpcodeAt:], wr.Op)
	native.PutUint32(b[rxeFlagsAt:], wr.Flags)
	if wr.Op == opSendInv || wr.Op == opLocalInv {
		native.PutUint32(b[rxeImmAt:], wr.Imm)
	} else {
		binary.BigEndian.PutUint32(b[rxeImmAt:], wr.Imm)
	}
	u := b[rxeUnionAt:]
	switch {
	case typ == qptUD:
		native.PutUint32(u[0:], wr.QPN)
		native.PutUint32(u[4:], wr.QKey)
		native.PutUint32(u[12:], wr.AH.num)
		copy(b[rxeUDAVAt:], wr.AH.av)
	case wr.Op == opBindMW:
		putRxeBind(u, wr.Bind)
	case wr.Op == opCompareSwap || wr.Op == opFetchAdd:
		native.PutUint64(u[0:], wr.Remote)
		native.PutUint64(u[8:], wr.CompareAdd)
		native.PutUint64(u[16:], wr.Swap)
		native.PutUint32(u[24:], wr.RKey)
		native.PutUint64(b[rxeIovaAt:], wr.Remote)
	default:
		native.PutUint64(u[0:], wr.Remote)
		native.PutUint32(u[8:], wr.RKey)
		native.PutUint64(b[rxeIovaAt:], wr.Remote)
	}
}

// putRxeBind writes wr.mw of struct rxe_send_wr.
func putRxeBind(u []byte, bind *Bind) {
	native.PutUint64(u[0:], bind.Addr)
	native.PutUint64(u[8:], bind.Len)
	if bind.MR != nil {
		native.PutUint32(u[16:], bind.MR.LKey)
	}
	native.PutUint32(u[20:], bind.MW.RKey)
	native.PutUint32(u[24:], bind.RKey)
	native.PutUint32(u[28:], bind.Access)
}
