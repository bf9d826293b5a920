package sm

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync/atomic"

	"cinnabar/internal/shm"
)

// region is the mapped region of this endpoint or of a peer.
type region struct {
	*shm.Region
	b         []byte
	bufferMap *atomic.Uint64
	commands  commands
	extended  bool // the owner offers the extension
}

func newRegion(m *shm.Region) *region {
	b := m.Bytes()
	return &region{
		Region: m, b: b, bufferMap: shm.Uint64(b, offBufferMap), commands: commands{b[offCommands:offPairMap]},
	}
}

// unlocked returns the value of a free lock (pthread_spinlock_t): glibc counts down from 1 on amd64, and has 0 on other processors.
func unlocked() uint32 {
	if runtime.GOARCH == "amd64" {
		return 1
	}
	return 0
}

// init initialises a region of zeros.
func (r *region) init(ident identity, started uint64) {
	r.initBut(ident, started, [pairWords]uint64{ownPair / 64: 1 << (ownPair % 64)})
}

// initBut is init with the pairs of taken not free. The bitmaps come last.
func (r *region) initBut(ident identity, started uint64, taken [pairWords]uint64) {
	shm.Uint64(r.b, offPID).Store(uint64(uint32(ident.pid)) | uint64(ident.id)<<32)
	for i := range buffers {
		r.lock(i).Store(unlocked())
	}
	for p := range pairs {
		resetRing(r.tx(p), ringSlots)
		resetRing(r.rx(p), ringSlots)
	}
	resetRing(r.commands.b, commandSlots)
	if len(r.b) >= extendedSize {
		shm.Uint64(r.b, offMagic).Store(magic)
		shm.Uint32(r.b, offVersion).Store(extensionVersion)
		shm.Uint64(r.b, offStarted).Store(started)
		if !r.extended { // others may read it while a region is made anew
			r.extended = true
		}
	}
	r.bufferMap.Store(^uint64(0))
	for i := range pairWords {
		r.pairMap(i).Store(^taken[i])
	}
}

// check returns an error unless r looks like the region of ident, and sets extended.
func (r *region) check(ident identity) (err error) {
	defer r.Recover(r.Guard(), &err)
	if got := r.owner(); ident != (identity{}) && got != ident {
		return fmt.Errorf("%s is the region of process %d, endpoint %d", r.Name(), got.pid, got.id)
	}
	for _, off := range [...]int{offProdSize, offConsSize} {
		if n := shm.Uint32(r.b, offPairs+off).Load(); n != ringSlots {
			return fmt.Errorf("%s has rings of %d slots, not %d: it is not set up, or of another version", r.Name(), n, ringSlots)
		}
		if n := shm.Uint32(r.commands.b, off).Load(); n != commandSlots {
			return fmt.Errorf("%s has a command ring of %d slots, not %d: it is not set up, or of another version", r.Name(), n, commandSlots)
		}
	}
	r.extended = len(r.b) >= extendedSize && shm.Uint64(r.b, offMagic).Load() == magic &&
		shm.Uint32(r.b, offVersion).Load() == extensionVersion
	return nil
}

// whole reports whether the end of the region is there: it faults, or is zero, if the file was cut off before.
func (r *region) whole() bool {
	if !r.extended {
		return shm.Uint64(r.b, regionSize-8).Load() == 0 // C never writes it
	}
	return shm.Uint64(r.b, offMagic).Load() == magic
}

// owner returns the identity in the region.
func (r *region) owner() identity {
	v := shm.Uint64(r.b, offPID).Load()
	return identity{int32(uint32(v)), uint8(v >> 32)}
}

func (r *region) lock(i int) *atomic.Uint32 { return shm.Uint32(r.b, offLocks+i*lockSize) }

// buffer returns copy buffer i, which is checked.
func (r *region) buffer(i int) []byte {
	return r.b[offBuffers+i*bufferSize:][:bufferSize:bufferSize]
}

// tx and rx are the rings of a pair, named from the client's side.
func (r *region) tx(pair int) []byte { return r.b[offPairs+pair*pairSize:][:pairRx] }
func (r *region) rx(pair int) []byte { return r.b[offPairs+pair*pairSize+pairRx:][:pairSize-pairRx] }

func (r *region) pairMap(word int) *atomic.Uint64 { return shm.Uint64(r.b, offPairMap+word*8) }

// claimPair takes the lowest free pair; -1: there is none.
func (r *region) claimPair() int {
	for w := range pairWords {
		if i := claimBit(r.pairMap(w)); i >= 0 {
			return w*64 + i
		}
	}
	return -1
}

// hasFreePair reports whether claimPair would find a pair.
func (r *region) hasFreePair() bool {
	for w := range pairWords {
		if r.pairMap(w).Load() != 0 {
			return true
		}
	}
	return false
}

// giveUpPair releases a pair that was not announced to the server, or that the server does not use.
func (r *region) giveUpPair(pair int) {
	if r.extended {
		r.claimant(pair).Store(0)
	}
	r.releasePair(pair)
}

func (r *region) releasePair(pair int) { releaseBit(r.pairMap(pair/64), pair%64) }

// claimed reports whether the pair is taken.
func (r *region) claimed(pair int) bool { return r.pairMap(pair/64).Load()>>(pair%64)&1 == 0 }

// drain discards the messages in a ring, and frees their copy buffers.
func (r *region) drain(q *ring) {
	for range ringSlots {
		d, _, ok := q.peek()
		if !ok {
			return
		}
		if d.buffered() && r.bufferMap.Load()>>d.buffer()&1 == 0 {
			r.freeBuffer(d.buffer())
		}
		q.advance()
	}
}

// freeBuffer frees a buffer of a sender that may have died with the buffer's lock, for which a process in C would wait for ever.
func (r *region) freeBuffer(i int) {
	r.lock(i).Store(unlocked())
	releaseBit(r.bufferMap, i)
}

// isClosing reports whether the owner, which is of this package, accepts no new clients.
func (r *region) isClosing() bool { return r.extended && shm.Uint32(r.b, offClosing).Load() != 0 }

func (r *region) setClosing(state uint32) {
	if r.extended {
		shm.Uint32(r.b, offClosing).Store(state)
	}
}

// States of an owner that closes.
const (
	closingRefuses = 1 // no new clients
	closingDone    = 2 // no messages either
)

// Bitmaps of copy buffers and pairs: a bit that is set is free.

// claimTries bounds the repetitions of a claim that other processes have overtaken.
const claimTries = 64

// claimBit clears the lowest bit that is set and returns its number. It returns -1 if none is set, or other processes were faster
// claimTries times.
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
