package xfer

import (
	"hash/crc32"

	"cinnabar/verbs"
)

// act does one action. Posts of writes and messages are collected; whatever must
// not overtake them, or be overtaken, flushes first.
func (s *session) act(a *action) error {
	switch a.kind {
	case actWrite:
		return s.write(a)
	case actSend:
		s.note(Step{Op: OpSend, Slot: none, Message: a.label})
		return s.link.stageMessage(a.msg, a.slot)
	case actAdvance:
		s.advance(a.n)
		return nil
	default: // in turn, below
	}
	if err := s.link.flush(); err != nil {
		return err
	}
	switch a.kind {
	case actReceive:
		return s.receive(a.slot)
	case actOpen:
		s.result.Name = string(a.msg)
		s.disk.jobs <- action{kind: actOpen, msg: []byte(s.result.Name)}
	case actRead, actStore, actCommit:
		if a.n > 0 {
			s.result.Chunks++
		}
		if err := s.check(a); err != nil {
			s.results <- event{kind: evStored, slot: a.slot, err: err}
			return nil
		}
		s.disk.jobs <- *a
	case actHash, actSum:
		s.digest.jobs <- *a
	case actFinish:
		s.finish(a.err)
	default: // those that are collected
	}
	return nil
}

// write stages a write of a data buffer.
func (s *session) write(a *action) error {
	offset := a.slot * s.agreed.chunk
	if a.msg != nil {
		copy(s.link.data.Bytes()[offset:][:s.agreed.chunk], a.msg)
	}
	s.note(Step{Op: OpWrite, Slot: a.slot, Bytes: a.n})
	wr := verbs.SendWR{ID: writeID(a.slot), Op: verbs.OpWrite, Remote: a.remote}
	if a.hasImm {
		wr.Op, wr.Imm, wr.Flags = verbs.OpWriteImm, a.imm, verbs.Signaled
	}
	s.link.stage(wr, s.link.data, offset, a.n)
	return nil
}

// check compares the checksum of a chunk that is to be stored. It is done here
// rather than by the disk's lane, which has more to do than anybody else.
func (s *session) check(a *action) error {
	if !a.checked {
		return nil
	}
	b := s.link.data.Bytes()[a.slot*s.agreed.chunk:][:a.n]
	if sum := crc32.Checksum(b, castagnoli); sum != a.crc {
		return failf(CodeCorrupt, "the chunk at offset %d has CRC32C %08x here and %08x at the sender", a.offset, sum, a.crc)
	}
	return nil
}

func (s *session) receive(slot int) error {
	entries := 1
	if s.link.bare {
		entries = 0
	}
	s.note(Step{Op: OpPostReceive, Slot: none, Entries: entries})
	return s.link.postReceive(slot)
}

func (s *session) advance(n int) {
	s.result.Size += int64(n)
	if s.started {
		s.progress.Advance(int64(n))
	}
}

func (s *session) finish(err error) {
	s.finished, s.failure = true, err
	s.note(Step{Op: OpFinish, Slot: none})
}

func (s *session) note(st Step) {
	if s.trace != nil {
		s.trace(st)
	}
}
