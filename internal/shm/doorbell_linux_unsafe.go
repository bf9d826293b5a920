//go:build linux

package shm

import (
	"structs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iocb is the kernel's struct iocb (include/uapi/linux/aio_abi.h). Of its two words of 32 bits that change places with the
// byte order both are 0 here.
type iocb struct {
	_ structs.HostLayout

	data   uint64
	key    [2]uint32
	opcode uint16
	prio   int16
	fd     uint32
	buf    uint64
	bytes  uint64
	offset int64
	_      uint64
	flags  uint32
	resFD  uint32
}

const (
	opWrite   = 1 // IOCB_CMD_PWRITE
	flagResFD = 1 // IOCB_FLAG_RESFD: the eventfd resFD gets 1 when the operation is complete
)

// ioEvent is the kernel's struct io_event: the result of an operation.
type ioEvent [4]uint64

// These system calls bypass the scheduler (RawSyscall), because none of them waits for another process.

// ioSetup makes a context for n operations.
func ioSetup(n int) (ctx uintptr, err error) {
	_, _, errno := unix.RawSyscall(unix.SYS_IO_SETUP, uintptr(n), uintptr(unsafe.Pointer(&ctx)), 0)
	if errno != 0 {
		return 0, errno
	}
	return ctx, nil
}

// ioSubmit begins one operation.
func ioSubmit(ctx uintptr, cb *iocb) error {
	_, _, errno := unix.RawSyscall(unix.SYS_IO_SUBMIT, ctx, 1, uintptr(unsafe.Pointer(&cb)))
	if errno != 0 {
		return errno
	}
	return nil
}

// ioReap takes the events of operations that are complete.
func ioReap(ctx uintptr, events []ioEvent) {
	var now unix.Timespec
	_, _, _ = unix.RawSyscall6(unix.SYS_IO_GETEVENTS, ctx, 0, uintptr(len(events)),
		uintptr(unsafe.Pointer(&events[0])), uintptr(unsafe.Pointer(&now)), 0) // the next call reaps the events that are left
}
