package shm

import (
	"strconv"
	"sync/atomic"
	"unsafe"
)

// Uint32 returns the word at off of b, which is part of a region. It panics if the word does not lie within b or is not
// aligned: offsets are ours, never a peer's.
func Uint32(b []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(word(b, off, 4))
}

// Uint64 is Uint32 for words of 64 bits.
func Uint64(b []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(word(b, off, 8))
}

// word returns the address of size bytes at off.
func word(b []byte, off, size int) unsafe.Pointer {
	if off < 0 || off > len(b)-size {
		panic("shm: word of " + strconv.Itoa(size) + " bytes at offset " + strconv.Itoa(off) + " of " + strconv.Itoa(len(b)))
	}
	p := unsafe.Pointer(&b[off])
	if uintptr(p)%uintptr(size) != 0 {
		panic("shm: word at offset " + strconv.Itoa(off) + " is not aligned to " + strconv.Itoa(size))
	}
	return p
}

// contains reports whether the address lies in b.
func contains(b []byte, addr uintptr) bool {
	base := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return addr >= base && addr-base < uintptr(len(b))
}
