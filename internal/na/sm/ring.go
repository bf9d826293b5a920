package sm

import (
	"errors"
	"sync/atomic"

	"cinnabar/internal/shm"
)

// ring is one end of a message ring. Each end belongs to one process, which serializes its use, so this package stores where C uses
// compare-and-swap against other threads. It writes the words that the other end reads in the same order as C (hg_atomic_queue_push,
// hg_atomic_queue_pop_mc).
//
// ring keeps its own positions and only writes them to the region, so a peer that overwrites them harms only itself. It reads the
// position of the other end once for each use and reduces it to an index.
type ring struct {
	at    uint32 // the next slot of this end
	head  *atomic.Uint32
	tail  *atomic.Uint32
	other *atomic.Uint32 // the tail of the other end
	slots []byte
}

const ringMask = ringSlots - 1

// newRing returns the end of the ring in b with the words head and tail at these offsets. It goes on at the position of the tail,
// where the previous user of the end stopped. A user that died between its two stores has left them different, which would stop a
// process in C for ever, so newRing makes them equal.
func newRing(b []byte, head, tail, other int) ring {
	r := ring{
		head: shm.Uint32(b, head), tail: shm.Uint32(b, tail), other: shm.Uint32(b, other),
		slots: b[offSlots:][:ringSlots*slotSize],
	}
	r.at = r.tail.Load() & ringMask
	r.head.Store(r.at)
	r.tail.Store(r.at)
	return r
}

// producer returns the sending end of the ring in b.
func producer(b []byte) ring { return newRing(b, offProdHead, offProdTail, offConsTail) }

// consumer returns the receiving end of the ring in b.
func consumer(b []byte) ring { return newRing(b, offConsHead, offConsTail, offProdTail) }

// full reports whether a producer has no slot left. One slot always stays empty.
func (r *ring) full() bool { return (r.at+1)&ringMask == r.other.Load()&ringMask }

// waiting returns the number of messages that the other end has not taken.
func (r *ring) waiting() int { return int((r.at - r.other.Load()) & ringMask) }

// push publishes d in the slot r.at. The ring is not full.
func (r *ring) push(d descriptor) {
	h := r.at
	r.at = (h + 1) & ringMask
	r.head.Store(r.at)
	shm.Uint64(r.slots, int(h)*slotSize).Store(uint64(d))
	r.tail.Store(r.at)
}

// empty reports whether a consumer finds no message.
func (r *ring) empty() bool { return r.at == r.other.Load()&ringMask }

// peek returns the oldest message and its slot. The message stays in the ring until the caller has read the bytes of the slot and
// calls advance.
func (r *ring) peek() (d descriptor, slot int, ok bool) {
	if r.empty() {
		return 0, 0, false
	}
	return descriptor(shm.Uint64(r.slots, int(r.at)*slotSize).Load()), int(r.at), true
}

// advance frees the slot of the oldest message.
func (r *ring) advance() {
	r.at = (r.at + 1) & ringMask
	r.head.Store(r.at)
	r.tail.Store(r.at)
}

// resetRing makes the ring in b, of n slots, empty.
func resetRing(b []byte, n int) {
	for _, off := range [...]int{offProdHead, offProdTail, offConsHead, offConsTail} {
		shm.Uint32(b, off).Store(0)
	}
	for _, off := range [...]int{offProdSize, offConsSize} {
		shm.Uint32(b, off).Store(uint32(n))
	}
	for _, off := range [...]int{offProdMask, offConsMask} {
		shm.Uint32(b, off).Store(uint32(n - 1))
	}
	shm.Uint64(b, offProdMask+4).Store(0) // the count of drops
}

// commands is the command ring of a region: the only one that several processes produce into.
type commands struct{ b []byte }

const commandMask = commandSlots - 1

// Results of a push.
var (
	errFull  = errors.New("the command ring is full")
	errStuck = errors.New("a process has stopped while it wrote to the command ring")
)

// commandSpins bounds the rounds in which a producer waits for others to publish their commands.
const commandSpins = 1 << 10

// push adds a command. It claims a slot only when all slots before it are published, so it never has to wait for another producer
// after that. A producer that gave up with a claimed slot would stop all others for ever, as a process in C does that dies there.
func (q commands) push(c command) error {
	head, tail, other := shm.Uint32(q.b, offProdHead), shm.Uint32(q.b, offProdTail), shm.Uint32(q.b, offConsTail)
	for range commandSpins {
		h := head.Load()
		at, next := h&commandMask, (h+1)&commandMask
		if next == other.Load()&commandMask {
			return errFull
		}
		if tail.Load() != h || !head.CompareAndSwap(h, next) {
			shm.Pause(1)
			continue
		}
		q.slot(at).Store(uint64(c))
		tail.Store(next)
		return nil
	}
	return errStuck
}

// pop takes the oldest command. Only the poller of the region's owner calls it.
func (q commands) pop() (command, bool) {
	head, tail := shm.Uint32(q.b, offConsHead), shm.Uint32(q.b, offConsTail)
	at := tail.Load() & commandMask
	if at == shm.Uint32(q.b, offProdTail).Load()&commandMask {
		return 0, false
	}
	c := command(q.slot(at).Load())
	head.Store((at + 1) & commandMask)
	tail.Store((at + 1) & commandMask)
	return c, true
}

// waiting reports whether there is a command to pop.
func (q commands) waiting() bool {
	return shm.Uint32(q.b, offConsTail).Load()&commandMask != shm.Uint32(q.b, offProdTail).Load()&commandMask
}

func (q commands) slot(i uint32) *atomic.Uint64 {
	return shm.Uint64(q.b, offSlots+int(i&commandMask)*slotSize)
}
