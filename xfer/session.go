package xfer

import (
	"context"
	"errors"
	"sync"
	"time"

	"cinnabar/verbs"
)

// session carries out one side of a transfer: it tells the machine what happens
// and does what the machine wants. The goroutine that calls run looks after the
// network and the clock; the lanes of the disk and the digest tell the machine
// themselves what they have done, and post what it wants then, which spares a hand-over
// for each chunk. mu lets them in one at a time.
type session struct {
	link     *link // what posts is guarded by mu
	agreed   agreement
	timeout  time.Duration
	opening  time.Duration // for the peer to name its file; 0: no limit but timeout
	progress Progress      // nil: none; called under mu
	trace    Tracer        // nil: none; called under mu

	disk   *lane
	digest *lane         // nil: no digest
	wake   chan struct{} // capacity 1: a lane has finished the machine, or found the connection broken

	// What follows is run's own.
	wcs  [16]verbs.WC
	tick *time.Ticker
	open <-chan time.Time // when the peer must have named its file; nil: no limit
	idle int              // how often the watchdog has looked in vain
	over bool             // the machine has an event that ends the transfer; only a lane can still delay the end

	mu sync.Mutex
	// +checklocks:mu
	machine machine
	// +checklocks:mu
	acts []action
	// +checklocks:mu
	finished bool
	// why the transfer failed, after finished
	// +checklocks:mu
	failure error
	// the first completion or post that failed
	// +checklocks:mu
	broken error
	// the reason for that was waited for
	// +checklocks:mu
	awaited bool
	// something has happened since the watchdog looked
	// +checklocks:mu
	moved bool
	// the peer has named its file
	// +checklocks:mu
	named bool
	// the observer was told
	// +checklocks:mu
	started bool
	// +checklocks:mu
	result Result
}

// watches is how often the watchdog looks while one timeout passes.
const watches = 4

// newSession prepares a session whose disk work is done by disk.
func newSession(l *link, m machine, a agreement, disk func(action) event) *session {
	depth := 2*a.buffers + 4
	s := &session{link: l, machine: m, agreed: a, wake: make(chan struct{}, 1)}
	s.disk = newLane(depth, disk, s.tell)
	if a.protocol == Fast && a.digest == SHA256 {
		s.digest = newLane(depth, newHasher(l.data.Bytes(), a.chunk).do, s.tell)
	}
	return s
}

