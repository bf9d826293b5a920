package xfer

import (
	"context"
	"errors"
	"sync"
	"time"

	"cinnabar/verbs"
)

// session carries out one side of a transfer: it delivers events to the machine and carries
// out the machine's actions. The goroutine that calls run does so for events of the network
// and the clock. The workers of the disk and the digest do so for their own events, which
// spares a hand-over for each chunk. mu serializes them. If solo is true, one goroutine has all
// events but those of the clock (solo.go).
type session struct {
	res      *resources // posts and staged work are guarded by mu
	agreed   agreement
	timeout  time.Duration
	opening  time.Duration           // for the peer to name its file; 0: no limit but timeout
	working  time.Duration           // for a peer that sends only NOTE without a tail, which says that its file is at work; 0: no limit
	progress Progress                // nil: none; called under mu
	trace    Tracer                  // nil: none; called under mu
	steps    func() uint64           // the work of the file (Worker); nil: not known
	spread   func(kept int64)        // called with the number of bytes that do not cross on this lane, which may cross on others; nil: there is one lane
	endFile  context.CancelCauseFunc // ends the context of the file; nil: it has none

	disk   *worker
	digest *worker       // nil: no digest; disk, if solo
	solo   bool          // the goroutine of disk processes completions too
	leave  func()        // ends waits of the goroutine of disk for completions; nil, unless solo
	wake   chan struct{} // capacity 1; signaled by a worker that has finished the machine, or found that the connection has failed

	polls sync.Mutex // before mu; held while completions are taken and processed, because their order counts
	// +checklocks:polls
	wcs [16]verbs.WC

	// The following fields are used by run only.
	tick *time.Ticker
	open <-chan time.Time // when the peer must have named its file; nil: no limit
	beat <-chan time.Time // when steps is looked at; nil: never
	done uint64           // steps then
	idle int              // number of times in a row that the watchdog has found no event
	lull int              // number of times in a row that it has found none, or only NOTE without a tail
	over bool             // the machine has an event that ends the transfer; only a worker can still delay the end

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
	connErr error
	// poll has waited for the reason of connErr
	// +checklocks:mu
	endAwaited bool
	// something has happened since the watchdog looked
	// +checklocks:mu
	moved bool
	// and this was not only NOTE without a tail; always true without working
	// +checklocks:mu
	advanced bool
	// the peer has named its file
	// +checklocks:mu
	named bool
	// the receiver has chosen all that crosses
	// +checklocks:mu
	chosen bool
	// and these are not the bytes of the file
	// +checklocks:mu
	partial bool
	// the observer's Start was called
	// +checklocks:mu
	started bool
	// +checklocks:mu
	result Result
}

// watchdogChecks is the number of times that the watchdog looks during one timeout.
const watchdogChecks = 4

// newSession prepares a session. disk does the work of the disk, and hashes have the digest of a.
func newSession(l *resources, m machine, a agreement, hashes Hashes, disk func(action) event) *session {
	depth := 2*a.buffers + 4 + 2*mostUnderWay // with a job that asks for requests, and the removals that may not happen
	s := &session{res: l, machine: m, agreed: a, wake: make(chan struct{}, 1), solo: a.solo}
	s.disk = newWorker(depth, disk, s.step)
	if a.protocol == Fast && a.digest != NoDigest {
		h := newHasher(hashes.find(a.digest)(), l.data.Bytes(), a.chunk)
		if s.solo {
			s.disk.do, s.digest = both(disk, h.do), s.disk
		} else {
			s.digest = newWorker(depth, h.do, s.step)
			s.digest.start()
		}
	}
	if !s.solo {
		s.disk.start()
	}
	return s
}

