//go:build rdma && linux && cgo

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
	h        handle
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
	h          handle
	addr       uint64
	lkey, rkey uint32
	closed     atomic.Bool
}

func (p *pd) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	const op = "register memory"
	if err := p.dev.usable(op); err != nil {
		return nil, err
	}
	supported := supportedAccess
	if p.dev.attr.Caps&(verbs.CapMW1|verbs.CapMW2) != 0 {
		supported |= verbs.MWBind
	}
	if extra := access &^ supported; extra != 0 {
		return nil, verbs.Unsupported(op, "access %v; device %s has %v", extra, p.dev.name, supported&^verbs.OptionalAccess)
	}
	if p.dev.attr.AtomicCap == verbs.AtomicNone {
		access &^= verbs.RemoteAtomic // no peer can use it, and some drivers refuse it
	}
	access &^= verbs.RemoteInvalidate // libibverbs has no such flag: each driver has its own rule
	h, lkey, rkey, err := regMR(p.h, r.Addr, uint64(len(r.Bytes)), access)
	if err != nil {
		return nil, registerError(op, len(r.Bytes), access, err)
	}
	p.children.Add(1)
	m := &mr{pd: p, h: h, addr: r.Addr, lkey: lkey, rkey: rkey}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.regions[lkey] = m
	return m, nil
}

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// IOVA returns the virtual address, which ibv_reg_mr gives to peers.
func (m *mr) IOVA() uint64 { return m.addr }

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
