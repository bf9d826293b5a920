//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

func init() { providers = append(providers, rxe{}) }

// rxe is the provider of software RoCE, drivers/infiniband/sw/rxe. Layouts are those of
// rdma/rdma_user_rxe.h.
type rxe struct{}

func (rxe) driverID() uint32 { return 14 } // RDMA_DRIVER_RXE

// sizes: struct rxe_create_cq_resp, rxe_resize_cq_resp, rxe_create_srq_resp, rxe_create_qp_resp, rxe_create_ah_resp.
func (rxe) sizes() respSizes {
	return respSizes{cq: 16, resizeCQ: 16, srq: 24, qp: 32, ah: 8}
}

func (rxe) firmware(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

func (rxe) mrRequest() []byte { return nil }

// rxeCQ is a completion queue, whose elements begin with struct ib_uverbs_wc.
type rxeCQ struct {
	fd    int
	queue rxeQueue
	bell  doorbell
}

const wcSize = 48 // struct ib_uverbs_wc

func (rxe) openCQ(q *CQ, resp []byte) (cqRing, error) {
	r := &rxeCQ{fd: q.ctx.fd}
	r.bell.initNotify(q.ctx.fd, q.handle)
	if err := r.open(resp); err != nil {
		return nil, err
	}
	return r, nil
}

// open maps the queue, of which own is the consumer's end.
func (r *rxeCQ) open(info []byte) (err error) {
	if r.queue, err = mapRxeQueue(r.fd, info, wcSize); r.queue.mem != nil {
		r.queue.own = r.queue.consumer.Load() & r.queue.mask
	}
	return err
}

func (r *rxeCQ) resized(resp []byte) error {
	return errors.Join(r.queue.unmap(), r.open(resp))
}

func (r *rxeCQ) close() error             { return r.queue.unmap() }
func (r *rxeCQ) arm(solicited bool) error { return r.bell.notify(solicited) }

func (r *rxeCQ) poll(out []WC) (int, error) {
	q := &r.queue
	if q.mem == nil {
		return 0, syscall.EIO
	}
	end := q.producer.Load() & q.mask
	n := 0
	for ; n < len(out) && q.own != end; n++ {
		readWC(&out[n], q.slot(q.own))
		q.advance()
	}
	if n > 0 {
		q.consumer.Store(q.own)
	}
	return n, nil
}

// kernelWithInv is IB_WC_WITH_INVALIDATE, a flag of the kernel that rxe shows to programs.
const kernelWithInv = 1 << 2

// readWC reads struct ib_uverbs_wc. It changes the flag of an invalidation from the
// kernel's number to that of programs, IBV_WC_WITH_INV, as do_complete of rxe should:
// that number means something else to programs, which rxe never says.
func readWC(w *WC, b []byte) {
	_ = b[wcSize-1]
	w.ID = native.Uint64(b[0:])
	w.Status = native.Uint32(b[8:])
	w.Op = native.Uint32(b[12:])
	w.Vendor = native.Uint32(b[16:])
	w.Len = native.Uint32(b[20:])
	w.QPN = native.Uint32(b[28:])
	w.SrcQP = native.Uint32(b[32:])
	w.Flags = native.Uint32(b[36:])
	w.SLID = native.Uint16(b[42:])
	w.SL, w.PathBits = b[44], b[45]
	if w.Flags&kernelWithInv != 0 {
		w.Flags = w.Flags&^kernelWithInv | wcWithInv
	}
	if w.Flags&wcWithInv != 0 {
		w.Imm = native.Uint32(b[24:])
	} else {
		w.Imm = binary.BigEndian.Uint32(b[24:])
	}
}
