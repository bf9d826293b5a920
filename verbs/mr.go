package verbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"cinnabar/internal/hostmem"
)

// MR is a memory region: memory of this process that the device may use, with
// the rights that it was registered with. All methods are safe for concurrent
// use; the memory itself is synchronised by completions alone. Rereg may change
// memory, size, rights, keys and address.
//
// A region stays registered until Close. One that is collected without Close is
// reported to the device's logger and counted, and its memory stays as it is:
// the device may still be using it.
type MR struct {
	reg atomic.Pointer[registration] // the current one, which Rereg replaces

	mu      sync.Mutex      // serializes Close and Rereg; it is held while reg and cleanup are set
	cleanup runtime.Cleanup // +checklocks:mu
}

// RegMR registers buf, memory of the Go heap or of elsewhere, with the given
// rights (reading locally is always allowed). The slice is pinned and kept alive
// until the MR is closed. RemoteWrite and RemoteAtomic need LocalWrite.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	const op = "register memory"
	if err := pd.checkRegion(op, len(buf), access); err != nil {
		return nil, err
	}
	pin := hostmem.PinSlice(buf)
	return pd.register(op, initOf(buf), access, func() error { pin.Unpin(); return nil })
}

// RegMRAt is [PD.RegMR] with an address of the program's choice (ibv_reg_mr_iova): byte i of buf has the address iova+i in work requests of
// both sides, so that a peer learns no virtual address of this process. [MR.SGE], [MR.SGEOf] and [MR.RemoteAt] return these addresses.
//
// iova and the memory must have the same offset within a page, because devices translate addresses page by page. Memory of mmap begins a page; a
// slice of the Go heap mostly does not. iova+len(buf) must be below 2^64. An error matches [ErrInvalid] for other addresses, and
// [errors.ErrUnsupported] for a device that ignores iova, such as siw.
func (pd *PD) RegMRAt(buf []byte, iova uint64, access Access) (*MR, error) {
	const op = "register memory at an address"
	if err := pd.checkRegion(op, len(buf), access); err != nil {
		return nil, err
	}
	r := initOf(buf)
	r.IOVA, r.HasIOVA = iova, true
	if page := uint64(os.Getpagesize()); (r.Addr^iova)%page != 0 {
		return nil, Errorf(op, ErrInvalid, "iova begins at byte %d of a page of %d bytes, and the memory at byte %d of its page; both must be equal: use memory of mmap, and an iova that is a multiple of the page size",
			iova%page, page, r.Addr%page)
	}
	if iova+uint64(len(buf)) < iova {
		return nil, Errorf(op, ErrInvalid, "%d bytes from iova %#x on reach 2^64; choose a lower iova", len(buf), iova)
	}
	pin := hostmem.PinSlice(buf)
	return pd.register(op, r, access, func() error { pin.Unpin(); return nil })
}

// initOf returns the memory of buf for a driver.
func initOf(buf []byte) MRInit { return MRInit{Bytes: buf, Addr: hostmem.Addr(buf)} }

// Number is the set of numeric types of the same size on all platforms, which
// [RegSlice] accepts. None contains a pointer, so a peer's bytes may be written
// over its values.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 |
		~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~float32 | ~float64
}

// RegSlice registers the memory of s as [PD.RegMR] does. The values are in the
// byte order of this machine.
func RegSlice[T Number](pd *PD, s []T, access Access) (*MR, error) {
	return pd.RegMR(hostmem.Bytes(s), access)
}

// AllocMR registers size bytes of new, zeroed, page-aligned memory outside the
// Go heap. The memory belongs to the MR: after Close it is gone, and touching
// a slice of it crashes the program.
func (pd *PD) AllocMR(size int, access Access) (*MR, error) {
	const op = "allocate memory region"
	if err := pd.checkRegion(op, size, access); err != nil {
		return nil, err
	}
	buf, err := hostmem.Map(size)
	if err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	mr, err := pd.register(op, initOf(buf), access, func() error { return hostmem.Unmap(buf) })
	if err == nil {
		mr.reg.Load().mapped = true
	}
	return mr, err
}

// checkRegion refuses sizes and rights that no device accepts.
func (pd *PD) checkRegion(op string, size int, access Access) error {
	if size <= 0 {
		return Errorf(op, ErrInvalid, "the size is %d bytes, the least is 1", size)
	}
	attr, err := pd.dev.limits()
	if err != nil {
		return err
	}
	if attr.MaxMRSize > 0 && uint64(size) > attr.MaxMRSize {
		return Errorf(op, ErrInvalid, "%d bytes are over the device's limit of %d (DeviceAttr.MaxMRSize)", size, attr.MaxMRSize)
	}
	return checkRights(op, access)
}

