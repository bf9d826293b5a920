package hg

import (
	"math/rand/v2"
	"sync/atomic"
)

// tagBlock is how many successive tags are guarded by one counter, a power of two.
const tagBlock = 1 << 20

// tags gives out the numbers by which responses find their calls: 32 bits, counted up and around. No two outstanding
// calls have the same. A number that was in use is not given out again before 2^32 others, or those of its block, so
// that a response which comes after its call has ended meets nobody.
//
// The start is random. Acks of overflow travel under the tag of the peer's request, so two processes that call each
// other should not count in step.
//
// To skip numbers in use without keeping a set of them, the numbers are divided into blocks. A block is entered only when
// no call of the last time around is outstanding in it.
type tags struct {
	last atomic.Uint32
	used [1 << 32 / tagBlock]atomic.Int32
}

func (t *tags) init() { t.last.Store(rand.Uint32()) }

// take returns a free tag; ok is false if each block holds a call that has been outstanding for at least a whole block.
func (t *tags) take() (tag uint32, ok bool) {
	for {
		last := t.last.Load()
		tag, ok = last+1, true
		if tag%tagBlock == 0 {
			tag, ok = t.freeBlock(tag)
		}
		if !ok {
			return 0, false
		}
		if t.last.CompareAndSwap(last, tag) {
			t.used[tag/tagBlock].Add(1)
			return tag, true
		}
	}
}

// freeBlock returns the first tag of the first block, from tag's on, in which nothing is outstanding.
func (t *tags) freeBlock(tag uint32) (uint32, bool) {
	for range t.used {
		if t.used[tag/tagBlock].Load() == 0 {
			return tag, true
		}
		tag += tagBlock
	}
	return 0, false
}

// release gives tag back.
func (t *tags) release(tag uint32) { t.used[tag/tagBlock].Add(-1) }