// run goes through the transfer until the machine has finished.
func (s *session) run(ctx context.Context) (Result, error) {
	s.tick = time.NewTicker(max(s.timeout/watches, time.Millisecond))
	defer s.tick.Stop()
	if s.opening > 0 && s.opening < s.timeout {
		limit := time.NewTimer(s.opening)
		defer limit.Stop()
		s.open = limit.C
	}
	s.note(Step{Op: OpConnect, Slot: none})
	s.tell(event{kind: evConnected})
	for {
		more, finished := s.poll(ctx)
		if finished {
			break
		}
		switch {
		case s.over:
			<-s.wake
		case more:
			s.look(ctx)
		default:
			s.park(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result, s.failure
}

// park waits until something happens.
func (s *session) park(ctx context.Context) {
	select {
	case <-s.link.cq.Event():
	case <-s.wake:
	case <-s.link.conn.Done():
		s.drain(ctx)
	case <-s.tick.C:
		s.watch(ctx)
	case <-s.open:
		s.watchOpening(ctx)
	case <-ctx.Done():
		s.cancel(ctx)
	}
}

// look is park without waiting, so that a peer that never pauses keeps nothing
// else from happening.
func (s *session) look(ctx context.Context) {
	select {
	case <-s.tick.C:
		s.watch(ctx)
	case <-s.open:
		s.watchOpening(ctx)
	case <-ctx.Done():
		s.cancel(ctx)
	default:
	}
}

// watch is the watchdog: it gives up when nothing has happened for a timeout.
func (s *session) watch(ctx context.Context) {
	s.mu.Lock()
	awaits := s.machine.awaits()
	if s.idle++; s.moved {
		s.moved, s.idle = false, 0
	}
	s.mu.Unlock()
	if s.idle >= watches {
		s.stop(ctx, failf(CodeTimeout, "nothing has moved for %v while this side waited for %s", s.timeout, awaits))
	}
}

// watchOpening gives up a peer that has not named its file.
func (s *session) watchOpening(ctx context.Context) {
	s.mu.Lock()
	named, awaits := s.named, s.machine.awaits()
	s.mu.Unlock()
	if !named {
		s.stop(ctx, failf(CodeTimeout, "%v have passed while this side waited for %s", s.opening, awaits))
	}
}

func (s *session) cancel(ctx context.Context) {
	cause := context.Cause(ctx)
	if f, ok := errors.AsType[*failure](cause); ok { // the receiver's own reason
		s.stop(ctx, f)
		return
	}
	s.stop(ctx, &failure{code: CodeCanceled, err: cause})
}

// stop has the machine give up, after a last look at what the peer has said.
func (s *session) stop(ctx context.Context, why error) {
	for range lastPolls {
		if more, finished := s.poll(ctx); finished || !more {
			break
		}
	}
	s.over = true
	s.tell(event{kind: evStopped, err: why})
}

// lastPolls bounds that look.
const lastPolls = 16

// drain takes what is left of a connection that is over.
func (s *session) drain(ctx context.Context) {
	for {
		if more, finished := s.poll(ctx); finished || !more {
			break
		}
	}
	s.over = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lostLocked(nil)
}

// poll takes the completions that are there and reports whether there were any,
// and whether the machine has finished. The queue is armed before, so that none is
// missed by a wait after.
func (s *session) poll(ctx context.Context) (more, finished bool) {
	err := s.link.cq.Arm(false)
	n := 0
	if err == nil {
		n, err = s.link.cq.Poll(s.wcs[:])
	}
	if err == nil && n == 0 && s.awaitReason(ctx) {
		n, err = s.link.cq.Poll(s.wcs[:])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.wcs[:n] {
		s.completeLocked(&s.wcs[i])
	}
	if err != nil {
		s.lostLocked(err)
	} else if n == 0 && s.broken != nil {
		s.lostLocked(s.broken) // nothing is left that the peer might have said before
	}
	return n > 0, s.finished
}

// awaitReason gives the connection a moment to tell why it is over, once, and reports whether it did: a device may give
// back what was posted before it has word of the end. Whoever has given up waits no longer.
func (s *session) awaitReason(ctx context.Context) bool {
	s.mu.Lock()
	wait := !s.finished && !s.awaited && isConsequence(s.broken)
	s.awaited = s.awaited || wait
	s.mu.Unlock()
	if !wait {
		return false
	}
	limit := time.NewTimer(partLimit)
	defer limit.Stop()
	select {
	case <-s.link.conn.Done():
	case <-limit.C:
	case <-ctx.Done():
	}
	return true
}

// isConsequence reports whether err says only that the connection is over, or that nothing can be posted to it any more.
func isConsequence(err error) bool {
	return errors.Is(err, verbs.StatusWRFlushErr) || errors.Is(err, verbs.ErrInvalid)
}

// lostLocked tells the machine that the connection is over. What the connection
// says of it counts more than what its last completions say.
//
// +checklocks:s.mu
func (s *session) lostLocked(err error) {
	select {
	case <-s.link.conn.Done():
		if cause := s.link.conn.Err(); err == nil || cause != nil && isConsequence(err) {
			err = cause
		}
	default:
	}
	s.stepLocked(event{kind: evEnded, err: err})
}

// completeLocked takes one completion.
//
// +checklocks:s.mu
func (s *session) completeLocked(wc *verbs.WC) {
	if s.finished {
		return
	}
	if err := wc.Err(); err != nil {
		s.breaksLocked(err)
		return
	}
	if wc.ID&idReceive != 0 {
		s.arrivedLocked(wc)
		return
	}
	if wc.ID&idWrite == 0 {
		s.link.release(idSlot(wc.ID))
	}
	if buffer := idBuffer(wc.ID); buffer != none {
		s.note(Step{Op: OpSent, Slot: buffer})
		s.stepLocked(event{kind: evSent, slot: buffer})
	}
}

// arrivedLocked takes a message or immediate data.
//
// +checklocks:s.mu
func (s *session) arrivedLocked(wc *verbs.WC) {
	ev := event{kind: evReceived, slot: idSlot(wc.ID)}
	switch {
	case wc.HasInv:
		ev.err = failf(CodeProtocol, "the peer revoked key %#08x, which it has no reason to", wc.InvKey)
	case wc.Op == verbs.WCRecvRDMAImm && wc.HasImm: // Len counts bytes of the write, none of which are in the receive
		ev.hasImm, ev.imm = true, wc.Imm
		s.note(Step{Op: OpReceive, Slot: none, Bytes: int(wc.Imm), Message: "immediate"})
	case wc.Op == verbs.WCRecv && !wc.HasImm && wc.Len <= s.link.longest():
		ev.n = int(wc.Len)
		ev.data = s.link.message(ev.slot, ev.n)
		s.note(Step{Op: OpReceive, Slot: none, Message: s.nameOf(ev.data)})
	default:
		ev.err = failf(CodeProtocol, "a receive was used for %v of %d bytes (immediate data: %t)", wc.Op, wc.Len, wc.HasImm)
	}
	s.stepLocked(ev)
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
