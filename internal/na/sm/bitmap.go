package sm

import (
	"math/bits"
	"sync/atomic"
)

// Bitmaps of copy buffers and pairs: a bit that is set is free.

// claimTries bounds how often a claim is repeated that others have forestalled.
const claimTries = 64

// claimBit clears the lowest bit that is set and returns its number; -1: none is, for now.
func claimBit(w *atomic.Uint64) int {
	for range claimTries {
		v := w.Load()
		if v == 0 {
			return -1
		}
		i := bits.TrailingZeros64(v)
		if w.CompareAndSwap(v, v&^(1<<i)) {
			return i
		}
	}
	return -1
}

// releaseBit sets bit i.
func releaseBit(w *atomic.Uint64, i int) { w.Or(1 << i) }
