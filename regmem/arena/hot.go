package arena

import (
	"sync/atomic"

	"cinnabar/regmem"
)

// hot is a chunk that is handed out and taken back without the lock: programs often free a block and want one of the same
// size next. It is a chunk in use as far as the heap knows. A goroutine that takes the lock to look at the heap cools it first,
// which makes the heap's record of it true.
//
// All state that changes is in one word: a goroutine hands out or frees the chunk by replacing the word, which succeeds once.
//
//	 63                33 32             9 8      1   0
//	+--------------------+----------------+--------+------+
//	| generation         | entry + 1      | slack  | used |
//	+--------------------+----------------+--------+------+
//
// Slack is how many bytes less than the whole chunk were asked for. 0 stands for no chunk.
type hot struct {
	word  atomic.Uint64
	units atomic.Int32 // size of the chunk; this, off and Arena.hotSource are written before word, and read between two looks at it
	off   atomic.Int64 // of the chunk in its region, in bytes

	since uint32 // generation at which it became hot; guarded by the core's lock
}

const (
	hotUsed  = 1
	hotSlack = 1 // shift of the slack
	hotEntry = 9 // shift of the entry
	hotGen   = 33

	hotMost = 1<<(hotGen-hotEntry) - 2 // largest entry of a hot chunk

	// genMask bounds generations. They grow with each free: a block's second one is found until that many others were freed
	// at its place.
	genMask = 1<<(64-hotGen) - 1

	// hotCount is how often a chunk is freed before the counters are brought up to date.
	hotCount = 1 << 16
)

func hotWord(entry int32, gen uint32) uint64 {
	return uint64(gen)<<hotGen | uint64(entry+1)<<hotEntry
}

// entryOf is the entry of the chunk that the word is about.
func entryOf(word uint64) int32 { return int32(word>>hotEntry&(1<<(hotGen-hotEntry)-1)) - 1 }

// slackOf is how many bytes less than the whole chunk were asked for.
func slackOf(word uint64) int { return int(word >> hotSlack & (unit - 1)) }

// tagOf returns the tag of the chunk's block.
func tagOf(word uint64) uint64 { return tag(entryOf(word), uint32(word>>hotGen)) }

// tag distinguishes a block from others in the same entry of the table.
func tag(entry int32, gen uint32) uint64 { return uint64(gen)<<32 | uint64(uint32(entry)) }

// look returns the word if the chunk is free and of the size for n bytes.
func (h *hot) look(n int) (word uint64, ok bool) {
	word = h.word.Load()
	return word, word != 0 && word&hotUsed == 0 && h.units.Load() == units(n)
}

// take hands out the chunk for n bytes, if nothing has happened since look, and reports whether it did.
func (h *hot) take(word uint64, n int) bool {
	slack := uint64(-n) & (unit - 1)
	return h.word.CompareAndSwap(word, word|slack<<hotSlack|hotUsed)
}

// give frees the chunk if t is the tag of its block, and reports whether it did.
func (h *hot) give(t uint64) bool {
	word := h.word.Load()
	if word&hotUsed == 0 || tagOf(word) != t {
		return false
	}
	free := word>>hotEntry<<hotEntry + 1<<hotGen
	return free>>hotGen%hotCount != 0 && h.word.CompareAndSwap(word, free)
}

// allocHot hands out the hot chunk, if it is the right one. 0 < n <= maxRegion.
func (a *Arena[R]) allocHot(n int) (b regmem.Block[R], ok bool) {
	h := &a.core.hot
	word, ok := h.look(n)
	if !ok {
		return b, false
	}
	source, off := a.hotSource.Load(), int(h.off.Load())
	if !h.take(word, n) { // and source and off may be another's
		return b, false
	}
	return regmem.NewBlock(source, off, n, tagOf(word)), true
}

// heatLocked makes chunk i, which was handed out for b, the hot one.
//
// +checklocks:a.core.mu
func (a *Arena[R]) heatLocked(i int32, b regmem.Block[R]) {
	c := &a.core
	if i > hotMost {
		return
	}
	c.coolLocked()
	k := &c.heap.chunks[i]
	c.hot.units.Store(k.size)
	c.hot.off.Store(int64(b.Offset()))
	c.hot.since = k.gen
	a.hotSource.Store(a.sources[k.region])
	slack := uint64(int(k.size)<<unitShift - k.asked)
	c.hot.word.Store(hotWord(i, k.gen) | slack<<hotSlack | hotUsed)
}

// coolLocked makes the hot chunk an ordinary one.
//
// +checklocks:c.mu
func (c *core) coolLocked() {
	if c.hot.word.Load() == 0 {
		return
	}
	word := c.hot.word.Swap(0)
	i := entryOf(word)
	k := &c.heap.chunks[i]
	k.gen = uint32(word >> hotGen)
	cycles := uint64((k.gen - c.hot.since) & genMask)
	c.allocs += cycles
	c.frees += cycles
	if word&hotUsed != 0 {
		asked := int(k.size)<<unitShift - slackOf(word)
		c.requested += int64(asked - k.asked)
		k.asked = asked
		return
	}
	c.allocs--
	c.requested -= int64(k.asked)
	c.heap.give(i)
}
