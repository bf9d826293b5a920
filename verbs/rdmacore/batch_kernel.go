//go:build linux && !(rdma && cgo)

package rdmacore

import (
	"cinnabar/verbs"
	"cinnabar/verbs/internal/uverbs"
)

// sendBatch collects send requests for one doorbell.
type sendBatch struct {
	n, sges int
	wr      [batchSize]uverbs.SendWR
	sge     [batchSGE]uverbs.SGE
}

// add takes wr under the token id, to be sent to h if it is a datagram; false
// means that the batch is full. The request has been checked.
func (b *sendBatch) add(wr *verbs.SendWR, id uint64, h ahHandle) bool {
	if b.n == batchSize || b.sges+len(wr.SGL) > batchSGE {
		return false
	}
	first := b.sges
	b.sges = addSGL(&b.sge, first, wr.SGL)
	b.wr[b.n] = uverbs.SendWR{
		ID: id, Remote: wr.Remote.Addr, RKey: wr.Remote.RKey, CompareAdd: wr.CompareAdd, Swap: wr.Swap, AH: h, QPN: wr.RemoteQPN, QKey: wr.RemoteQKey,
		Op: uint32(wr.Op), Flags: uint32(wr.Flags), Imm: wr.Imm, First: first, Num: b.sges - first,
	}
	if wr.Op == verbs.OpSendInvalidate || wr.Op == verbs.OpLocalInv {
		b.wr[b.n].Imm = wr.InvKey
	}
	b.n++
	return true
}

func (r *rawBind) send() uverbs.SendWR {
	return uverbs.SendWR{
		ID: r.token, Op: uint32(verbs.OpBindMW), Flags: uint32(r.flags),
		Bind: &uverbs.Bind{MW: r.mw, MR: r.mr, Addr: r.rng.Addr, Len: uint64(r.rng.Length), Access: uint32(r.access), RKey: r.rkey},
	}
}

// bind posts a request that binds a window of type 2. The batch must be empty.
func (b *sendBatch) bind(qp qpHandle, r *rawBind) error {
	b.wr[0] = r.send()
	b.n = 1
	_, err := b.post(qp)
	return err
}

// bindType1 posts a request for a window of type 1, and sets r.rkey to the key that package uverbs has chosen.
func bindType1(qp qpHandle, r *rawBind) (err error) {
	wr := r.send()
	r.rkey, err = qp.BindMW1(&wr)
	return err
}

// post hands the batch to the device, empties it, and returns how many were accepted.
func (b *sendBatch) post(qp qpHandle) (int, error) {
	if b.n == 0 {
		return 0, nil
	}
	n, err := qp.PostSend(b.wr[:b.n], b.sge[:b.sges])
	clear(b.wr[:b.n]) // because they point to address handles and windows
	b.n, b.sges = 0, 0
	return n, err
}

// recvBatch collects receives.
type recvBatch struct {
	n, sges int
	wr      [batchSize]uverbs.RecvWR
	sge     [batchSGE]uverbs.SGE
}

// add takes wr under the token id; false means that the batch is full. With
// someEntry a request has at least one entry, of length 0.
func (b *recvBatch) add(wr *verbs.RecvWR, id uint64, someEntry bool) bool {
	if b.n == batchSize || b.sges+max(len(wr.SGL), 1) > batchSGE {
		return false
	}
	first := b.sges
	if b.sges = addSGL(&b.sge, first, wr.SGL); someEntry && b.sges == first {
		b.sge[first] = uverbs.SGE{}
		b.sges++
	}
	b.wr[b.n] = uverbs.RecvWR{ID: id, First: first, Num: b.sges - first}
	b.n++
	return true
}

// post hands the batch to a queue pair.
func (b *recvBatch) post(qp qpHandle) (int, error) {
	n, err := qp.PostRecv(b.wr[:b.n], b.sge[:b.sges])
	b.n, b.sges = 0, 0
	return n, err
}

// postShared hands the batch to a shared receive queue.
func (b *recvBatch) postShared(srq srqHandle) (int, error) {
	n, err := srq.PostRecv(b.wr[:b.n], b.sge[:b.sges])
	b.n, b.sges = 0, 0
	return n, err
}

// addSGL appends the entries of a list. Those of no bytes are left out: for some
// devices they mean 2 GiB, and siw's transmitter never gets past one.
func addSGL(to *[batchSGE]uverbs.SGE, at int, sgl []verbs.SGE) int {
	for _, s := range sgl {
		if s.Length != 0 {
			to[at] = uverbs.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey}
			at++
		}
	}
	return at
}

// pollBatch receives completions.
type pollBatch struct {
	wc [batchSize]uverbs.WC
}

// poll takes at most n completions off the queue.
func (b *pollBatch) poll(cq cqHandle, n int) (int, error) { return cq.Poll(b.wc[:min(n, batchSize)]) }

// token is the id that the i-th completion's request was posted under.
func (b *pollBatch) token(i int) uint64 { return b.wc[i].ID }

// at converts the i-th completion. Its ID is the token.
func (b *pollBatch) at(i int) verbs.WC { return rawWC(b.wc[i]).wc() }
