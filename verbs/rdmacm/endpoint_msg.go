package rdmacm

import (
	"context"

	"cinnabar/verbs"
)

// RegMsgs registers a buffer for messages (rdma_reg_msgs). The caller closes the
// region before the endpoint.
func (ep *Endpoint) RegMsgs(buf []byte) (*verbs.MR, error) { return ep.pd.RegMR(buf, verbs.LocalWrite) }

// RegRead registers a buffer that the peer may read (rdma_reg_read).
func (ep *Endpoint) RegRead(buf []byte) (*verbs.MR, error) {
	return ep.pd.RegMR(buf, verbs.LocalWrite|verbs.RemoteRead)
}

// RegWrite registers a buffer that the peer may write (rdma_reg_write).
func (ep *Endpoint) RegWrite(buf []byte) (*verbs.MR, error) {
	return ep.pd.RegMR(buf, verbs.LocalWrite|verbs.RemoteWrite)
}

// PostSend sends the n bytes of mr from off on (rdma_post_send). The completion
// comes to [Endpoint.SendComp]. Like [verbs.MR.SGE] it panics for a range outside mr.
func (ep *Endpoint) PostSend(id uint64, mr *verbs.MR, off, n int, flags verbs.SendFlags) error {
	return ep.post(verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: flags}, mr, off, n)
}

// PostWrite writes the n bytes of mr from off on to the peer's memory
// (rdma_post_write).
func (ep *Endpoint) PostWrite(id uint64, mr *verbs.MR, off, n int, flags verbs.SendFlags, to verbs.RemoteAddr) error {
	return ep.post(verbs.SendWR{ID: id, Op: verbs.OpWrite, Flags: flags, Remote: to}, mr, off, n)
}

// PostRead reads n bytes of the peer's memory to mr from off on (rdma_post_read).
func (ep *Endpoint) PostRead(id uint64, mr *verbs.MR, off, n int, flags verbs.SendFlags, from verbs.RemoteAddr) error {
	return ep.post(verbs.SendWR{ID: id, Op: verbs.OpRead, Flags: flags, Remote: from}, mr, off, n)
}

// post posts one signaled request.
func (ep *Endpoint) post(wr verbs.SendWR, mr *verbs.MR, off, n int) error {
	wr.Flags |= verbs.Signaled
	if n > 0 {
		wr.SGL = []verbs.SGE{mr.SGE(off, n)}
	}
	_, err := ep.qp.PostSend([]verbs.SendWR{wr})
	return err
}

// PostRecv posts a receive into the n bytes of mr from off on (rdma_post_recv).
func (ep *Endpoint) PostRecv(id uint64, mr *verbs.MR, off, n int) error {
	wr := verbs.RecvWR{ID: id}
	if n > 0 {
		wr.SGL = []verbs.SGE{mr.SGE(off, n)}
	}
	_, err := ep.qp.PostRecv([]verbs.RecvWR{wr})
	return err
}

// SendComp waits for the oldest completion of the send queue
// (rdma_get_send_comp). The error is that of waiting or of the completion; in
// the latter case the completion is returned too.
func (ep *Endpoint) SendComp(ctx context.Context) (verbs.WC, error) {
	return comp(ctx, ep.sendCQ)
}

// RecvComp waits for the oldest completion of the receive queue
// (rdma_get_recv_comp), as SendComp does.
func (ep *Endpoint) RecvComp(ctx context.Context) (verbs.WC, error) {
	return comp(ctx, ep.recvCQ)
}

func comp(ctx context.Context, cq *verbs.CQ) (verbs.WC, error) {
	wc := make([]verbs.WC, 1)
	if _, err := cq.Wait(ctx, wc); err != nil {
		return verbs.WC{}, err
	}
	return wc[0], wc[0].Err()
}
