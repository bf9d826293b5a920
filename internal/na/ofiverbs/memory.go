package ofiverbs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"cinnabar/internal/hostmem"
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
	if err := checkRegister(mem, access); err != nil {
		return nil, err
	}
	m, err := e.register(mem, access)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// checkRegister returns an error for invalid arguments of Register.
func checkRegister(mem []byte, access na.Access) error {
	const op = "register memory"
	if len(mem) == 0 {
		return &na.Error{Kind: na.Invalid, Op: op, Err: errors.New("0 bytes; there must be 1 at least")}
	}
	if access < na.ReadOnly || access > na.ReadWrite {
		return &na.Error{Kind: na.Invalid, Op: op, Err: fmt.Errorf("access %d; it is read, write or both", access)}
	}
	return nil
}

// register is Register for valid arguments.
func (e *Endpoint) register(mem []byte, access na.Access) (*memory, error) {
	const op = "register memory"
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

// part is the memory of one piece in a region that covers several. It implements [na.Handle].
type part struct {
	m    *memory
	off  int // of the piece in the region
	size int
}

// AppendHandle implements [na.Handle]. The handle has the key of the region, and the address and the length of the piece.
func (p *part) AppendHandle(b []byte) []byte {
	r := p.m.remote()
	return appendHandle(b, remote{at: r.at.Add(uint64(p.off)), size: uint64(p.size), access: r.access})
}

// RegisterPieces implements [na.PieceRegistrar]. Neighbouring pieces get one region together.
func (e *Endpoint) RegisterPieces(segs [][]byte, access na.Access) (mems []na.Memory, handles []na.Handle, err error) {
	for _, s := range segs {
		if err := checkRegister(s, access); err != nil {
			return nil, nil, err
		}
	}
	parts := make([]part, len(segs))
	runs := mergeNeighbours(segs, e.attr.MaxMRSize)
	mems = make([]na.Memory, 0, len(runs))
	for _, r := range runs {
		m, err := e.register(r.mem, access)
		if err != nil {
			for _, m := range mems {
				m.Close()
			}
			return nil, nil, err
		}
		mems = append(mems, m)
		for _, i := range r.pieces {
			parts[i] = part{m: m, off: int(hostmem.Addr(segs[i]) - hostmem.Addr(r.mem)), size: len(segs[i])}
		}
	}
	handles = make([]na.Handle, len(segs))
	for i := range parts {
		handles[i] = &parts[i]
	}
	return mems, handles, nil
}

// run is a range of memory without gaps that one region covers.
type run struct {
	mem    []byte
	pieces []int // indices of the pieces in it, in the order of their addresses
}

// mergeNeighbours returns the memory of segs, none of which is empty, as runs of at most largest bytes, or of any size if largest is 0. Each further
// piece of a run begins inside the bytes of the pieces before it or directly behind them, because peers must not reach a byte between two
// pieces. The capacity of the first piece must include all of the run, because pieces of different allocations can be neighbours by
// chance, and the program may free one of them before the other.
func mergeNeighbours(segs [][]byte, largest uint64) []run {
	order := make([]int, len(segs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(hostmem.Addr(segs[i]), hostmem.Addr(segs[j])), cmp.Compare(cap(segs[j]), cap(segs[i])))
	})
	var runs []run
	for k, i := range order {
		if k > 0 {
			last := &runs[len(runs)-1]
			off := hostmem.Addr(segs[i]) - hostmem.Addr(last.mem)
			end := off + uint64(len(segs[i]))
			if off <= uint64(len(last.mem)) && end <= uint64(cap(last.mem)) && (largest == 0 || end <= largest) {
				last.mem = last.mem[:max(uint64(len(last.mem)), end)]
				last.pieces = order[k-len(last.pieces) : k+1]
				continue
			}
		}
		runs = append(runs, run{mem: segs[i], pieces: order[k : k+1]})
	}
	return runs
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

// has reports whether r is a handle of the memory, or of a piece of it.
func (m *memory) has(r *remote) bool {
	whole := m.remote()
	off := r.at.Addr - whole.at.Addr
	return r.at.RKey == whole.at.RKey && r.access == m.access && off <= whole.size && r.size <= whole.size-off
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
