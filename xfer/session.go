package xfer

import (
	"context"
	"errors"
	"time"

	"cinnabar/verbs"
)

// session carries out one side of a transfer: it tells the machine what happens
// and does what the machine wants. One goroutine runs it; the lanes of the disk and
// the digest report to it through results.
type session struct {
	link     *link
	machine  machine
	agreed   agreement
	timeout  time.Duration
	progress Progress // nil: none
	trace    Tracer   // nil: none

	results chan event
	disk    *lane
	digest  *lane // nil: no digest

	wcs      [16]verbs.WC
	acts     []action
	finished bool
	failure  error // after finished
	broken   error // the first completion that failed
	tick     *time.Ticker
	moved    bool // something has happened since the watchdog looked
	idle     int  // how often it has looked in vain
	started  bool // the observer was told
	result   Result
}

// watches is how often the watchdog looks while one timeout passes.
const watches = 4

// newSession prepares a session whose disk work is done by disk.
func newSession(l *link, m machine, a agreement, disk func(action) event) *session {
	depth := 2*a.buffers + 4
	s := &session{link: l, machine: m, agreed: a, results: make(chan event, 2*depth)}
	s.disk = newLane(depth, s.results, disk)
	if a.protocol == Fast && a.digest == SHA256 {
		s.digest = newLane(depth, s.results, newHasher(l.data.Bytes(), a.chunk).do)
	}
	return s
}

// run goes through the transfer until the machine has finished.
func (s *session) run(ctx context.Context) error {
	s.tick = time.NewTicker(max(s.timeout/watches, time.Millisecond))
	defer s.tick.Stop()
	s.note(Step{Op: OpConnect, Slot: none})
	s.step(event{kind: evConnected})
	for !s.finished {
		if s.poll() {
			s.look(ctx)
		} else {
			s.park(ctx)
		}
	}
	return s.failure
}

// park waits until something happens.
func (s *session) park(ctx context.Context) {
	select {
	case <-s.link.cq.Event():
	case ev := <-s.results:
		s.step(ev)
	case <-s.link.conn.Done():
		s.drain()
	case <-s.tick.C:
		s.watch()
	case <-ctx.Done():
		s.cancel(ctx)
	}
}

// look is park without waiting, so that a peer that never pauses keeps nothing
// else from happening.
func (s *session) look(ctx context.Context) {
	select {
	case ev := <-s.results:
		s.step(ev)
	case <-s.tick.C:
		s.watch()
	case <-ctx.Done():
		s.cancel(ctx)
	default:
	}
}

// watch is the watchdog: it gives up when nothing has happened for a timeout.
func (s *session) watch() {
	if s.idle++; s.moved {
		s.moved, s.idle = false, 0
	}
	if s.idle >= watches {
		s.stop(failf(CodeTimeout, "nothing has moved for %v while this side waited for %s", s.timeout, s.machine.awaits()))
	}
}

func (s *session) cancel(ctx context.Context) {
	s.stop(&failure{code: CodeCanceled, err: context.Cause(ctx)})
}

// stop has the machine give up, after a last look at what the peer has said.
func (s *session) stop(why error) {
	for range lastPolls {
		if s.finished || !s.poll() {
			break
		}
	}
	s.step(event{kind: evStopped, err: why})
}

// lastPolls bounds that look.
const lastPolls = 16

// poll takes the completions that are there and reports whether there were any.
// The queue is armed before, so that none is missed by a wait after.
func (s *session) poll() bool {
	if err := s.link.cq.Arm(false); err != nil {
		s.lost(err)
		return true
	}
	n, err := s.link.cq.Poll(s.wcs[:])
	for i := range s.wcs[:n] {
		if s.finished {
			break
		}
		s.complete(&s.wcs[i])
	}
	switch {
	case s.finished:
	case err != nil:
		s.lost(err)
	case n == 0 && s.broken != nil:
		s.lost(s.broken) // nothing is left that the peer might have said before
	default:
		return n > 0
	}
	return true
}

// drain takes what is left of a connection that is over.
func (s *session) drain() {
	for !s.finished && s.poll() {
	}
	s.lost(nil)
}