// checkRights refuses rights that no device accepts.
func checkRights(op string, access Access) error {
	// ibv_reg_mr(3): a peer must not have a right that the owner lacks.
	if access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0 {
		return Errorf(op, ErrInvalid, "access %v: RemoteWrite and RemoteAtomic need LocalWrite", access)
	}
	return nil
}

// register hands checked memory to the driver. free lets go of the memory: it
// holds the pin or the mapping, and is called when the registration ends or fails.
func (pd *PD) register(op string, r MRInit, access Access, free func() error) (*MR, error) {
	if err := pd.addDependent(childMR, op, "protection domain"); err != nil {
		return nil, errors.Join(err, free())
	}
	m, err := pd.drv.RegMR(r, access)
	if err != nil {
		pd.removeDependent(childMR)
		return nil, errors.Join(err, free())
	}
	mr := &MR{}
	mr.mu.Lock()
	defer mr.mu.Unlock()
	mr.setLocked(newRegistration(pd, m, r, free))
	return mr, nil
}

// setLocked makes reg the registration of mr.
//
// +checklocks:mr.mu
func (mr *MR) setLocked(reg *registration) {
	reg.pd.enter(reg)
	mr.reg.Store(reg)
	mr.cleanup = runtime.AddCleanup(mr, (*registration).forget, reg)
}

// Bytes returns the memory of the region, nil after Close. Data that peers write
// there may be read only after the completion that says so.
func (mr *MR) Bytes() []byte {
	for {
		reg := mr.reg.Load()
		switch {
		case !reg.closed.Load():
			return reg.buf
		case reg == mr.reg.Load(): // else Rereg has replaced it
			return nil
		}
	}
}

// Len returns the size of the region in bytes.
func (mr *MR) Len() int { return len(mr.reg.Load().buf) }

// LKey returns the key that this side's work requests name the region by.
func (mr *MR) LKey() uint32 { return mr.reg.Load().lkey }

// RKey returns the key that lets a peer use the region as far as its rights go.
func (mr *MR) RKey() uint32 { return mr.reg.Load().rkey }

// SGE returns the entry for the n bytes from off on. Like slicing, it panics if
// they are not all inside the region. It does not allocate.
func (mr *MR) SGE(off, n int) SGE {
	reg := mr.reg.Load()
	reg.check(off, n)
	return reg.sge(off, n)
}

// SGEOf returns the entry for sub, which must be a part of the region's memory.
func (mr *MR) SGEOf(sub []byte) (SGE, error) {
	if len(sub) == 0 {
		return mr.SGE(0, 0), nil
	}
	reg := mr.reg.Load()
	off, size := hostmem.Addr(sub)-reg.addr, uint64(len(reg.buf)) // off wraps around for memory below the region
	if off >= size || uint64(len(sub)) > size-off {
		return SGE{}, Errorf("address memory region", ErrInvalid, "the slice of %d bytes is not inside the region of %d", len(sub), size)
	}
	if uint64(len(sub)) > math.MaxUint32 {
		return SGE{}, Errorf("address memory region", ErrInvalid, "%d bytes are over the limit of one entry, %d", len(sub), uint32(math.MaxUint32))
	}
	return reg.sge(int(off), len(sub)), nil
}

// Remote returns the address and the key by which a peer uses the region. The address is the device's: the software device gives
// peers a random one instead of the virtual address, which would reveal where the process has its memory.
func (mr *MR) Remote() RemoteAddr { return mr.RemoteAt(0) }

// RemoteAt returns the address of byte off of the region for a peer. It panics
// if off is outside; the end of the region is allowed.
func (mr *MR) RemoteAt(off int) RemoteAddr {
	reg := mr.reg.Load()
	reg.check(off, 0)
	return RemoteAddr{Addr: reg.iova + uint64(off), RKey: reg.rkey}
}

// sge returns the entry for the n bytes from off on, which are in the region.
func (r *registration) sge(off, n int) SGE {
	return SGE{Addr: r.local + uint64(off), Length: uint32(n), LKey: r.lkey}
}

// check panics unless the n bytes from off on are inside the region.
func (r *registration) check(off, n int) {
	if size := len(r.buf); off < 0 || n < 0 || off > size || n > size-off || uint64(n) > math.MaxUint32 {
		panic(fmt.Sprintf("verbs: range [%d:+%d] out of memory region of %d bytes", off, n, size))
	}
}

// Close revokes both keys, waits until the device touches the memory no more,
// and drops the reference to the memory. End the protocol with the peer first,
// because its requests for the region fail from then on. While memory windows are bound to the region, Close fails with
// [ErrBusy]. A second Close does nothing; after an error Close can be called again.
func (mr *MR) Close() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if err := mr.reg.Load().close(); err != nil {
		return err
	}
	mr.cleanup.Stop()
	runtime.KeepAlive(mr)
	return nil
}
