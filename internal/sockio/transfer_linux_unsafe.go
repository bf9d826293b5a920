//go:build linux

package sockio

import (
	"errors"
	"io"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIovecs is how many buffers one call passes to the kernel; the rest wait for
// the next call.
const maxIovecs = 64

// rawBelow is the request size in bytes below which the system call is made without a notice to the scheduler. The notice costs a
// tenth of a vain read and, in BenchmarkPingPong, a quarter of the round. Without it the call occupies a processor of the scheduler
// while the kernel copies, some microseconds at this size.
const rawBelow = 16 << 10

// transfer is one direction's system call, with arguments and results in place
// of a closure's variables: do is built once and no call allocates.
type transfer struct {
	do   func(fd uintptr)
	iov  [maxIovecs]unix.Iovec
	used int // entries of iov
	size int // bytes in them

	n     int        // bytes moved
	errno unix.Errno // 0 if none
}

// load fills iov with the first non-empty buffers.
func (t *transfer) load(bufs [][]byte) {
	t.used, t.size = 0, 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if t.used == maxIovecs {
			return
		}
		v := &t.iov[t.used]
		v.Base = unsafe.SliceData(b)
		v.SetLen(len(b))
		t.used++
		t.size += len(b)
	}
}

// unload drops the references to the caller's memory.
func (t *transfer) unload() { clear(t.iov[:t.used]) }

// receive and send are the closures behind do.
func (t *transfer) receive(fd uintptr) {
	t.call(fd, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.MSG_DONTWAIT)
}

func (t *transfer) send(fd uintptr) {
	t.call(fd, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// call does the system call one for a single buffer, which spares the kernel
// reading a message header, or else many.
func (t *transfer) call(fd, one, many, flags uintptr) {
	for {
		var r uintptr
		var errno unix.Errno
		if t.used == 1 {
			r, errno = t.callOne(fd, one, flags)
		} else {
			r, errno = t.callMany(fd, many, flags)
		}
		if errno == unix.EINTR {
			continue
		}
		t.n, t.errno = int(r), errno
		return
	}
}

func (t *transfer) callOne(fd, trap, flags uintptr) (uintptr, unix.Errno) {
	base, size := unsafe.Pointer(t.iov[0].Base), uintptr(t.size)
	if t.size < rawBelow {
		r, _, errno := unix.RawSyscall6(trap, fd, uintptr(base), size, flags, 0, 0)
		return r, errno
	}
	r, _, errno := unix.Syscall6(trap, fd, uintptr(base), size, flags, 0, 0)
	return r, errno
}

func (t *transfer) callMany(fd, trap, flags uintptr) (uintptr, unix.Errno) {
	msg := unix.Msghdr{Iov: &t.iov[0]}
	msg.SetIovlen(t.used)
	if t.size < rawBelow {
		r, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&msg)), flags)
		return r, errno
	}
	r, _, errno := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&msg)), flags)
	return r, errno
}

func (d *direct) tryReadv(bufs [][]byte) (int, error) {
	before := d.member.events.Load()
	moved, err := d.try(&d.rx, bufs, "read", "recv")
	if err != nil || !moved {
		d.member.read(before, errors.Is(err, ErrWouldBlock))
		return 0, err
	}
	d.member.read(before, d.rx.n < d.rx.size)
	orderRead()
	if d.rx.n == 0 {
		if e := d.reset.Load(); e != nil {
			return 0, e
		}
		return 0, io.EOF
	}
	return d.rx.n, nil
}

func (d *direct) tryWritev(bufs [][]byte) (int, error) {
	orderWrite()
	moved, err := d.try(&d.tx, bufs, "write", "send")
	if err != nil || !moved {
		return 0, err
	}
	return d.tx.n, nil
}

// try makes the system call of t with bufs. It returns false without an error if they have no byte. op and call name the operation and
// the system call in errors.
func (d *direct) try(t *transfer, bufs [][]byte, op, call string) (moved bool, err error) {
	if d.closed.Load() {
		return false, net.ErrClosed
	}
	t.load(bufs)
	if t.used == 0 {
		return false, nil
	}
	err = d.raw.Control(t.do)
	t.unload()
	switch {
	case err != nil:
		return false, err
	case t.errno == unix.EAGAIN:
		return false, ErrWouldBlock
	case t.errno != 0:
		return false, d.fail(op, call, t.errno)
	}
	return true, nil
}

// fail returns errno as net's errors look. It keeps the first one for readers,
// except for EPIPE, which also follows from this end's own CloseWrite.
func (d *direct) fail(op, call string, errno unix.Errno) error {
	e := &net.OpError{
		Op: op, Net: "tcp", Source: d.local, Addr: d.remote,
		Err: os.NewSyscallError(call, errno),
	}
	if errno != unix.EPIPE {
		d.reset.CompareAndSwap(nil, e)
	}
	return e
}
