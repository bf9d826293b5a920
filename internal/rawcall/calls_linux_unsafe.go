//go:build linux

package rawcall

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read is read(2) of a non-blocking descriptor. It fails with EAGAIN if nothing can be read.
func Read(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return result(n, errno)
}

// Write is write(2) to a descriptor on which write(2) does not block.
func Write(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return result(n, errno)
}

// Events is epoll_wait(2) without a wait. It stores the present events of an epoll set in events, which is not empty, and returns their number.
func Events(set int, events []unix.EpollEvent) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(set), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return result(n, errno)
}

// result returns the number 0 after an error.
func result(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
