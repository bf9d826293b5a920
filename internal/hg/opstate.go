package hg

import "sync/atomic"

// opState is the whole state of a [Call] or a [Transfer] in one word, so that each step is one atomic operation and takes no lock:
//
//	bits 0-7    number of holds: Start, each operation of the transport in flight, and each goroutine that works on the object
//	            have one. The goroutine that drops the last hold ends the object.
//	bits 8-9    phase, see below
//	bits 10-15  one bit for each operation of the transport in flight
//	bits 16-31  flags
//	bits 32-63  sequence: the number of starts. A goroutine compares it with the sequence that it knows, because the object
//	            may have been recycled for another call since.
//
//	pooled --prepare--> idle --begin--> started --finish--> done --retire--> pooled
//	                      |                                                ^
//	                      +------------------- retire ---------------------+
//
// Each method is one transition of the word. A method that finds another state than the one in the table changes nothing and returns
// false, except that the owner's methods (prepare, finish, retire) are called in the right state only:
//
//	method       phase             holds  bits
//	prepare      pooled -> idle
//	begin        idle -> started   1      none; sequence + 1
//	take         any               + n    sets bits, unless flagCancelled or flagFailed is set
//	hold         started           + 1    sets bits
//	drop         started           - 1    clears bits; the last hold ends the object
//	set          started                  sets a flag, unless it or another of a list is set
//	clear        started                  clears bits
//	claim        started, held     + 1    sets a flag that is clear; takes the target's hold instead of a new one, if there is one
//	claimOf      started, held     + 1    sets a flag, if the sequence is still the same
//	claimTarget  any                      clears flagWithTarget: its hold is the caller's, if the sequence is still the same
//	finish       started -> done
//	free         started                  sets flagFreed
//	retire       idle, done -> pooled  0  clears all
//
// The goroutine that sets a flag writes the fields that belong to it (Call.failure, Call.cancel) while it has a hold. These fields are
// read after the last hold is dropped, because the atomic operations on the word order the write before the read.
// They are cleared before prepare, because from begin on another goroutine may set the flag.
type opState struct{ word atomic.Uint64 }

// stateWord is a value of an [opState].
type stateWord uint64

const (
	oneHold   stateWord = 1
	holdsMask stateWord = 0xFF

	phaseMask    stateWord = 3 << 8
	phasePooled  stateWord = 0 << 8 // the object is in a pool
	phaseIdle    stateWord = 1 << 8 // the owner has the object and has not started it
	phaseStarted stateWord = 2 << 8 // the object has holds, or is about to end
	phaseDone    stateWord = 3 << 8 // the owner may read the result

	opSend    stateWord = 1 << 10 // the request of a call is being sent
	opReceive stateWord = 1 << 11 // the response of a call, or the acknowledgement of a one-way call, is awaited
	opPull    stateWord = 1 << 12 // the overflow of the response is being pulled
	opAck     stateWord = 1 << 13 // the acknowledgement of the response's overflow is being sent
	opMove    stateWord = 1 << 14 // the network moves the bytes of a transfer
	opsMask   stateWord = 0x3F << 10

	flagSucceeded  stateWord = 1 << 16 // the result is success, and later failures do not change it
	flagFailed     stateWord = 1 << 17 // the first failure is recorded
	flagCancelled  stateWord = 1 << 18 // the object was cancelled
	flagFreed      stateWord = 1 << 19 // the owner freed the object before its end
	flagLaunched   stateWord = 1 << 20 // the request of a call was handed to the transport
	flagWithTarget stateWord = 1 << 21 // a call to the own address: the target, which is the handler's side, has a hold
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

// begin starts an idle object with one hold and no flags. It returns false if the object is not idle.
func (s *opState) begin() bool {
	old := s.load()
	return old.phase() == phaseIdle && s.swap(old, (old&^(holdsMask|phaseMask|opsMask|flagsMask)|phaseStarted|oneHold)+oneSequence)
}

// take adds n holds and sets bits. It returns false and changes nothing if the object is cancelled or has failed.
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

// hold adds a hold and sets bits, which must be clear. The caller has a hold already.
func (s *opState) hold(bits stateWord) { s.word.Add(uint64(bits + oneHold)) }

// drop gives up a hold of the caller and clears bits, which must be set. If it returns true, the hold was the last one, and the caller
// ends the object.
func (s *opState) drop(bits stateWord) (last bool) {
	return stateWord(s.word.Add(-uint64(bits+oneHold))).holds() == 0
}

// set sets flag, unless flag or a bit of others is set, and reports whether it did. old is the word before. The caller has a hold.
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

// claim gives the caller, which has no hold, one and sets flag. It refuses if the object is not started, has no hold left, or has flag
// already. If flagWithTarget is set, claim clears it, and the target's hold becomes the caller's.
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

// claimOf adds a hold for the caller and sets flag, if the object is started, has a hold and has not been started again since sequence.
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

// claimTarget clears flagWithTarget, so that the target's hold becomes the caller's. It returns false if the flag is clear, or if the
// object has been started again since sequence.
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

// finish moves a started object without holds to phaseDone. It reports whether the owner has freed the object already.
func (s *opState) finish() (freed bool) {
	return stateWord(s.word.Or(uint64(phaseDone))).has(flagFreed) // phaseDone has the bits of phaseStarted
}

// free sets flagFreed if the object is started and has not ended, so that the goroutine that ends it recycles it too. It returns the
// phase of the object. The owner calls free, and does not use the object afterwards.
func (s *opState) free() stateWord {
	for {
		old := s.load()
		if old.phase() != phaseStarted || s.swap(old, old|flagFreed) {
			return old.phase()
		}
	}
}

// retire moves an idle or done object to phasePooled.
func (s *opState) retire() {
	s.word.Store(uint64(s.load() &^ (holdsMask | phaseMask | opsMask | flagsMask)))
}
