//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

func init() { providers = append(providers, new(siw)) }

// siw is the provider of software iWARP, drivers/infiniband/sw/siw. Layouts are those of
// rdma/siw-abi.h. It has reliable connections alone, no windows, no address handles and
// no atomics, and completion queues keep their size.
type siw struct {
	key atomic.Uint32 // of the last registration
}

func (*siw) driverID() uint32 { return 18 } // RDMA_DRIVER_SIW

// sizes: struct siw_uresp_alloc_ctx, siw_uresp_reg_mr, siw_uresp_create_cq, siw_uresp_create_srq, siw_uresp_create_qp.
func (*siw) sizes() respSizes { return respSizes{context: 8, mr: 8, cq: 16, srq: 16, qp: 32} }

func (*siw) firmware(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

// mrRequest is struct siw_ureq_reg_mr, with the part of the key (8 bits) that programs
// choose. Each registration gets another one, so that the key of a closed region does
// not open the next region in its place.
func (s *siw) mrRequest() []byte { return []byte{byte(s.key.Add(1)), 0, 0, 0, 0, 0, 0, 0} }

// mapSiw maps n elements of a queue and extra bytes behind them; key is an offset for
// mmap that the kernel gave.
func mapSiw[T any](c *Context, key uint64, n uint32, extra int) ([]T, []byte, error) {
	size := uint64(n)*sizeOf[T]() + uint64(extra)
	if n == 0 || size > 1<<31-1 {
		return nil, nil, syscall.EPROTO
	}
	mem, err := unix.Mmap(c.fd, int64(key), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	ring, err := siwRing[T](mem, n)
	if err != nil {
		return nil, nil, errors.Join(err, unix.Munmap(mem))
	}
	return ring, mem, nil
}

func (*siw) openCQ(cq *CQ, resp []byte) (cqRing, error) {
	n, key := native.Uint32(resp[4:]), native.Uint64(resp[8:])
	ring, mem, err := mapSiw[siwCQE](cq.ctx, key, n, siwCtrlLen)
	if err != nil {
		return nil, err
	}
	cq.depth = len(ring)
	return newSiwCQ(ring, mem), nil
}

func (*siw) openSRQ(srq *SRQ, resp []byte) (srqRing, error) {
	n, key := native.Uint32(resp[0:]), native.Uint64(resp[8:])
	ring, mem, err := mapSiw[siwRQE](srq.ctx, key, n, 0)
	if err != nil {
		return nil, err
	}
	return &siwRQ{ring: ring, mem: mem}, nil
}

// openQP maps the send queue, and the receive queue if the pair has one of its own: the
// kernel gives a size and a key for one even if the pair has none (siw_create_qp).
func (*siw) openQP(qp *QP, resp []byte) (qpRing, error) {
	sends, recvs := native.Uint32(resp[4:]), native.Uint32(resp[8:])
	sendKey, recvKey := native.Uint64(resp[16:]), native.Uint64(resp[24:])
	q := &siwQP{qp: qp}
	var err error
	if q.sq.ring, q.sq.mem, err = mapSiw[siwSQE](qp.ctx, sendKey, sends, 0); err != nil {
		return nil, err
	}
	if qp.srq == nil && recvs > 0 {
		if q.rq.ring, q.rq.mem, err = mapSiw[siwRQE](qp.ctx, recvKey, recvs, 0); err != nil {
			return nil, errors.Join(err, unix.Munmap(q.sq.mem))
		}
	}
	q.bell.initSend(qp.ctx.fd, qp.handle)
	q.sq.signalAll, q.sq.bell = qp.signalAll, q.ring
	return q, nil
}

// openAH is not called, because the kernel has refused the command.
func (*siw) openAH(*AH, []byte) error { return syscall.EOPNOTSUPP }

// siwQP is the queues of a queue pair. rq has no elements if the pair has no receive
// queue of its own.
type siwQP struct {
	qp   *QP
	sq   siwSQ
	rq   siwRQ
	bell doorbell
}

func (q *siwQP) postSend(wrs []SendWR, sges []SGE) (int, error) { return q.sq.postSend(wrs, sges) }
func (q *siwQP) postRecv(wrs []RecvWR, sges []SGE) (int, error) { return q.rq.postRecv(wrs, sges) }
func (q *siwQP) close() error                                   { return errors.Join(unix.Munmap(q.sq.mem), q.rq.close()) }

// ring rings the doorbell of the send queue. The kernel also answers ENOTCONN if it cannot lock a connected queue pair at the moment (siw_post_send).
// ring fails with EBUSY then, because postSend withdraws requests after ENOTCONN and must not do so while the kernel works on them.
func (q *siwQP) ring(payload uint64) error {
	err := q.bell.ring(payload)
	if errors.Is(err, syscall.ENOTCONN) {
		if a, qerr := q.qp.Query(); qerr == nil && a.State == qpsRTS {
			return syscall.EBUSY
		}
	}
	return err
}
