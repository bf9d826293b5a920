package xfer

import (
	"cinnabar/verbs"
)

// tell is stepLocked for whoever does not hold the lock, as lanes do.
func (s *session) tell(ev event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepLocked(ev)
	if s.finished || s.broken != nil {
		select {
		case s.wake <- struct{}{}:
		default: // it will wake anyway
		}
	}
}

// stepLocked tells the machine about ev and does what it wants. When something
// cannot be posted the connection is as good as over, but the peer may have said why:
// the next polls will tell. The lanes get their jobs all the same, since a machine
// whose file is to get its name waits for nothing else.
//
// +checklocks:s.mu
func (s *session) stepLocked(ev event) {
	if s.finished {
		return
	}
	s.moved = true
	s.observeLocked(&ev)
	s.acts = s.machine.step(ev, s.acts[:0])
	for i := range s.acts {
		s.breaksLocked(s.actLocked(&s.acts[i]))
	}
	s.breaksLocked(s.link.flush())
}

// breaksLocked takes note of the first failure of the connection.
//
// +checklocks:s.mu
func (s *session) breaksLocked(err error) {
	if s.broken == nil {
		s.broken = err
	}
}

// observeLocked takes note of what the lanes have done.
//
// +checklocks:s.mu
func (s *session) observeLocked(ev *event) {
	if ev.err != nil {
		return
	}
	switch ev.kind {
	case evRead:
		s.note(Step{Op: OpRead, Slot: ev.slot, Bytes: ev.n})
	case evStored:
		s.note(Step{Op: OpStore, Slot: ev.slot, Bytes: ev.n})
	case evHashed:
		s.note(Step{Op: OpHash, Slot: ev.slot, Bytes: ev.n})
	case evSummed:
		s.result.Sum = ev.sum
	case evOpened:
		s.note(Step{Op: OpOpen, Slot: none, Message: s.result.Name})
		s.beginLocked()
	case evCommitted:
		s.note(Step{Op: OpCommit, Slot: none})
	default: // the others are noted elsewhere
	}
}

// begin sets what is known of the transfer before run. A sender's begins now, a
// receiver's when the file is made.
func (s *session) begin(r Result, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = r
	if now {
		s.beginLocked()
	}
}

// observer returns the observer if it was told that a transfer begins.
func (s *session) observer() Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return nil
	}
	return s.progress
}

// beginLocked tells the observer what begins.
//
// +checklocks:s.mu
func (s *session) beginLocked() {
	if s.progress == nil {
		return
	}
	s.started = true
	r := s.result
	r.Size = s.agreed.size
	s.progress.Start(r)
}

// actLocked does one action. Posts of writes and messages are collected; whatever
// must not overtake them, or be overtaken, flushes first. Nothing is posted on a
// connection that is broken.
//
// +checklocks:s.mu
func (s *session) actLocked(a *action) error {
	switch a.kind {
	case actWrite, actSend, actReceive:
		if s.broken != nil {
			return nil
		}
		return s.postLocked(a)
	case actAdvance:
		s.advanceLocked(a.n)
		return nil
	default: // in turn, below
	}
	err := s.link.flush()
	switch a.kind {
	case actFinish: // with its own reason, even if the last words cannot be said
		s.finished, s.failure = true, a.err
		s.note(Step{Op: OpFinish, Slot: none})
	case actHash, actSum:
		s.digest.jobs <- *a
	default:
		s.diskLocked(a)
	}
	return err
}

// postLocked does an action that the peer will notice.
//
// +checklocks:s.mu
func (s *session) postLocked(a *action) error {
	switch a.kind {
	case actWrite:
		s.write(a)
		return nil
	case actSend:
		s.note(Step{Op: OpSend, Slot: none, Message: a.label})
		return s.link.stageMessage(a.msg, a.slot)
	default: // actReceive, which comes before what provokes the message
		if err := s.link.flush(); err != nil {
			return err
		}
		return s.receive(a.slot)
	}
}

// diskLocked gives the disk's lane a job.
//
// +checklocks:s.mu
func (s *session) diskLocked(a *action) {
	if a.kind == actOpen {
		s.named = true
		s.result.Name = string(a.msg)
		s.disk.jobs <- action{kind: actOpen, msg: []byte(s.result.Name)}
		return
	}
	if a.n > 0 {
		s.result.Chunks++
	}
	if a.checked { // here, because the disk's lane has more to do than anybody else
		a.err = check(s.link.data.Bytes()[a.slot*s.agreed.chunk:][:a.n], a)
	}
	s.disk.jobs <- *a
}

// write stages a write of a data buffer.
func (s *session) write(a *action) {
	offset := a.slot * s.agreed.chunk
	if a.msg != nil {
		copy(s.link.data.Bytes()[offset:][:s.agreed.chunk], a.msg)
	}
	s.note(Step{Op: OpWrite, Slot: a.slot, Bytes: a.n})
	// The message behind a write without immediate data frees the buffer. The write is signaled all the same: siw sends
	// those that are not from the very pages, which TCP may still need when the message is done.
	wr := verbs.SendWR{ID: idWrite, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: a.remote}
	if a.hasImm {
		wr.ID, wr.Op, wr.Imm = writeID(a.slot), verbs.OpWriteImm, a.imm
	}
	s.link.stage(wr, s.link.data, offset, a.n)
}

// receive posts the receive of a slot.
func (s *session) receive(slot int) error {
	entries := 1
	if s.link.bare {
		entries = 0
	}
	s.note(Step{Op: OpPostReceive, Slot: none, Entries: entries})
	return s.link.postReceive(slot)
}

// +checklocks:s.mu
func (s *session) advanceLocked(n int) {
	s.result.Size += int64(n)
	if s.started {
		s.progress.Advance(int64(n))
	}
}

func (s *session) note(st Step) {
	if s.trace != nil {
		s.trace(st)
	}
}
