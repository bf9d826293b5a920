package hg

import "sync/atomic"

// opState is the whole state of a [Call] or a [Transfer] in one word, so that each step is one atomic operation and takes no lock:
//
//	bits 0-7    holds: Start, each operation of the transport in flight, and each goroutine that works on the object have one.
//	            The step that gives up the last hold ends the object.
//	bits 8-9    phase, see below
//	bits 10-15  operations of the transport that are in flight
//	bits 16-31  flags
//	bits 32-63  how often the object was started: a goroutine that comes late sees by it that the object is another call by now
//
//	pooled --prepare--> idle --begin--> started --finish--> done --retire--> pooled
//	                      |                                                ^
//	                      +------------------- retire ---------------------+
//
// Fields that go with a flag (a failure, a cause) are written by the goroutine that set the flag and that has a hold. They are read
// after the last hold is gone, so that the word orders the accesses. They are cleared before prepare, because from begin on another
// goroutine may set the flag.
type opState struct{ word atomic.Uint64 }

// stateWord is a value of an [opState].
type stateWord uint64

const (
	oneHold   stateWord = 1
	holdsMask stateWord = 0xFF

	phaseMask    stateWord = 3 << 8
	phasePooled  stateWord = 0 << 8 // in a pool
	phaseIdle    stateWord = 1 << 8 // with its owner, not started
	phaseStarted stateWord = 2 << 8 // with holds
	phaseDone    stateWord = 3 << 8 // the owner may read the result

	opSend    stateWord = 1 << 10 // the request of a call is being sent
	opReceive stateWord = 1 << 11 // the response of a call, or the acknowledgement of a one-way call, is awaited
	opPull    stateWord = 1 << 12 // the overflow of the response is being pulled
	opAck     stateWord = 1 << 13 // the acknowledgement of the response's overflow is being sent
	opMove    stateWord = 1 << 14 // the operation of a transfer
	opsMask   stateWord = 0x3F << 10

	flagSucceeded  stateWord = 1 << 16 // the result is success, whatever happens from now on
	flagFailed     stateWord = 1 << 17 // the first failure is recorded
	flagCancelled  stateWord = 1 << 18 // the object was cancelled
	flagFreed      stateWord = 1 << 19 // the owner gave the object back before its end
	flagLaunched   stateWord = 1 << 20 // the request of a call was handed to the transport
	flagWithTarget stateWord = 1 << 21 // the target of a call to the own address has a hold
	flagAckMissing stateWord = 1 << 22 // the acknowledgement of a one-way call's overflow did not come in time
	flagsMask      stateWord = 0xFFFF << 16

	sequenceShift           = 32
	oneSequence   stateWord = 1 << sequenceShift
)

func (w stateWord) phase() stateWord { return w & phaseMask }
func (w stateWord) holds() stateWord { return w & holdsMask }
func (w stateWord) ops() stateWord   { return w & opsMask }
func (w stateWord) sequence() uint32 { return uint32(w >> sequenceShift) }

// has reports whether at least one of bits is set.
func (w stateWord) has(bits stateWord) bool { return w&bits != 0 }

func (s *opState) load() stateWord { return stateWord(s.word.Load()) }

func (s *opState) swap(old, to stateWord) bool { return s.word.CompareAndSwap(uint64(old), uint64(to)) }

// prepare moves a pooled or new object to phaseIdle.
func (s *opState) prepare() { s.word.Store(uint64(s.load()&^phaseMask | phaseIdle)) }

// begin starts an idle object with one hold and no flags. It reports false if the object is not idle.
func (s *opState) begin() bool {
	old := s.load()
	return old.phase() == phaseIdle && s.swap(old, (old&^(holdsMask|phaseMask|opsMask|flagsMask)|phaseStarted|oneHold)+oneSequence)
}

// take adds n holds and sets bits, unless the object is cancelled or has failed.
func (s *opState) take(bits stateWord, n int) bool {
	for {
		old := s.load()
		if old.has(flagCancelled | flagFailed) {
			return false
		}
		if s.swap(old, (old|bits)+stateWord(n)) {
			return true
		}
	}
}

// hold adds a hold and sets bits that are not set. The caller has another hold.
func (s *opState) hold(bits stateWord) { s.word.Add(uint64(bits + oneHold)) }

// drop gives up a hold and clears bits that are set. It reports whether the hold was the last one: then the caller ends the object.
func (s *opState) drop(bits stateWord) (last bool) {
	return stateWord(s.word.Add(-uint64(bits+oneHold))).holds() == 0
}

// set sets flag unless flag or one of others is set, and reports whether it did. It returns the word before. The caller has a hold.
func (s *opState) set(flag, others stateWord) (old stateWord, ok bool) {
	for {
		old = s.load()
		if old.has(flag | others) {
			return old, false
		}
		if s.swap(old, old|flag) {
			return old, true
		}
	}
}

// clear clears bits. The caller has a hold.
func (s *opState) clear(bits stateWord) { s.word.And(^uint64(bits)) }

// claim sets flag and adds a hold for a caller that has none, unless the object is at its end or not started, or flag is set. With
// flagWithTarget the hold of a call's target passes to the caller.
func (s *opState) claim(flag stateWord) (old stateWord, ok bool) {
	for {
		old = s.load()
		if old.phase() != phaseStarted || old.holds() == 0 || old.has(flag) {
			return old, false
		}
		to := old | flag
		if !old.has(flagWithTarget) {
			to += oneHold
		}
		if s.swap(old, to&^flagWithTarget) {
			return old, true
		}
	}
}

// claimOf is claim for a caller that knows the object as it was at its start number sequence.
func (s *opState) claimOf(sequence uint32, flag stateWord) bool {
	for {
		old := s.load()
		if old.sequence() != sequence || old.phase() != phaseStarted || old.holds() == 0 {
			return false
		}
		if s.swap(old, (old|flag)+oneHold) {
			return true
		}
	}
}

// claimTarget takes over the hold of the target of a call to the own address. It reports false if the call that was started as number
// sequence does not wait for its target any more.
func (s *opState) claimTarget(sequence uint32) bool {
	for {
		old := s.load()
		if old.sequence() != sequence || !old.has(flagWithTarget) {
			return false
		}
		if s.swap(old, old&^flagWithTarget) {
			return true
		}
	}
}

// finish moves an object without holds to phaseDone. It reports whether the owner had freed it before.
func (s *opState) finish() (freed bool) {
	return stateWord(s.word.Or(uint64(phaseDone))).has(flagFreed) // phaseDone has the bits of phaseStarted
}

// free is what the owner does with an object that it gives back: an object that was started and has not ended gets flagFreed. It
// returns the phase in which the object was.
func (s *opState) free() stateWord {
	for {
		old := s.load()
		if old.phase() != phaseStarted || s.swap(old, old|flagFreed) {
			return old.phase()
		}
	}
}

// retire moves an object to phasePooled.
func (s *opState) retire() {
	s.word.Store(uint64(s.load() &^ (holdsMask | phaseMask | opsMask | flagsMask)))
}
