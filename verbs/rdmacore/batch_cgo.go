//go:build rdma && linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"syscall"

	"cinnabar/verbs"
)

var _ [batchSize]struct{} = [C.CN_BATCH]struct{}{}

// sendBatch collects send requests for one crossing. It holds no pointers.
type sendBatch struct {
	n, sges int
	err     C.int
	wr      [batchSize]C.struct_cn_send
	sge     [batchSGE]C.struct_cn_sge
}

// add takes wr under the token id, to be sent to h if it is a datagram; false
// means that the batch is full. The request has been checked.
func (b *sendBatch) add(wr *verbs.SendWR, id uint64, h ahHandle) bool {
	if b.n == batchSize || b.sges+len(wr.SGL) > batchSGE {
		return false
	}
	first := b.sges
	b.sges = addSGL(&b.sge, first, wr.SGL)
	b.wr[b.n] = C.struct_cn_send{
		id: C.uint64_t(id), remote: C.uint64_t(wr.Remote.Addr), compare: C.uint64_t(wr.CompareAdd), swap: C.uint64_t(wr.Swap),
		ah: C.uint64_t(h), qpn: C.uint32_t(wr.RemoteQPN), qkey: C.uint32_t(wr.RemoteQKey),
		op: C.uint32_t(wr.Op), flags: C.uint32_t(wr.Flags), imm: C.uint32_t(wr.Imm), rkey: C.uint32_t(wr.Remote.RKey),
		sge: C.uint32_t(first), n: C.uint32_t(b.sges - first),
	}
	if wr.Op == verbs.OpSendInvalidate || wr.Op == verbs.OpLocalInv {
		b.wr[b.n].imm = C.uint32_t(wr.InvKey)
	}
	b.n++
	return true
}

func (r *rawBind) send() C.struct_cn_send {
	return C.struct_cn_send{
		id: C.uint64_t(r.token), op: C.uint32_t(verbs.OpBindMW), flags: C.uint32_t(r.flags),
		bind: C.struct_cn_bind{mw: C.uint64_t(r.mw), mr: C.uint64_t(r.mr), addr: C.uint64_t(r.rng.Addr), len: C.uint64_t(r.rng.Length),
			access: C.uint32_t(r.access), rkey: C.uint32_t(r.rkey)},
	}
}

// bind posts a request that binds a window of type 2. The batch must be empty.
func (b *sendBatch) bind(qp qpHandle, r *rawBind) error {
	b.wr[0] = r.send()
	b.n = 1
	_, err := b.post(qp)
	return err
}

// bindType1 posts a request for a window of type 1, for which libibverbs has a function of its own, and sets r.rkey to the key that it has chosen.
func bindType1(qp qpHandle, r *rawBind) error {
	var key C.uint32_t
	wr := r.send()
	err := result(C.cn_bind_mw1(C.uint64_t(qp), &wr, &key))
	r.rkey = uint32(key)
	return err
}

// post hands the batch to the library, empties it, and returns how many were accepted.
func (b *sendBatch) post(qp qpHandle) (int, error) {
	if b.n == 0 {
		return 0, nil
	}
	n := int(C.cn_post_send(C.uint64_t(qp), &b.wr[0], C.int(b.n), &b.sge[0], &b.err))
	b.n, b.sges = 0, 0
	return n, postErr(b.err)
}

// recvBatch collects receives for one crossing.
type recvBatch struct {
	n, sges int
	err     C.int
	wr      [batchSize]C.struct_cn_recv
	sge     [batchSGE]C.struct_cn_sge
}

// add takes wr under the token id; false means that the batch is full. With
// someEntry a request has one entry at least, of nothing: some drivers insist.
func (b *recvBatch) add(wr *verbs.RecvWR, id uint64, someEntry bool) bool {
	if b.n == batchSize || b.sges+max(len(wr.SGL), 1) > batchSGE {
		return false
	}
	first := b.sges
	if b.sges = addSGL(&b.sge, first, wr.SGL); someEntry && b.sges == first {
		b.sge[first] = C.struct_cn_sge{}
		b.sges++
	}
	b.wr[b.n] = C.struct_cn_recv{id: C.uint64_t(id), sge: C.uint32_t(first), n: C.uint32_t(b.sges - first)}
	b.n++
	return true
}

// post hands the batch to a queue pair.
func (b *recvBatch) post(qp qpHandle) (int, error) { return b.postTo(C.uint64_t(qp), false) }

// postShared hands the batch to a shared receive queue.
func (b *recvBatch) postShared(srq srqHandle) (int, error) { return b.postTo(C.uint64_t(srq), true) }

func (b *recvBatch) postTo(q C.uint64_t, shared bool) (int, error) {
	if b.n == 0 {
		return 0, nil
	}
	n := int(C.cn_post_recv(q, flag(shared), &b.wr[0], C.int(b.n), &b.sge[0], &b.err))
	b.n, b.sges = 0, 0
	return n, postErr(b.err)
}

// addSGL appends the entries of a list. Those of no bytes are left out: for some
// devices they mean 2 GiB, and siw's transmitter never gets past one.
func addSGL(to *[batchSGE]C.struct_cn_sge, at int, sgl []verbs.SGE) int {
	for _, s := range sgl {
		if s.Length == 0 {
			continue
		}
		to[at] = C.struct_cn_sge{addr: C.uint64_t(s.Addr), length: C.uint32_t(s.Length), lkey: C.uint32_t(s.LKey)}
		at++
	}
	return at
}

func postErr(errno C.int) error {
	if errno == 0 {
		return nil
	}
	return syscall.Errno(errno)
}

// pollBatch receives completions of one crossing.
type pollBatch struct {
	wc [batchSize]C.struct_cn_wc
}

// poll takes at most n completions off the queue.
func (b *pollBatch) poll(cq cqHandle, n int) (int, error) {
	got := C.cn_poll_cq(C.uint64_t(cq), &b.wc[0], C.int(min(n, batchSize)))
	return int(max(got, 0)), result(got)
}

// token is the id that the i-th completion's request was posted under.
func (b *pollBatch) token(i int) uint64 { return uint64(b.wc[i].id) }

// at converts the i-th completion. Its ID is the token.
func (b *pollBatch) at(i int) verbs.WC {
	r := &b.wc[i]
	return rawWC{
		ID: uint64(r.id), Status: uint32(r.status), Op: uint32(r.op), Flags: uint32(r.flags), Imm: uint32(r.imm), Len: uint32(r.len), QPN: uint32(r.qpn),
		SrcQP: uint32(r.src_qp), Vendor: uint32(r.vendor), SLID: uint16(r.slid), SL: uint8(r.sl), PathBits: uint8(r.path_bits),
	}.wc()
}