// run goes through the transfer until the machine has finished.
func (s *session) run(ctx context.Context) (Result, error) {
	s.tick = time.NewTicker(max(s.timeout/watchdogChecks, time.Millisecond))
	defer s.tick.Stop()
	if s.opening > 0 && s.opening < s.timeout {
		limit := time.NewTimer(s.opening)
		defer limit.Stop()
		s.open = limit.C
	}
	if s.steps != nil {
		beats := time.NewTicker(min(workingEvery, max(s.timeout/watchdogChecks, time.Millisecond)))
		defer beats.Stop()
		s.beat = beats.C
	}
	s.note(Step{Op: OpConnect, Slot: none})
	s.step(event{kind: evConnected})
	if s.solo {
		s.startSolo(ctx)
		defer s.leave()
	}
	for {
		more, finished := false, false
		if s.solo {
			finished = s.hasFinished()
		} else {
			more, finished = s.poll(ctx)
		}
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

// chunks returns the number of chunks so far.
func (s *session) chunks() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result.Chunks
}

// park waits until something happens.
func (s *session) park(ctx context.Context) {
	var completions <-chan struct{}
	if !s.solo {
		completions = s.res.cq.Event()
	}
	select {
	case <-completions:
	case <-s.wake:
	case <-s.res.conn.Done():
		s.drain(ctx)
	case <-s.tick.C:
		s.watch(ctx)
	case <-s.open:
		s.watchOpening(ctx)
	case <-s.beat:
		s.watchWork(ctx)
	case <-ctx.Done():
		s.cancel(ctx)
	}
}

// look is park without waiting, because a peer that never pauses must not delay the
// watchdog and the end of ctx.
func (s *session) look(ctx context.Context) {
	select {
	case <-s.tick.C:
		s.watch(ctx)
	case <-s.open:
		s.watchOpening(ctx)
	case <-s.beat:
		s.watchWork(ctx)
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
	if s.lull++; s.advanced {
		s.advanced, s.lull = false, 0
	}
	s.mu.Unlock()
	switch {
	case s.idle >= watchdogChecks:
		s.stop(ctx, failf(CodeTimeout, "nothing has moved for %v while this side waited for %s", s.timeout, awaits))
	case s.working > 0 && time.Duration(s.lull)*(s.timeout/watchdogChecks) >= s.working:
		s.stop(ctx, failf(CodeTimeout, "the peer has sent nothing for %v but that its file is at work, while this side waited for %s: a longer timeout here allows more", s.working, awaits))
	}
}

// watchWork lets the machine know that the file is at work, if it is. This counts as progress of this side.
func (s *session) watchWork(ctx context.Context) {
	if n := s.steps(); n != s.done {
		s.done = n
		s.step(event{kind: evWorking})
		s.pollSolo(ctx)
	}
}

// pollSolo processes completions while the solo goroutine works for long.
//
// +checklocksignore: it does not know TryLock.
func (s *session) pollSolo(ctx context.Context) {
	if !s.solo || !s.polls.TryLock() {
		return
	}
	defer s.polls.Unlock()
	n, err := s.res.cq.Poll(s.wcs[:])
	s.processLocked(ctx, n, err)
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

// stop ends the machine, after a last poll for a message of the peer, which may have a better reason.
func (s *session) stop(ctx context.Context, why error) {
	s.endSolo()
	for range lastPolls {
		if more, finished := s.poll(ctx); finished || !more {
			break
		}
	}
	s.step(event{kind: evStopped, err: why})
	s.giveUp(why)
}

// giveUp notes that the machine has an event that ends the transfer. If only a worker still delays the end, giveUp ends the context of the file, for which the worker may wait.
func (s *session) giveUp(why error) {
	s.over = true
	if s.endFile != nil && !s.hasFinished() {
		s.endFile(why)
	}
}

// lastPolls bounds the number of these polls.
const lastPolls = 16

// drain processes the remaining completions of a connection that is over.
func (s *session) drain(ctx context.Context) {
	s.endSolo()
	for {
		if more, finished := s.poll(ctx); finished || !more {
			break
		}
	}
	s.mu.Lock()
	s.lostLocked(nil)
	s.mu.Unlock()
	s.giveUp(failf(CodeLost, "the connection of the transfer is over"))
}

// poll processes the completions that are there and reports whether there were any,
// and whether the machine has finished. The queue is armed before, so that none is
// missed by a wait after.
func (s *session) poll(ctx context.Context) (more, finished bool) {
	s.polls.Lock()
	defer s.polls.Unlock()
	err := s.res.cq.Arm(false)
	n := 0
	if err == nil {
		n, err = s.res.cq.Poll(s.wcs[:])
	}
	return s.processLocked(ctx, n, err)
}

// processLocked processes the first n completions of wcs, or the failure of the completion queue.
//
// +checklocks:s.polls
func (s *session) processLocked(ctx context.Context, n int, err error) (more, finished bool) {
	if err == nil && n == 0 && s.awaitReason(ctx) {
		n, err = s.res.cq.Poll(s.wcs[:])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.wcs[:n] {
		s.completeLocked(&s.wcs[i])
	}
	if err != nil {
		s.lostLocked(err)
	} else if n == 0 && s.connErr != nil {
		s.lostLocked(s.connErr) // all earlier messages of the peer have been processed
	}
	return n > 0, s.finished
}

// awaitReason waits once for the end of the connection, for disconnectLimit at most, and reports whether it has waited. A device
// may flush the posted work before it has the reason of the end. The wait ends with ctx.
func (s *session) awaitReason(ctx context.Context) bool {
	s.mu.Lock()
	wait := !s.finished && !s.endAwaited && isConsequence(s.connErr)
	s.endAwaited = s.endAwaited || wait
	s.mu.Unlock()
	if !wait {
		return false
	}
	limit := time.NewTimer(disconnectLimit)
	defer limit.Stop()
	select {
	case <-s.res.conn.Done():
	case <-limit.C:
	case <-ctx.Done():
	}
	return true
}

// isConsequence reports whether err says only that the connection is over, or that nothing can be posted to it any more.
func isConsequence(err error) bool {
	return errors.Is(err, verbs.StatusWRFlushErr) || errors.Is(err, verbs.ErrInvalid)
}

// lostLocked delivers evEnded to the machine. The connection's reason counts more than the
// errors of its last completions.
//
// +checklocks:s.mu
func (s *session) lostLocked(err error) {
	select {
	case <-s.res.conn.Done():
		if cause := s.res.conn.Err(); err == nil || cause != nil && isConsequence(err) {
			err = cause
		}
	default:
	}
	s.stepLocked(event{kind: evEnded, err: err})
}

// completeLocked processes one completion.
//
// +checklocks:s.mu
func (s *session) completeLocked(wc *verbs.WC) {
	if s.finished {
		return
	}
	if err := wc.Err(); err != nil {
		s.connFailedLocked(err)
		return
	}
	if wc.ID&idReceive != 0 {
		s.arrivedLocked(wc)
		return
	}
	if wc.ID&idWrite == 0 {
		s.res.release(idSlot(wc.ID))
	}
	if buffer := idBuffer(wc.ID); buffer != none {
		s.note(Step{Op: OpSent, Slot: s.protocolBuffer(buffer)})
		s.stepLocked(event{kind: evSent, slot: buffer})
	}
}

// arrivedLocked processes a message or immediate data.
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
	case wc.Op == verbs.WCRecv && !wc.HasImm && wc.Len <= s.res.longest():
		ev.n = int(wc.Len)
		ev.data = s.res.message(ev.slot, ev.n)
		s.note(Step{Op: OpReceive, Slot: none, Message: s.nameOf(ev.data)})
	default:
		ev.err = failf(CodeProtocol, "a receive was used for %v of %d bytes (immediate data: %t)", wc.Op, wc.Len, wc.HasImm)
	}
	s.stepLocked(ev)
}

// nameOf returns the name of a received message in traces.
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

// close ends the connection and the workers. The transfer's memory is then not in use any
// more. It waits for the peer for disconnectLimit at most, or for
// grace.Interrupted once ctx has ended.
func (s *session) close(ctx context.Context) {
	workers := []*worker{s.disk}
	if s.digest != nil && !s.solo {
		workers = append(workers, s.digest)
	}
	for _, l := range workers {
		l.cancel()
	}
	if _, own := errors.AsType[*failure](context.Cause(ctx)); own {
		ctx = context.WithoutCancel(ctx) // because no interrupt has ended it: the peer should read the reason
	}
	s.res.disconnect(ctx, min(disconnectLimit, s.timeout))
	for _, l := range workers {
		l.stop()
	}
}
