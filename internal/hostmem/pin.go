package hostmem

import (
	"runtime"
	"sync/atomic"
)

// A Pin holds the backing array of a Go slice in place and alive until
// [Pin.Unpin].
//
// The runtime ends the program when a pin is collected before it was undone.
// Therefore a Pin belongs in the table of the protection domain or the engine
// that registered the memory, where it stays reachable for the life of the
// registration; never in the handle alone that the user may forget to close.
type Pin struct {
	pinner   runtime.Pinner
	b        []byte
	released atomic.Bool
}

// PinSlice pins the backing array of b. Slices that overlap, and the same slice
// twice, may be pinned independently. Memory that is not Go's, such as that of
// [Map], needs no pin and gets none; an empty slice has nothing to pin. In all
// cases the result is not nil and wants its Unpin.
func PinSlice(b []byte) *Pin {
	p := &Pin{b: b}
	if len(b) > 0 {
		p.pinner.Pin(&b[0])
	}
	return p
}

// Unpin lets go of the memory. Calls after the first do nothing; it is safe for
// concurrent use. The device must not touch the memory any more.
func (p *Pin) Unpin() {
	if p.released.Swap(true) {
		return
	}
	p.pinner.Unpin()
	p.b = nil
}
