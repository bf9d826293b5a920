package verbs

import (
	"errors"
	"fmt"
	"math"
	"runtime"

	"cinnabar/internal/hostmem"
)

// MR is a memory region: memory of this process that the device may use, with
// the rights that it was registered with. All methods are safe for concurrent
// use; the memory itself is synchronised by completions alone.
//
// A region stays registered until Close. One that is collected without Close is
// reported to the device's logger and counted, and its memory stays as it is:
// the device may still be using it.
type MR struct {
	reg     *registration
	cleanup runtime.Cleanup
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
	return pd.register(op, buf, access, func() error { pin.Unpin(); return nil })
}

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
	return pd.register(op, buf, access, func() error { return hostmem.Unmap(buf) })
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
	// ibv_reg_mr(3): a peer must not have a right that the owner lacks.
	if access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0 {
		return Errorf(op, ErrInvalid, "access %v: RemoteWrite and RemoteAtomic need LocalWrite", access)
	}
	return nil
}

// register hands checked memory to the driver. free lets go of the memory: it
// holds the pin or the mapping, and is called when the registration ends or fails.
func (pd *PD) register(op string, buf []byte, access Access, free func() error) (*MR, error) {
	if err := pd.addDependent(childMR, op, "protection domain"); err != nil {
		return nil, errors.Join(err, free())
	}
	m, err := pd.drv.RegMR(MRInit{Bytes: buf, Addr: hostmem.Addr(buf)}, access)
	if err != nil {
		pd.removeDependent(childMR)
		return nil, errors.Join(err, free())
	}
	reg := &registration{
		pd: pd, drv: m, buf: buf, addr: hostmem.Addr(buf), iova: m.IOVA(),
		lkey: m.LKey(), rkey: m.RKey(), free: free,
	}
	pd.enter(reg)
	mr := &MR{reg: reg}
	mr.cleanup = runtime.AddCleanup(mr, (*registration).forget, reg)
	return mr, nil
}

// Bytes returns the memory of the region, nil after Close. Data that peers write
// there may be read only after the completion that says so.
func (mr *MR) Bytes() []byte {
	if mr.reg.closed.Load() {
		return nil
	}
	return mr.reg.buf
}

// Len returns the size of the region in bytes.
func (mr *MR) Len() int { return len(mr.reg.buf) }

// LKey returns the key that this side's work requests name the region by.
func (mr *MR) LKey() uint32 { return mr.reg.lkey }

// RKey returns the key that lets a peer use the region as far as its rights go.
func (mr *MR) RKey() uint32 { return mr.reg.rkey }

// SGE returns the entry for the n bytes from off on. Like slicing, it panics if
// they are not all inside the region. It does not allocate.
func (mr *MR) SGE(off, n int) SGE {
	mr.check(off, n)
	return SGE{Addr: mr.reg.addr + uint64(off), Length: uint32(n), LKey: mr.reg.lkey}
}

// SGEOf returns the entry for sub, which must be a part of the region's memory.
func (mr *MR) SGEOf(sub []byte) (SGE, error) {
	if len(sub) == 0 {
		return mr.SGE(0, 0), nil
	}
	off := hostmem.Addr(sub) - mr.reg.addr // wraps around for memory below the region
	if off >= uint64(mr.Len()) || uint64(len(sub)) > uint64(mr.Len())-off {
		return SGE{}, Errorf("address memory region", ErrInvalid, "the slice of %d bytes is not inside the region of %d", len(sub), mr.Len())
	}
	if uint64(len(sub)) > math.MaxUint32 {
		return SGE{}, Errorf("address memory region", ErrInvalid, "%d bytes are over the limit of one entry, %d", len(sub), uint32(math.MaxUint32))
	}
	return mr.SGE(int(off), len(sub)), nil
}

// Remote returns the address and the key by which a peer uses the region. The address is the device's: the software device gives
// peers a random one instead of the virtual address, which would reveal where the process has its memory.
func (mr *MR) Remote() RemoteAddr { return mr.RemoteAt(0) }

// RemoteAt returns the address of byte off of the region for a peer. It panics
// if off is outside; the end of the region is allowed.
func (mr *MR) RemoteAt(off int) RemoteAddr {
	mr.check(off, 0)
	return RemoteAddr{Addr: mr.reg.iova + uint64(off), RKey: mr.reg.rkey}
}

// check panics unless the n bytes from off on are inside the region.
func (mr *MR) check(off, n int) {
	if off < 0 || n < 0 || off > mr.Len() || n > mr.Len()-off || uint64(n) > math.MaxUint32 {
		panic(fmt.Sprintf("verbs: range [%d:+%d] out of memory region of %d bytes", off, n, mr.Len()))
	}
}

// Close revokes both keys, waits until the device touches the memory no more,
// and drops the reference to the memory. End the protocol with the peer first,
// because its requests for the region fail from then on. While memory windows are bound to the region, Close fails with
// [ErrBusy]. A second Close does nothing; after an error Close can be called again.
func (mr *MR) Close() error {
	if err := mr.reg.close(); err != nil {
		return err
	}
	mr.cleanup.Stop()
	runtime.KeepAlive(mr)
	return nil
}
