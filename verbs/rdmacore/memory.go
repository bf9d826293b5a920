//go:build linux

package rdmacore

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"cinnabar/verbs"
)

// pd is a protection domain.
type pd struct {
	dev      *device
	h        pdHandle
	children atomic.Int64 // regions, queue pairs, shared receive queues, address handles, windows; pdClosed
	windows  atomic.Int64

	mu sync.Mutex
	// the open regions by lkey
	// +checklocks:mu
	regions map[uint32]*mr
}

// pdClosed is the number of children of a domain that is closed.
const pdClosed = -1

// adopt counts one more child, unless the domain is closed.
func (p *pd) adopt() bool {
	for {
		n := p.children.Load()
		if n == pdClosed {
			return false
		}
		if p.children.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	const op = "allocate protection domain"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	h, err := allocPD(d.ctx)
	if err != nil {
		return nil, &verbs.Error{Op: op, Err: err}
	}
	d.pds.Add(1)
	return &pd{dev: d, h: h, regions: make(map[uint32]*mr)}, nil
}

func (p *pd) Close() error {
	const op = "close protection domain"
	if !p.children.CompareAndSwap(0, pdClosed) {
		n := p.children.Load()
		if n == pdClosed {
			return nil
		}
		return verbs.Errorf(op, verbs.ErrBusy, "%d objects of it are open; close them first", n)
	}
	if err := p.dev.released(deallocPD(p.h)); err != nil {
		p.children.Store(0)
		return &verbs.Error{Op: op, Err: err}
	}
	p.dev.pds.Add(-1)
	return nil
}

// supportedAccess are the rights that regions know, besides those that may be ignored.
const supportedAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic |
	verbs.RemoteInvalidate | verbs.OptionalAccess

// mr is a registered region.
type mr struct {
	pd         *pd
	h          mrHandle
	init       verbs.MRInit
	access     verbs.Access // as given to the library, see rights
	lkey, rkey uint32
	closed     atomic.Bool
}

func (p *pd) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	const op = "register memory"
	if err := p.dev.usable(op); err != nil {
		return nil, err
	}
	if r.HasIOVA && p.dev.attr.VendorID == vendorSiw {
		return nil, verbs.Unsupported(op, "the driver of %s ignores addresses of the program; use RegMR", p.dev.name)
	}
	if !r.HasIOVA {
		r.IOVA = r.Addr
	}
	access, err := p.rights(op, access)
	if err != nil {
		return nil, err
	}
	h, lkey, rkey, err := regMR(p.h, r.Addr, r.IOVA, uint64(len(r.Bytes)), access)
	if err != nil {
		return nil, registerError(op, len(r.Bytes), access, err)
	}
	p.children.Add(1)
	m := &mr{pd: p, h: h, init: r, access: access, lkey: lkey, rkey: rkey}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.regions[lkey] = m
	return m, nil
}

// rights returns the rights by which the library registers a region with access, or refuses.
func (p *pd) rights(op string, access verbs.Access) (verbs.Access, error) {
	supported := supportedAccess
	if p.dev.attr.Caps&(verbs.CapMW1|verbs.CapMW2) != 0 {
		supported |= verbs.MWBind
	}
	if extra := access &^ supported; extra != 0 {
		return 0, verbs.Unsupported(op, "access %v; device %s has %v", extra, p.dev.name, supported&^verbs.OptionalAccess)
	}
	if p.dev.attr.AtomicCap == verbs.AtomicNone {
		access &^= verbs.RemoteAtomic // no peer can use it, and some drivers refuse it
	}
	return access &^ verbs.RemoteInvalidate, nil // libibverbs has no such flag: each driver has its own rule
}

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// IOVA returns the address of the first byte for both sides: MRInit.IOVA, or the virtual address.
func (m *mr) IOVA() uint64 { return m.init.IOVA }

// Rereg implements verbs.MRDriver. It returns a new mr with the handle of m, because ibv_rereg_mr keeps the struct ibv_mr, and marks m closed.
func (m *mr) Rereg(c verbs.MRReinit) (verbs.MRDriver, error) {
	const op = "re-register memory"
	if err := m.pd.dev.usable(op); err != nil {
		return nil, err
	}
	next := &mr{pd: m.pd, h: m.h, init: m.init, access: m.access}
	if n := m.pd.windows.Load(); n > 0 { // because a bound one names the region by its lkey, which may change, and ibv_rereg_mr promises nothing about windows
		return nil, verbs.Errorf(op, verbs.ErrBusy, "the protection domain has %d memory windows; close them first", n)
	}
	flags, rights := 0, verbs.Access(0) // ibv_rereg_mr refuses rights without IBV_REREG_MR_CHANGE_ACCESS
	if c.PD != nil {
		next.pd = c.PD.(*pd)
		flags |= reregPD
	}
	if c.Memory != nil {
		next.init = *c.Memory
		next.init.IOVA = c.Memory.Addr
		flags |= reregMemory
	}
	if c.ChangeAccess {
		access, err := m.pd.rights(op, c.Access)
		if err != nil {
			return nil, err
		}
		next.access, rights = access, access&^verbs.OptionalAccess // which ibv_rereg_mr does not know to be optional
		flags |= reregAccess
	}
	if !next.pd.adopt() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the protection domain is closed")
	}
	if err := m.change(flags, rights, next); err != nil {
		next.pd.children.Add(-1)
		return nil, err
	}
	m.pd.children.Add(-1)
	next.pd.mu.Lock()
	defer next.pd.mu.Unlock()
	next.pd.regions[next.lkey] = next
	return next, nil
}

// change lets the library turn m into next, and removes m from its domain's table. It holds pd.mu, because a request that binds a window uses the handle under
// that lock.
func (m *mr) change(flags int, rights verbs.Access, next *mr) error {
	const op = "re-register memory"
	m.pd.mu.Lock()
	defer m.pd.mu.Unlock()
	if m.closed.Load() {
		return verbs.Errorf(op, verbs.ErrClosed, "the region is closed")
	}
	lkey, rkey, lost, err := reregMR(m.h, flags, next.pd.h, next.init.Addr, uint64(len(next.init.Bytes)), rights)
	switch {
	case err == nil:
		next.lkey, next.rkey = lkey, rkey
		m.closed.Store(true)
		delete(m.pd.regions, m.lkey)
		return nil
	case errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS): // before the driver has changed anything
		return verbs.Unsupported(op, "the driver of %s cannot make this change; close the region and register another one", m.pd.dev.name)
	case lost:
		return &verbs.Error{Op: op, Err: err, Detail: "the region is in an unknown state and can only be closed"}
	}
	return registerError(op, len(next.init.Bytes), next.access, err)
}

func (m *mr) Close() error {
	const op = "close memory region"
	if m.closed.Swap(true) {
		return verbs.Errorf(op, verbs.ErrClosed, "closed before")
	}
	// The lock keeps a request that binds a window from using the handle meanwhile.
	m.pd.mu.Lock()
	err := m.pd.dev.released(deregMR(m.h))
	if err == nil && m.pd.regions[m.lkey] == m {
		delete(m.pd.regions, m.lkey)
	}
	m.pd.mu.Unlock()
	if err != nil {
		m.closed.Store(false)
		if m.pd.windows.Load() > 0 && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EBUSY)) {
			return &verbs.Error{Op: op, Kind: verbs.ErrBusy, Err: err, Detail: "a memory window is bound to it; invalidate or close the windows first"}
		}
		return &verbs.Error{Op: op, Err: err}
	}
	m.pd.children.Add(-1)
	return nil
}
