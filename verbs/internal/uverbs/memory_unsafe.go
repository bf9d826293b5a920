//go:build linux

package uverbs

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sizeOf returns the number of bytes that a T takes in memory.
func sizeOf[T any]() uint64 {
	var v T
	return uint64(unsafe.Sizeof(v))
}

// view views n values of T, which has no pointers, at the start of mem, which is aligned to 8 bytes; false if mem has no
// room for them. They keep mem alive if it is memory of Go.
func view[T any](mem []byte, n uint32) ([]T, bool) {
	if uint64(n)*sizeOf[T]() > uint64(len(mem)) {
		return nil, false
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), n), true
}

// word views the 4 bytes at an offset of mem, a multiple of 4.
func word(mem []byte, at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[at : at+4][0]))
}

// sgeBytes views entries as bytes; there is at least one.
func sgeBytes(list []SGE) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), len(list)*sgeSize)
}

// memory views n bytes at addr, which the caller of a post vouches for. n is not 0.
func memory(addr uint64, n uint32) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// ioctl is ioctl(2) of the structure in b, to which the kernel may write its answer.
func ioctl(fd int, number uintptr, b []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), number, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	if errno != 0 {
		return errno
	}
	return nil
}
