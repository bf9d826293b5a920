//go:build linux

package uverbs

import (
	"errors"
	"math"
	"syscall"
)

// SRQ is a shared receive queue.
type SRQ struct {
	ctx    *Context
	handle uint32
	maxSGE int // granted
	ring   srqRing
}

// CreateSRQ makes a queue of at least wr requests of sge entries each. Asynchronous
// events about it carry id.
func (p *PD) CreateSRQ(id uint64, wr, sge int) (*SRQ, error) {
	const respSize = 16 // struct ib_uverbs_create_srq_resp
	if wr < 0 || wr > math.MaxInt32 || sge < 0 || sge > math.MaxInt32 {
		return nil, syscall.EINVAL
	}
	prov := p.ctx.prov
	r := newRequest(cmdCreateSRQ, respSize+prov.sizes().srq).u64(id).u32(p.handle, uint32(wr), uint32(sge), 0)
	if err := r.send(p.ctx.fd); err != nil {
		return nil, err
	}
	s := &SRQ{ctx: p.ctx, handle: r.respU32(0), maxSGE: int(r.respU32(8))}
	var err error
	if s.ring, err = prov.openSRQ(s, r.resp[respSize:]); err != nil {
		return nil, errors.Join(err, s.destroy())
	}
	return s, nil
}

func (s *SRQ) destroy() error {
	return newRequest(cmdDestroySRQ, 4+4).u32(s.handle, 0).destroy(s.ctx.fd) // struct ib_uverbs_destroy_srq_resp
}

const srqLimit = 2 // IBV_SRQ_LIMIT

// SetLimit asks for one asynchronous event once fewer than limit requests are in the queue.
func (s *SRQ) SetLimit(limit int) error {
	if limit < 0 || limit > math.MaxInt32 {
		return syscall.EINVAL
	}
	return modifySRQRequest(s.handle, limit).send(s.ctx.fd)
}

// modifySRQRequest builds struct ib_uverbs_modify_srq, with 8 bytes more, because rxe
// requires them (struct rxe_modify_srq_cmd). rxe uses them only to change the size.
func modifySRQRequest(handle uint32, limit int) *request {
	return newRequest(cmdModifySRQ, 0).u32(handle, srqLimit, 0, uint32(limit)).u64(0)
}

// PostRecv posts receive requests. It returns how many were taken; an error is about the
// next one: ENOMEM if the queue is full, EINVAL for too many entries.
func (s *SRQ) PostRecv(wrs []RecvWR, sges []SGE) (int, error) { return s.ring.postRecv(wrs, sges) }

// Close ends the queue. It fails with EBUSY while queue pairs use it.
func (s *SRQ) Close() error {
	if err := s.destroy(); err != nil {
		return err
	}
	return s.ring.close()
}
