package xfer

import (
	"cinnabar/verbs"
)

// step is stepLocked for callers that do not hold the lock, such as workers.
func (s *session) step(ev event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepLocked(ev)
	if s.finished || s.connErr != nil {
		s.wakeRun()
	}
}

// wakeRun makes run look at the state of the machine.
func (s *session) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default: // it will wake anyway
	}
}

// stepLocked delivers ev to the machine and carries out the machine's actions. A post that
// fails does not end the transfer at once, because a message of the peer with the reason may
// be in the completion queue. The workers get their jobs all the same, because a machine
// in state committing waits only for the disk.
//
// +checklocks:s.mu
func (s *session) stepLocked(ev event) {
	if s.finished {
		return
	}
	s.moved = true
	s.advanced = s.advanced || s.working == 0 || !ev.saysWork()
	s.observeLocked(&ev)
	s.acts = s.machine.step(ev, s.acts[:0])
	for i := range s.acts {
		s.connFailedLocked(s.actLocked(&s.acts[i]))
	}
	s.connFailedLocked(s.res.flush())
}

// connFailedLocked notes the first failure of the connection.
//
// +checklocks:s.mu
func (s *session) connFailedLocked(err error) {
	if s.connErr == nil {
		s.connErr = err
	}
}

// observeLocked traces the work that the workers have done.
//
// +checklocks:s.mu
func (s *session) observeLocked(ev *event) {
	if ev.err != nil {
		return
	}
	switch ev.kind {
	case evRead:
		if s.agreed.protocol == Fast { // the basic protocol notes the step in write
			s.note(Step{Op: OpRead, Slot: ev.slot, Bytes: ev.n})
		}
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

// begin sets the result so far, before run. With now it also calls the observer's Start, as a
// sender does; a receiver does so when the file is made.
func (s *session) begin(r Result, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = r
	if now {
		s.beginLocked()
	}
}

// setLanes makes the session the first lane of a transfer of n lanes. The disk's worker calls it when the file of a pull is open, because the size of the file is not known before.
func (s *session) setLanes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result.Lanes, s.spread = n, func(int64) {}
}

// observer returns the observer if its Start was called.
func (s *session) observer() Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return nil
	}
	return s.progress
}

// beginLocked calls the observer's Start.
//
// +checklocks:s.mu
func (s *session) beginLocked() {
	if s.progress == nil {
		return
	}
	s.started = true
	r := s.result
	r.Size = s.fileSizeLocked()
	s.progress.Start(r)
}

// fileSizeLocked returns the size of the file, as far as it is known.
//
// +checklocks:s.mu
func (s *session) fileSizeLocked() int64 {
	if m, ok := s.machine.(interface{ fileSize() int64 }); ok { // the agreement of a pull has no size
		return m.fileSize()
	}
	return s.agreed.size
}

// actLocked does one action. Posts of writes and messages are collected; actions that
// must keep their order with them flush first. Nothing is posted on a connection that has
// failed.
//
// +checklocks:s.mu
func (s *session) actLocked(a *action) error {
	switch a.kind {
	case actWrite, actSend, actReceive:
		if s.connErr != nil {
			return nil
		}
		return s.postLocked(a)
	case actAdvance:
		s.advanceLocked(int64(a.n))
		return nil
	case actKeep:
		if s.spread != nil {
			s.chosen, s.partial = true, true
			s.spread(a.offset)
			return nil
		}
		s.result.Kept, s.chosen, s.partial = a.offset, true, !a.checked
		s.advanceLocked(a.offset)
		return nil
	default: // in turn, below
	}
	err := s.res.flush()
	switch a.kind {
	case actFinish: // with its own reason, even if the last message cannot be posted
		s.finished, s.failure = true, a.err
		if a.err == nil && s.chosen {
			s.result.Size = s.fileSizeLocked() // without the sums that crossed
		}
		if s.partial {
			s.result.Sum = [SumLen]byte{} // because it is that of the bytes that crossed, and not of the file
		}
		s.note(Step{Op: OpFinish, Slot: none})
	case actHash, actSum:
		s.digest.jobs <- *a
	default:
		s.diskLocked(a)
	}
	return err
}

// postLocked does an action that posts a work request.
//
// +checklocks:s.mu
func (s *session) postLocked(a *action) error {
	switch a.kind {
	case actWrite:
		s.write(a)
		return nil
	case actSend:
		s.note(Step{Op: OpSend, Slot: none, Message: a.label})
		return s.res.stageMessage(a.msg, a.slot)
	default: // actReceive, which must be posted before the message to the peer that provokes the next one
		if err := s.res.flush(); err != nil {
			return err
		}
		return s.receive(a.slot)
	}
}

// diskLocked gives the disk's worker a job.
//
// +checklocks:s.mu
func (s *session) diskLocked(a *action) {
	if a.kind == actOpen {
		s.named = true
		s.result.Name = string(a.msg)
		open := *a
		open.msg = []byte(s.result.Name) // because that of a is valid during the step only
		s.disk.jobs <- open
		return
	}
	if a.n > 0 {
		s.result.Chunks++
	}
	if a.checked { // here, because the disk's worker has the most work
		a.err = check(s.res.data.Bytes()[a.slot*s.agreed.chunk:][:a.n], a)
	}
	s.disk.jobs <- *a
}

// write stages a write of a data buffer.
func (s *session) write(a *action) {
	offset := a.slot * s.agreed.chunk
	if a.msg != nil {
		copy(s.res.data.Bytes()[offset:][:s.agreed.chunk], a.msg)
	}
	to := s.protocolBuffer(a.slot)
	if s.agreed.protocol == Basic && a.msg == nil && a.n > 0 {
		s.note(Step{Op: OpRead, Slot: to, Bytes: a.n})
	}
	s.note(Step{Op: OpWrite, Slot: to, Bytes: a.n})
	// The message behind a write without immediate data frees the buffer. The write is signaled all the same: siw sends
	// those that are not from the very pages, which TCP may still need when the message is done.
	wr := verbs.SendWR{ID: idWrite, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: a.remote}
	if a.hasImm {
		wr.ID, wr.Op, wr.Imm = writeID(a.slot), verbs.OpWriteImm, a.imm
	}
	s.res.stage(wr, s.res.data, offset, a.n)
}

// protocolBuffer returns the number in the protocol of a data buffer of this side. The basic protocol has one buffer, although its
// client has two.
func (s *session) protocolBuffer(slot int) int {
	if s.agreed.protocol == Basic {
		return 0
	}
	return slot
}

// receive posts the receive of a slot.
func (s *session) receive(slot int) error {
	entries := 1
	if s.res.bare {
		entries = 0
	}
	s.note(Step{Op: OpPostReceive, Slot: none, Entries: entries})
	return s.res.postReceive(slot)
}

// +checklocks:s.mu
func (s *session) advanceLocked(n int64) {
	s.result.Size += n
	if s.started && n > 0 {
		s.progress.Advance(n)
	}
}

func (s *session) note(st Step) {
	if s.trace != nil {
		s.trace(st)
	}
}
