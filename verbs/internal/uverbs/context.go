//go:build linux

package uverbs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"cinnabar/internal/rawcall"

	"golang.org/x/sys/unix"
)

// Context is an opened device. Its commands may be called from several goroutines.
//
// The kernel takes commands only from threads with the very credentials that opened the device (ib_safe_file_access). If the
// process changes its user, its groups or its capabilities later, commands and doorbells fail with EACCES.
type Context struct {
	name        string
	fd          int // of the character device
	asyncFD     int
	prov        provider
	coreSupport uint64
}

// Open opens a device. It fails with ENODEV if there is none of the name, with a
// *DriverError if its driver is not one of this package, and with ENOTTY or EPROTONOSUPPORT on kernels before Linux 5.6.
func Open(name string) (*Context, error) {
	nodes, err := verbsNodes()
	if err != nil {
		return nil, err
	}
	node, ok := nodes[name]
	if !ok {
		return nil, syscall.ENODEV
	}
	fd, err := unix.Open(filepath.Join(nodeDir, node), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &Context{name: name, fd: fd, asyncFD: -1}
	if c.prov, c.coreSupport, err = findProvider(fd); err == nil && c.prov == nil {
		err = &DriverError{Name: name, Driver: driverName(name)}
	}
	if err == nil {
		c.asyncFD, err = allocAsyncFD(fd, c.prov)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return c, nil
}

// Close closes the descriptors. The kernel ends what is still open of the context.
func (c *Context) Close() error {
	return errors.Join(unix.Close(c.asyncFD), unix.Close(c.fd))
}

// AsyncFD is the non-blocking descriptor that asynchronous events arrive at. It belongs to the context.
func (c *Context) AsyncFD() int { return c.asyncFD }

// NextAsync takes an asynchronous event: struct ib_uverbs_async_event_desc. Its type is
// one of IBV_EVENT_*, and id is the number that the program gave to the object, or the port. It fails with
// EAGAIN if no event waits.
func (c *Context) NextAsync() (typ uint32, id uint64, err error) {
	var b [16]byte
	if err := readEvent(c.asyncFD, b[:]); err != nil {
		return 0, 0, err
	}
	typ, id = native.Uint32(b[8:]), native.Uint64(b[0:])
	if typ == eventWQFatal {
		id = 0 // no object of this package
	}
	return typ, id, nil
}

const eventWQFatal = 19 // IBV_EVENT_WQ_FATAL

// nonBlocking makes a new descriptor of events non-blocking, and closes it after an error.
func nonBlocking(fd int) (int, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return -1, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return fd, nil
}

func readEvent(fd int, b []byte) error {
	for {
		n, err := rawcall.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n != len(b) {
			err = syscall.EIO // the device is gone
		}
		return err
	}
}

// QueryDevice asks for the attributes of the device.
func (c *Context) QueryDevice() (DeviceAttr, error) {
	const size = 176 // struct ib_uverbs_query_device_resp
	r := newRequest(cmdQueryDevice, size)
	if err := r.send(c.fd); err != nil {
		return DeviceAttr{}, err
	}
	return parseDeviceAttr(r.resp, c.prov), nil
}

func parseDeviceAttr(b []byte, p provider) DeviceAttr {
	n := func(at int) int { return int(int32(native.Uint32(b[at:]))) }
	return DeviceAttr{
		Firmware: p.firmware(native.Uint64(b)),
		NodeGUID: be64(b[8:]), SysGUID: be64(b[16:]),
		MaxMRSize: native.Uint64(b[24:]), PageSizeCap: native.Uint64(b[32:]),
		Vendor: native.Uint32(b[40:]), Part: native.Uint32(b[44:]), HW: native.Uint32(b[48:]),
		MaxQP: n(52), MaxQPWR: n(56), CapFlags: uint64(native.Uint32(b[60:])),
		MaxSGE: n(64), MaxSGERd: n(68), MaxCQ: n(72), MaxCQE: n(76), MaxMR: n(80), MaxPD: n(84),
		MaxRdAtomic: n(88), MaxInitRdAtomic: n(100), AtomicCap: n(108), MaxMW: n(120),
		MaxAH: n(144), MaxSRQ: n(156), MaxSRQWR: n(160), MaxSRQSGE: n(164),
		Ports: int(b[171]),
	}
}

// QueryPort asks for the attributes of a port, which are counted from 1.
func (c *Context) QueryPort(port int) (PortAttr, error) {
	const size = 40 // struct ib_uverbs_query_port_resp
	if port < 0 || port > 255 {
		return PortAttr{}, syscall.EINVAL
	}
	r := newRequest(cmdQueryPort, size).raw(byte(port), 0, 0, 0, 0, 0, 0, 0)
	if err := r.send(c.fd); err != nil {
		return PortAttr{}, err
	}
	return parsePortAttr(r.resp), nil
}

func parsePortAttr(b []byte) PortAttr {
	return PortAttr{
		MaxMsg: native.Uint32(b[4:]), GIDs: native.Uint32(b[16:]),
		LID: uint32(native.Uint16(b[22:])), SMLID: uint32(native.Uint16(b[24:])),
		State: uint32(b[26]), MaxMTU: uint32(b[27]), ActiveMTU: uint32(b[28]), LinkLayer: uint32(b[37]),
	}
}
