//go:build linux

package uverbs

import (
	"errors"
	"math"
	"sync/atomic"
	"syscall"
)

// QP is a queue pair.
type QP struct {
	ctx       *Context
	handle    uint32
	typ       uint32 // IBV_QPT_*
	signalAll bool
	srq       *SRQ // or nil
	ring      qpRing
	// The state (IBV_QPS_*) that Modify has set last. The kernel may have set ERR since.
	state atomic.Uint32

	Num uint32
	Cap QPCap // granted
}

// CreateQP makes a queue pair. It is in RESET.
func (p *PD) CreateQP(init QPInit) (*QP, error) {
	const respSize = 32 // struct ib_uverbs_create_qp_resp
	r, err := createQPRequest(p, &init, respSize)
	if err != nil {
		return nil, err
	}
	if err := r.send(p.ctx.fd); err != nil {
		return nil, err
	}
	q := &QP{ctx: p.ctx, handle: r.respU32(0), Num: r.respU32(4), typ: init.Type, signalAll: init.SignalAll, srq: init.SRQ}
	q.Cap = QPCap{
		MaxSendWR: int(r.respU32(8)), MaxRecvWR: int(r.respU32(12)),
		MaxSendSGE: int(r.respU32(16)), MaxRecvSGE: int(r.respU32(20)), MaxInline: int(r.respU32(24)),
	}
	if q.ring, err = p.ctx.prov.openQP(q, r.resp[respSize:]); err != nil {
		return nil, errors.Join(err, q.destroy())
	}
	return q, nil
}

func createQPRequest(p *PD, init *QPInit, respSize int) (*request, error) {
	for _, n := range []int{init.MaxSendWR, init.MaxRecvWR, init.MaxSendSGE, init.MaxRecvSGE, init.MaxInline} {
		if n < 0 || n > math.MaxInt32 {
			return nil, syscall.EINVAL
		}
	}
	if init.SendCQ == nil || init.RecvCQ == nil || init.Type > 255 {
		return nil, syscall.EINVAL
	}
	var srq uint32
	if init.SRQ != nil {
		srq = init.SRQ.handle
	}
	r := newRequest(cmdCreateQP, respSize+p.ctx.prov.sizes().qp).u64(init.ID)
	r.u32(p.handle, init.SendCQ.handle, init.RecvCQ.handle, srq)
	r.u32(uint32(init.MaxSendWR), uint32(init.MaxRecvWR), uint32(init.MaxSendSGE), uint32(init.MaxRecvSGE), uint32(init.MaxInline))
	return r.raw(boolByte(init.SignalAll), byte(init.Type), boolByte(init.SRQ != nil), 0), nil
}

func (q *QP) destroy() error {
	return newRequest(cmdDestroyQP, 4+4).u32(q.handle, 0).destroy(q.ctx.fd) // struct ib_uverbs_destroy_qp_resp
}

// Modify sets the attributes that a.Mask names.
func (q *QP) Modify(a *QPAttr) error {
	if err := modifyRequest(q.handle, a).send(q.ctx.fd); err != nil {
		return err
	}
	if a.Mask&attrState != 0 {
		q.state.Store(a.State)
	}
	return nil
}

// modifyRequest builds struct ib_uverbs_modify_qp. The kernel looks only at what the mask names.
func modifyRequest(handle uint32, a *QPAttr) *request {
	r := newRequest(cmdModifyQP, 0).qpDest(&a.Path).qpDest(&Path{})
	r.u32(handle, a.Mask, a.QKey, a.RQPSN, a.SQPSN, a.DestQPN, a.Access).u16(a.PKeyIndex, 0)
	r.raw(byte(a.State), byte(a.CurState), byte(a.PathMTU), 0, a.SQDNotify, a.RdAtomic, a.DestRdAtomic, a.MinRNR)
	return r.raw(a.Port, a.Timeout, a.Retry, a.RNRRetry, 0, 0, 0, 0)
}

// queryMask names what queue pairs of a type have to tell.
func queryMask(typ uint32) uint32 {
	mask := uint32(attrState | attrPort | attrSQPSN)
	if typ == qptUD {
		return mask | attrQKey
	}
	mask |= attrAccess | attrAV | attrPathMTU | attrRQPSN | attrDestQPN
	if typ == qptUC {
		return mask
	}
	return mask | attrTimeout | attrRetry | attrRNRRetry | attrRdAtomic | attrDestRdAtomic | attrMinRNR
}

// Query returns the attributes. Mask names those that queue pairs of the type have.
func (q *QP) Query() (QPAttr, error) {
	const size = 128 // struct ib_uverbs_query_qp_resp
	mask := queryMask(q.typ)
	r := newRequest(cmdQueryQP, size).u32(q.handle, mask)
	if err := r.send(q.ctx.fd); err != nil {
		return QPAttr{}, err
	}
	a := parseQPAttr(r.resp)
	a.Mask = mask
	return a, nil
}

func parseQPAttr(b []byte) QPAttr {
	return QPAttr{
		Path: parseDest(b), QKey: native.Uint32(b[84:]), RQPSN: native.Uint32(b[88:]), SQPSN: native.Uint32(b[92:]),
		DestQPN: native.Uint32(b[96:]), Access: native.Uint32(b[100:]), PKeyIndex: native.Uint16(b[104:]),
		State: uint32(b[108]), CurState: uint32(b[109]), PathMTU: uint32(b[110]),
		RdAtomic: b[113], DestRdAtomic: b[114], MinRNR: b[115], Port: b[116], Timeout: b[117], Retry: b[118], RNRRetry: b[119],
	}
}

// PostSend posts send requests, and returns the number of those that are in the queue now. ENOMEM says that the queue has no room for the next
// request, and EINVAL that the next request is bad or the state allows none. Any other error is that of the doorbell: the kernel has not
// started the requests, but may start them later, so the caller moves the queue pair to ERR. EACCES is such an error: see [Context].
func (q *QP) PostSend(wrs []SendWR, sges []SGE) (int, error) { return q.ring.postSend(wrs, sges) }

// PostRecv posts receive requests as PostSend posts send requests.
func (q *QP) PostRecv(wrs []RecvWR, sges []SGE) (int, error) { return q.ring.postRecv(wrs, sges) }

// BindMW1 binds the type 1 window of wr.Bind and returns its new key. It fails with EINVAL
// for windows of type 2, and with EPERM if window and region are of different domains.
func (q *QP) BindMW1(wr *SendWR) (uint32, error) {
	b := wr.Bind
	if b.MW.typ != mwType1 || b.MR == nil && (b.Addr != 0 || b.Len != 0) || b.Access&accessZeroBased != 0 {
		return 0, syscall.EINVAL
	}
	if b.MR != nil && b.MR.pd != b.MW.pd {
		return 0, syscall.EPERM
	}
	bind := *b
	bind.RKey = nextKey(b.MW.RKey)
	post := SendWR{ID: wr.ID, Op: opBindMW, Flags: wr.Flags, Bind: &bind}
	if _, err := q.ring.postSend([]SendWR{post}, nil); err != nil {
		return 0, err
	}
	return bind.MW.RKey, nil
}

// nextKey changes the byte of a key that programs choose, as ibv_inc_rkey does.
func nextKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// Close ends the queue pair. After an error it is as before.
func (q *QP) Close() error {
	if err := q.destroy(); err != nil {
		return err
	}
	return q.ring.close()
}
