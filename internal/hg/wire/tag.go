package wire

import "sync/atomic"

// tagBlock is the number of successive tags that share one counter, a power of two.
const tagBlock = 1 << 20

// Tags hands out the tags of messages, by which responses find their calls: 32 bits, counted up and around. No two outstanding calls
// have the same tag. A tag that was in use is not handed out again before 2^32 others, or those of its block, so that a response
// that comes after its call has ended finds no other call.
//
// To skip tags in use without a set of them, Tags divides them into blocks. It enters a block only when no call of the last time
// around is outstanding in it.
//
// The zero Tags begins with tag 1. All methods are safe for concurrent use.
type Tags struct {
	last atomic.Uint32
	used [1 << 32 / tagBlock]atomic.Int32
}

// Start sets the tag before the next one. A process starts with a random tag, because acknowledgements of overflow travel under the
// tag of the peer's request, and two processes that call each other should not count in step.
func (t *Tags) Start(last uint32) { t.last.Store(last) }

// Take returns a free tag. ok is false if each block has a call that has been outstanding for at least a whole block.
func (t *Tags) Take() (tag uint32, ok bool) {
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
func (t *Tags) freeBlock(tag uint32) (uint32, bool) {
	for range t.used {
		if t.used[tag/tagBlock].Load() == 0 {
			return tag, true
		}
		tag += tagBlock
	}
	return 0, false
}

// Release makes a tag free that Take has returned.
func (t *Tags) Release(tag uint32) { t.used[tag/tagBlock].Add(-1) }
