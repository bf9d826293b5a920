package ofiverbs

import (
	"errors"
	"fmt"
	"sync"

	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// memory is memory that peers may access, as a region of the device.
type memory struct {
	ep     *Endpoint
	mr     *verbs.MR
	access na.Access

	revoke sync.Once
	err    error // of the region's Close; guarded by ep.mu
	late   lateMemory
}

// regionAccess returns the rights of a region that peers use with access.
func regionAccess(access na.Access) verbs.Access {
	return [...]verbs.Access{
		na.ReadOnly: verbs.RemoteRead, na.WriteOnly: verbs.LocalWrite | verbs.RemoteWrite,
		na.ReadWrite: verbs.RemoteRead | verbs.LocalWrite | verbs.RemoteWrite,
	}[access]
}

// Register implements [na.Endpoint]. The device enforces the rights.
func (e *Endpoint) Register(mem []byte, access na.Access) (na.Memory, error) {
	const op = "register memory"
	if len(mem) == 0 {
		return nil, &na.Error{Kind: na.Invalid, Op: op, Err: errors.New("0 bytes; there must be 1 at least")}
	}
	if access < na.ReadOnly || access > na.ReadWrite {
		return nil, &na.Error{Kind: na.Invalid, Op: op, Err: fmt.Errorf("access %d; it is read, write or both", access)}
	}
	mr, err := e.region(mem, regionAccess(access))
	if err != nil {
		kind := na.NotAvailable
		if errors.Is(err, verbs.ErrClosed) {
			kind = na.Closed
		}
		return nil, &na.Error{Kind: kind, Op: op, Err: err}
	}
	m := &memory{ep: e, mr: mr, access: access}
	if !e.enter(m) {
		return nil, &na.Error{Kind: na.Closed, Op: op, Err: e.closeRegion(mr)}
	}
	return m, nil
}

// region registers memory with the device. Close of the endpoint waits until closeRegion has released it.
func (e *Endpoint) region(mem []byte, access verbs.Access) (*verbs.MR, error) {
	if !e.regions.Acquire() {
		return nil, verbs.Errorf("register memory", verbs.ErrClosed, "the endpoint is closed")
	}
	mr, err := e.regMR(mem, access)
	if err != nil {
		e.regions.Release()
		return nil, err
	}
	e.registered.Add(1)
	return mr, nil
}

// regMR registers memory with the device. If the device has no room for it, regMR gives up the cached regions that no transfer uses, and tries
// again.
func (e *Endpoint) regMR(mem []byte, access verbs.Access) (*verbs.MR, error) {
	mr, err := e.pd.RegMR(mem, access)
	if err == nil {
		return mr, nil
	}
	err = e.explain(err)
	if !errors.Is(err, errRegions) && !errors.Is(err, verbs.ErrLockLimit) || !e.locals.giveUp() {
		return nil, err
	}
	if mr, err = e.pd.RegMR(mem, access); err != nil {
		return nil, e.explain(err)
	}
	return mr, nil
}

// closeRegion releases a region. The device does not use it any more when closeRegion returns.
func (e *Endpoint) closeRegion(mr *verbs.MR) error {
	defer e.regions.Release()
	e.registered.Add(-1)
	return mr.Close()
}

// enter adds m to the memory that Close releases. False: the endpoint is closed.
func (e *Endpoint) enter(m *memory) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.memory[m] = struct{}{}
	return true
}

// closeMemory releases all memory. Nothing is added to it any more.
func (e *Endpoint) closeMemory() error {
	e.mu.Lock()
	list := make([]*memory, 0, len(e.memory))
	for m := range e.memory {
		list = append(list, m)
	}
	e.mu.Unlock()
	var errs []error
	for _, m := range list {
		m.Close()
		errs = append(errs, m.closeErr())
	}
	return errors.Join(errs...)
}

// AppendHandle implements [na.Memory].
func (m *memory) AppendHandle(b []byte) []byte {
	return appendHandle(b, m.remote())
}

// remote returns the memory as peers see it.
func (m *memory) remote() remote {
	return remote{at: m.mr.Remote(), size: uint64(m.mr.Len()), access: m.access}
}

// Revoke implements [na.Memory]. The device takes the key back, and waits for no more than the copying of bytes that have come.
func (m *memory) Revoke() {
	m.revoke.Do(func() {
		m.ep.late.forget(m)
		m.deregister()
	})
}

// deregister ends the registration. It is called once.
func (m *memory) deregister() {
	err := m.ep.closeRegion(m.mr)
	if err != nil {
		m.ep.cfg.Logger.Warn("the device has failed to deregister memory", keyError, err)
	}
	m.ep.mu.Lock()
	defer m.ep.mu.Unlock()
	m.err = err
	delete(m.ep.memory, m)
}

// closeErr returns the error of deregister, or nil before its end: memory that was kept is deregistered by another goroutine.
func (m *memory) closeErr() error {
	m.ep.mu.Lock()
	defer m.ep.mu.Unlock()
	return m.err
}

// Close implements [na.Memory].
func (m *memory) Close() { m.Revoke() }

// ParseHandle implements [na.Endpoint].
func (e *Endpoint) ParseHandle(b []byte) (na.RemoteMemory, error) {
	r, err := parseHandle(b)
	if err != nil {
		return nil, &na.Error{Kind: na.Protocol, Op: "read memory handle", Err: err}
	}
	return &r, nil
}
