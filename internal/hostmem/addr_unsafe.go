package hostmem

import "unsafe"

// Number is the set of numeric types with the same size on all platforms. None contains a pointer, so that a peer's bytes may be
// written over its values.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 |
		~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~float32 | ~float64
}

// Addr returns the virtual address of b's first byte, and 0 if b is empty. The
// address stays valid only while the caller keeps b alive and in place: mapped
// memory until [Unmap], Go memory while a [Pin] holds it.
func Addr(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Bytes returns the bytes of s, in the byte order of the host, sharing s's
// backing array. The result has no spare capacity; it is nil if s is empty.
func Bytes[T Number](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	size := int(unsafe.Sizeof(s[0])) * len(s)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), size)
}
