//go:build linux

package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Signal adds n to an eventfd. It tells the runtime nothing of the system call, since that never waits: fd must not
// block (EFD_NONBLOCK).
func Signal(fd int, n uint64) error {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&n)), unsafe.Sizeof(n))
	if errno != 0 {
		return errno
	}
	return nil
}
