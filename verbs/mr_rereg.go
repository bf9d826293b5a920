package verbs

import (
	"errors"

	"cinnabar/internal/hostmem"
)

// MRChange is the change that [MR.Rereg] makes. A nil Memory or PD stays as it is, and so do the rights unless ChangeAccess is set.
type MRChange struct {
	Memory       []byte // new memory, at least 1 byte, pinned until Close or the next change of memory (IBV_REREG_MR_CHANGE_TRANSLATION)
	PD           *PD    // new protection domain, of the same device (IBV_REREG_MR_CHANGE_PD)
	Access       Access // new rights, as for [PD.RegMR], if ChangeAccess is set (IBV_REREG_MR_CHANGE_ACCESS)
	ChangeAccess bool
}

// Rereg changes the memory, the protection domain or the rights of the region (ibv_rereg_mr). Some devices do so at less cost than Close and a
// new registration. The device may give the region other keys and another address, so the program sends [MR.Remote] to its peers again, and
// makes its own SGEs anew. Requests that are under way may fail, and a key that is no longer the region's is refused. The program therefore
// waits for the completions of its own requests before it calls Rereg.
//
// Rereg pins c.Memory, as [PD.RegMR] does. It unpins the former memory, or unmaps it if [PD.AllocMR] made it; slices of unmapped memory must
// not be used any more, and the new memory must not be a part of it. A region of [PD.RegMRAt] keeps its address until its memory changes. Rereg
// fails with [ErrBusy] while memory windows are bound to the region; a device of rdma-core does so while its domain has windows.
//
// After an error that matches [ErrBusy], [ErrInvalid], [ErrClosed], [ErrLockLimit] or [errors.ErrUnsupported] the region is unchanged. After
// another error of the device the program can only close the region. The software device makes all changes; the drivers of siw and of rxe
// (Linux 6.1) make none; the drivers of cards differ.
func (mr *MR) Rereg(c MRChange) error {
	const op = "re-register memory"
	mr.mu.Lock()
	defer mr.mu.Unlock()
	old := mr.reg.Load()
	if c.Memory == nil && c.PD == nil && !c.ChangeAccess {
		return Errorf(op, ErrInvalid, "the change is empty; set Memory, PD or ChangeAccess")
	}
	pd := old.pd
	if c.PD != nil {
		if pd = c.PD; pd.dev != old.pd.dev {
			return Errorf(op, ErrInvalid, "the protection domain belongs to another device; give one of the region's device")
		}
	}
	if !c.ChangeAccess && c.Access != 0 {
		return Errorf(op, ErrInvalid, "Access is %v without ChangeAccess; set ChangeAccess to change the rights", c.Access)
	}
	if err := checkRights(op, c.Access); err != nil {
		return err
	}
	if c.Memory != nil {
		if err := pd.checkRegion(op, len(c.Memory), 0); err != nil {
			return err
		}
		if old.mapped && overlap(c.Memory, old.buf) {
			return Errorf(op, ErrInvalid, "the new memory is a part of that of AllocMR, which Rereg unmaps; use memory of RegMR")
		}
	}
	return mr.changeLocked(op, old, pd, c)
}

// overlap reports whether a and b, which are not empty, have bytes in common.
func overlap(a, b []byte) bool {
	return hostmem.Addr(a)-hostmem.Addr(b) < uint64(len(b)) || hostmem.Addr(b)-hostmem.Addr(a) < uint64(len(a))
}

// changeLocked makes the checked change c. After success old has ended, and mr has a new registration.
//
// +checklocks:mr.mu
func (mr *MR) changeLocked(op string, old *registration, pd *PD, c MRChange) error {
	old.mu.Lock()
	defer old.mu.Unlock()
	if old.closed.Load() {
		return Errorf(op, ErrClosed, "the region was closed")
	}
	if err := pd.addDependent(childMR, op, "protection domain"); err != nil {
		return err
	}
	re := MRReinit{Access: c.Access, ChangeAccess: c.ChangeAccess}
	if c.PD != nil {
		re.PD = pd.drv
	}
	memory := MRInit{Bytes: old.buf, Addr: old.addr, IOVA: old.local, HasIOVA: old.local != old.addr}
	free, mapped := old.free, old.mapped
	if c.Memory != nil {
		memory = initOf(c.Memory)
		re.Memory = &memory
		pin := hostmem.PinSlice(c.Memory)
		free, mapped = func() error { pin.Unpin(); return nil }, false
	}
	m, err := old.drv.Rereg(re)
	if err != nil {
		pd.removeDependent(childMR)
		if c.Memory != nil {
			old.keepUnless(unchanged(err), free)
		}
		return err
	}
	mr.cleanup.Stop()
	next := newRegistration(pd, m, memory, free)
	next.mapped = mapped
	mr.setLocked(next)
	old.closed.Store(true) // after the new registration is there, because Bytes returns nil only for a closed region
	old.pd.remove(old)
	old.pd.removeDependent(childMR)
	if c.Memory != nil {
		_ = old.free() // if it fails, the former memory stays mapped, which does no harm
	}
	return nil
}

// unchanged reports whether a region is as it was before the change that has failed with err.
func unchanged(err error) bool {
	for _, kind := range []error{ErrBusy, ErrInvalid, ErrClosed, ErrLockLimit, errors.ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// keepUnless lets go of the memory of a change that has failed. Unless the region is unchanged, the device may still use that memory, so close lets go of it.
func (r *registration) keepUnless(unchanged bool, free func() error) {
	if unchanged {
		_ = free() // an unpin, which does not fail
		return
	}
	former := r.free
	r.free = func() error { return errors.Join(former(), free()) }
}
