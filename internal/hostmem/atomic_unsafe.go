package hostmem

import (
	"sync/atomic"
	"unsafe"
)

// word64 returns the 64-bit word at the start of b, or nil if b is shorter than
// 8 bytes or its address is not a multiple of 8. An unaligned word can straddle
// two cache lines, where processors other than amd64 fault and amd64 locks the
// bus.
func word64(b []byte) *uint64 {
	if len(b) < 8 || Addr(b)%8 != 0 {
		return nil
	}
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// word32 is word64 for 4 bytes.
func word32(b []byte) *uint32 {
	if len(b) < 4 || Addr(b)%4 != 0 {
		return nil
	}
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Load64 atomically reads the 64-bit word at the start of b, in host byte order
// and with acquire semantics. ok is false, and nothing was read, if b is shorter
// than 8 bytes or not aligned to 8.
func Load64(b []byte) (v uint64, ok bool) {
	p := word64(b)
	if p == nil {
		return 0, false
	}
	return atomic.LoadUint64(p), true
}

// Store64 atomically writes v to the 64-bit word at the start of b, in host byte
// order and with release semantics. It reports false, and writes nothing, if b
// is shorter than 8 bytes or not aligned to 8.
func Store64(b []byte, v uint64) bool {
	p := word64(b)
	if p == nil {
		return false
	}
	atomic.StoreUint64(p, v)
	return true
}

// Add64 atomically adds delta, wrapping around, to the 64-bit word at the start
// of b and returns the word as it was before. ok is false, and nothing was
// changed, if b is shorter than 8 bytes or not aligned to 8.
func Add64(b []byte, delta uint64) (old uint64, ok bool) {
	p := word64(b)
	if p == nil {
		return 0, false
	}
	return atomic.AddUint64(p, delta) - delta, true
}

// CompareAndSwap64 atomically replaces the 64-bit word at the start of b by swap if it equals compare, and returns the word as it was
// before: the exchange has taken place if and only if old equals compare. ok is false, and nothing was changed, if b is shorter than 8
// bytes or not aligned to 8.
func CompareAndSwap64(b []byte, compare, swap uint64) (old uint64, ok bool) {
	p := word64(b)
	if p == nil {
		return 0, false
	}
	for {
		if atomic.CompareAndSwapUint64(p, compare, swap) {
			return compare, true
		}
		// The word may have become compare since; then the exchange is
		// tried again, because a result of compare means that it has taken place.
		if v := atomic.LoadUint64(p); v != compare {
			return v, true
		}
	}
}

// LoadUint32 atomically reads the 32-bit word at the start of b, in host byte order and with acquire semantics: the reader sees the
// writer's stores before the [StoreUint32] of the value. ok is false, and nothing was read, if b is shorter than 4 bytes or not
// aligned to 4.
//
// A receiver polls memory that a peer writes by LoadUint32. That the peer's last bytes are visible does not mean that earlier ones
// are, unless the device promises so.
func LoadUint32(b []byte) (v uint32, ok bool) {
	p := word32(b)
	if p == nil {
		return 0, false
	}
	return atomic.LoadUint32(p), true
}

// StoreUint32 atomically writes v to the 32-bit word at the start of b, in host
// byte order and with release semantics. It reports false, and writes nothing,
// if b is shorter than 4 bytes or not aligned to 4.
func StoreUint32(b []byte, v uint32) bool {
	p := word32(b)
	if p == nil {
		return false
	}
	atomic.StoreUint32(p, v)
	return true
}
