//go:build linux

package uverbs

import (
	"errors"
	"runtime"
	"syscall"

	"cinnabar/internal/hostmem"
)

// Numbers of rdma/rdma_user_ioctl_cmds.h and rdma/ib_user_ioctl_cmds.h.
const (
	verbsIoctl = 0xc0181b01 // RDMA_VERBS_IOCTL: _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)

	objectDevice     = 0
	objectAsyncEvent = 16

	methodGetContext      = 3
	methodQueryGIDTable   = 5
	methodAllocAsyncEvent = 0

	attrCoreSupport = 1      // of methodGetContext: 8 bytes
	attrAsyncFD     = 0      // of methodAllocAsyncEvent
	attrDriverOut   = 0x1001 // UVERBS_ATTR_UHW_OUT

	// of methodQueryGIDTable
	attrEntrySize  = 0
	attrGIDFlags   = 1
	attrGIDEntries = 2
	attrGIDCount   = 3

	attrMandatory = 1
)

// coreOptionalAccess is IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS.
const coreOptionalAccess = 1

// ioctlCmd is a command: struct ib_uverbs_ioctl_hdr, then attributes, each a struct ib_uverbs_attr.
type ioctlCmd []byte

// Sizes, and where the fields are that change.
const (
	ioctlHeaderSize = 24
	ioctlAttrSize   = 16
	ioctlCountAt    = 6
	ioctlDataAt     = 8 // in an attribute
)

func newIoctl(object, method uint16, driver uint32) ioctlCmd {
	c := make(ioctlCmd, 0, ioctlHeaderSize+4*ioctlAttrSize)
	c = native.AppendUint16(c, ioctlHeaderSize)
	c = native.AppendUint16(c, object)
	c = native.AppendUint16(c, method)
	c = native.AppendUint16(c, 0) // attributes
	c = native.AppendUint64(c, 0)
	c = native.AppendUint32(c, driver)
	return native.AppendUint32(c, 0)
}

// attr appends an attribute.
func (c ioctlCmd) attr(id, length, flags uint16, data uint64) ioctlCmd {
	c = native.AppendUint16(c, id)
	c = native.AppendUint16(c, length)
	c = native.AppendUint16(c, flags)
	c = native.AppendUint16(c, 0)
	c = native.AppendUint64(c, data)
	native.PutUint16(c, uint16(len(c)))
	native.PutUint16(c[ioctlCountAt:], native.Uint16(c[ioctlCountAt:])+1)
	return c
}

// value appends an attribute that carries 8 bytes in itself.
func (c ioctlCmd) value(id uint16, v uint64) ioctlCmd { return c.attr(id, 8, attrMandatory, v) }

// output appends an attribute whose bytes the kernel writes to b, which is not empty. Pin keeps b in place, because
// the kernel knows the address only.
func (c ioctlCmd) output(id, flags uint16, b []byte, pin *runtime.Pinner) ioctlCmd {
	pin.Pin(&b[0])
	return c.attr(id, uint16(len(b)), flags, hostmem.Addr(b))
}

// call carries the command out.
func (c ioctlCmd) call(fd int) error { return ioctl(fd, verbsIoctl, c) }

// getContext makes the context of an opened character device for a driver. It fails with
// EINVAL if the device has another driver.
func getContext(fd int, p provider) (coreSupport uint64, err error) {
	support, private := make([]byte, 8), make([]byte, p.sizes().context)
	var pin runtime.Pinner
	defer pin.Unpin()
	c := newIoctl(objectDevice, methodGetContext, p.driverID()).output(attrCoreSupport, attrMandatory, support, &pin)
	if len(private) > 0 {
		c = c.output(attrDriverOut, 0, private, &pin)
	}
	if err := c.call(fd); err != nil {
		return 0, err
	}
	return native.Uint64(support), nil
}

// allocAsyncFD makes the descriptor that the context's asynchronous events arrive at. The kernel writes it into the command.
func allocAsyncFD(fd int, p provider) (int, error) {
	c := newIoctl(objectAsyncEvent, methodAllocAsyncEvent, p.driverID()).attr(attrAsyncFD, 0, attrMandatory, 0)
	if err := c.call(fd); err != nil {
		return -1, err
	}
	return nonBlocking(int(int32(native.Uint64(c[ioctlHeaderSize+ioctlDataAt:]))))
}

// findProvider makes the context with the first driver that the kernel accepts; nil if
// the device has none of them.
func findProvider(fd int) (provider, uint64, error) {
	for _, p := range providers {
		support, err := getContext(fd, p)
		if err == nil {
			return p, support, nil
		}
		if !errors.Is(err, syscall.EINVAL) {
			return nil, 0, err
		}
	}
	return nil, 0, nil
}
