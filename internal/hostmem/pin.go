package hostmem

import (
	"runtime"
	"sync/atomic"
)

// A Pin holds the backing array of a Go slice in place and alive until [Pin.Unpin].
//
// The runtime ends the program if a Pin is collected before Unpin. Therefore the protection domain or the engine that has registered
// the memory keeps the Pin in its table for the life of the registration. A handle alone must not keep it, because the user may forget
// to close the handle.
type Pin struct {
	pinner   runtime.Pinner
	b        []byte
	released atomic.Bool
}

// PinSlice pins the backing array of b. Slices that overlap, and the same slice twice, may be pinned independently. Memory outside the
// Go heap, such as that of [Map], and empty slices need no pin and get none. In all cases the result is not nil, and the caller must
// call Unpin.
func PinSlice(b []byte) *Pin {
	p := &Pin{b: b}
	if len(b) > 0 {
		p.pinner.Pin(&b[0])
	}
	return p
}

// Unpin releases the memory. Calls after the first do nothing; it is safe for concurrent use. The device must not access the memory
// any more.
func (p *Pin) Unpin() {
	if p.released.Swap(true) {
		return
	}
	p.pinner.Unpin()
	p.b = nil
}
