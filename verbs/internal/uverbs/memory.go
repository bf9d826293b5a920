//go:build linux

package uverbs

import "syscall"

// PD is a protection domain.
type PD struct {
	ctx    *Context
	handle uint32
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	r := newRequest(cmdAllocPD, 4) // struct ib_uverbs_alloc_pd_resp
	if err := r.send(c.fd); err != nil {
		return nil, err
	}
	return &PD{ctx: c, handle: r.respU32(0)}, nil
}

// Close ends the domain. It fails with EBUSY while objects of it are open.
func (p *PD) Close() error { return newRequest(cmdDeallocPD, 0).u32(p.handle).destroy(p.ctx.fd) }

// MR is a registered region of memory.
type MR struct {
	ctx        *Context
	handle     uint32
	pd         *PD
	LKey, RKey uint32
}

// RegMR registers size bytes at addr, which peers address from iova on. The caller
// keeps the memory mapped until Close. Optional rights (IBV_ACCESS_OPTIONAL_RANGE) are
// left out where the kernel does not know that they are optional.
func (p *PD) RegMR(addr, iova, size uint64, access uint32) (*MR, error) {
	const respSize = 12 // struct ib_uverbs_reg_mr_resp
	if p.ctx.coreSupport&coreOptionalAccess == 0 {
		access &^= accessOptionalRange
	}
	r := newRequest(cmdRegMR, respSize+p.ctx.prov.sizes().mr).u64(addr, size, iova).u32(p.handle, access)
	if err := r.raw(p.ctx.prov.mrRequest()...).send(p.ctx.fd); err != nil {
		return nil, err
	}
	return &MR{ctx: p.ctx, pd: p, handle: r.respU32(0), LKey: r.respU32(4), RKey: r.respU32(8)}, nil
}

// Rereg fails with EOPNOTSUPP, as it does by the C library: siw and rxe of Linux 6.1 do not change regions.
func (m *MR) Rereg(flags int, pd *PD, addr, size uint64, access uint32) (lost bool, err error) {
	return false, syscall.EOPNOTSUPP
}

// Close ends the registration. It fails with EBUSY (or EINVAL, rxe) while windows are bound to it.
func (m *MR) Close() error { return newRequest(cmdDeregMR, 0).u32(m.handle).destroy(m.ctx.fd) }

// MW is a memory window.
type MW struct {
	ctx    *Context
	handle uint32
	typ    uint32
	pd     *PD
	RKey   uint32 // posts of binds change it
}

const mwType1 = 1 // IBV_MW_TYPE_1

// AllocMW makes a window of type 1 or 2 that is bound to nothing.
func (p *PD) AllocMW(typ uint32) (*MW, error) {
	if typ > 255 {
		return nil, syscall.EINVAL
	}
	r := newRequest(cmdAllocMW, 8).u32(p.handle).raw(byte(typ), 0, 0, 0) // struct ib_uverbs_alloc_mw_resp
	if err := r.send(p.ctx.fd); err != nil {
		return nil, err
	}
	return &MW{ctx: p.ctx, pd: p, handle: r.respU32(0), typ: typ, RKey: r.respU32(4)}, nil
}

// Close ends the window.
func (m *MW) Close() error { return newRequest(cmdDeallocMW, 0).u32(m.handle).destroy(m.ctx.fd) }