// lost tells the machine that the connection is over. What the connection says of
// it counts more than what its last completions say.
func (s *session) lost(err error) {
	select {
	case <-s.link.conn.Done():
		if cause := s.link.conn.Err(); err == nil || cause != nil && errors.Is(err, verbs.StatusWRFlushErr) {
			err = cause
		}
	default:
	}
	s.step(event{kind: evEnded, err: err})
}

// complete takes one completion.
func (s *session) complete(wc *verbs.WC) {
	if err := wc.Err(); err != nil {
		s.breaks(err)
		return
	}
	if wc.ID&idReceive != 0 {
		s.arrived(wc)
		return
	}
	if wc.ID&idWrite == 0 {
		s.link.release(idSlot(wc.ID))
	}
	if buffer := idBuffer(wc.ID); buffer != none {
		s.note(Step{Op: OpSent, Slot: buffer})
		s.step(event{kind: evSent, slot: buffer})
	}
}

// arrived takes a message or immediate data.
func (s *session) arrived(wc *verbs.WC) {
	ev := event{kind: evReceived, slot: idSlot(wc.ID), n: int(wc.Len)}
	if wc.Op == verbs.WCRecvRDMAImm {
		ev.hasImm, ev.imm, ev.n = wc.HasImm, wc.Imm, 0
		s.note(Step{Op: OpReceive, Slot: none, Bytes: int(wc.Imm), Message: "immediate"})
	} else {
		ev.data = s.link.message(ev.slot, ev.n)
		s.note(Step{Op: OpReceive, Slot: none, Message: s.nameOf(ev.data)})
	}
	s.step(ev)
}

// nameOf is what traces call a message that has come.
func (s *session) nameOf(data []byte) string {
	if s.trace == nil {
		return ""
	}
	if s.agreed.protocol == Fast {
		if m, n := parseFast(data); n > 0 {
			return fastNames[m.kind]
		}
		return "?"
	}
	if m, n := parseBasic(data); n > 0 {
		return basicName(m.id)
	}
	return "size"
}

// step tells the machine about ev and does what it wants. When something cannot be
// posted the connection is as good as over, but the peer may have said why: the next
// polls will tell.
func (s *session) step(ev event) {
	if s.finished {
		return
	}
	s.moved = true
	s.observe(&ev)
	s.acts = s.machine.step(ev, s.acts[:0])
	for i := range s.acts {
		if a := &s.acts[i]; s.broken == nil || a.kind == actFinish {
			s.breaks(s.act(a))
		}
	}
	s.breaks(s.link.flush())
}

// breaks takes note of the first failure of the connection.
func (s *session) breaks(err error) {
	if s.broken == nil {
		s.broken = err
	}
}

// observe takes note of what the lanes have done.
func (s *session) observe(ev *event) {
	if ev.err != nil {
		return
	}
	switch ev.kind {
	case evRead:
		s.note(Step{Op: OpRead, Slot: ev.slot, Bytes: ev.n})
	case evStored:
		s.note(Step{Op: OpStore, Slot: ev.slot, Bytes: ev.n})
	case evSummed:
		s.result.Sum = ev.sum
	case evOpened:
		s.note(Step{Op: OpOpen, Slot: none, Message: s.result.Name})
		s.begin()
	case evCommitted:
		s.note(Step{Op: OpCommit, Slot: none})
	default: // the others are noted elsewhere
	}
}

// begin tells the observer what begins.
func (s *session) begin() {
	if s.progress == nil {
		return
	}
	s.started = true
	r := s.result
	r.Size = s.agreed.size
	s.progress.Start(r)
}

// close ends the connection and the lanes; then nobody uses the link's memory
// any more. A peer that takes part no more is not waited for long.
func (s *session) close() {
	lanes := []*lane{s.disk}
	if s.digest != nil {
		lanes = append(lanes, s.digest)
	}
	for _, l := range lanes {
		l.cancel()
	}
	s.link.part(min(partLimit, s.timeout))
	for _, l := range lanes {
		l.stop()
	}
}
