package hg

import (
	"math/bits"
	"sync"

	"cinnabar/internal/hostmem"
)

// LargePayload is the least size in bytes of a payload in scratch memory. The allocation of fewer bytes costs little.
const LargePayload = 128 << 10

// scratchMost is the largest size in bytes of scratch memory. Larger payloads are rare, and get memory of their own.
const scratchMost = 32 << 20

// scratchSteps is the number of sizes of scratch memory between two powers of 2, so that at most a quarter of the memory has no use.
const scratchSteps = 4

// scratch is memory for a large payload, which a peer or this process pulls. Later payloads use the memory again, because fresh memory of that size costs more time
// than the copy of the payload: the allocator clears it, the system provides each page, and the garbage collector runs for it.
type scratch struct{ b []byte }

// scratches have the released memory of each size class. The garbage collector frees memory that stays unused for two of its cycles.
var scratches [scratchSteps * (bits.UintSize + 1)]sync.Pool

// scratchClass returns the class of memory for n bytes, and its size.
func scratchClass(n int) (class, size int) {
	top := bits.Len(uint(n-1)) - 1 // the highest power of 2 below n
	step := 1 << max(top-bits.Len(scratchSteps)+1, 0)
	part := (n - 1 - 1<<top) / step
	return scratchSteps*top + part, 1<<top + (part+1)*step
}

// takeScratch returns memory for n bytes, with any content, or nil if n is too small or too large for scratch memory.
func takeScratch(n int) *scratch {
	if n < LargePayload || n > scratchMost {
		return nil
	}
	class, size := scratchClass(n)
	if s, ok := scratches[class].Get().(*scratch); ok {
		return s
	}
	return &scratch{hostmem.Uncleared(size)}
}

// release gives the memory back for later payloads. The caller keeps no reference to it. s may be nil.
func (s *scratch) release() {
	if s != nil {
		class, _ := scratchClass(len(s.b))
		scratches[class].Put(s)
	}
}
