package verbs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
)

// registration is the state of an MR. It never points to its MR, so that
// the MR can be collected and its missing Close noticed.
type registration struct {
	pd         *PD
	drv        MRDriver
	buf        []byte
	addr       uint64 // virtual
	local      uint64 // address of the first byte in work requests of this side
	iova       uint64 // and in those of peers
	lkey, rkey uint32
	free       func() error // unpins or unmaps buf
	mapped     bool         // free unmaps it

	mu     sync.Mutex  // serialises close
	closed atomic.Bool // written under mu
}

func newRegistration(pd *PD, m MRDriver, r MRInit, free func() error) *registration {
	local := r.Addr
	if r.HasIOVA {
		local = r.IOVA
	}
	return &registration{pd: pd, drv: m, buf: r.Bytes, addr: r.Addr, local: local, iova: m.IOVA(), lkey: m.LKey(), rkey: m.RKey(), free: free}
}

// enter puts reg into the domain's table.
func (pd *PD) enter(reg *registration) {
	pd.regsMu.Lock()
	defer pd.regsMu.Unlock()
	pd.regs[reg] = struct{}{}
}

// remove takes reg out of the domain's table.
func (pd *PD) remove(reg *registration) {
	pd.regsMu.Lock()
	defer pd.regsMu.Unlock()
	delete(pd.regs, reg)
}

// close deregisters, once.
func (r *registration) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return nil
	}
	if err := r.drv.Close(); err != nil {
		return err
	}
	r.closed.Store(true)
	err := r.free()
	r.pd.remove(r)
	r.pd.removeDependent(childMR)
	return err
}

// forgotten keeps the registrations of MRs that were collected: the device may still
// use their memory, and their domain may have been forgotten along with them.
var forgotten struct {
	mu   sync.Mutex
	regs []*registration // +checklocks:mu
}

// forget is called by the runtime when the MR was collected without Close.
func (r *registration) forget() {
	forgotten.mu.Lock()
	forgotten.regs = append(forgotten.regs, r)
	forgotten.mu.Unlock()
	d := r.pd.dev
	d.forgotten.Add(1)
	if l := d.log.Load(); l != nil {
		l.LogAttrs(context.Background(), slog.LevelWarn, "memory region collected without Close; its memory stays registered",
			slog.Int("bytes", len(r.buf)), slog.Uint64("lkey", uint64(r.lkey)))
	}
}
