package iwarp

import (
	"errors"
	"os"
	"runtime/debug"
	"sync"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// An FPDU has 65,535 bytes at most, and over an Ethernet often 1,500. A receiver that reads each FPDU by a system call of its own makes between 17
// and more than 700 system calls for 1 MiB. While a segment of a read response comes, the place of the next bytes is almost certain: further segments
// of the response follow with the size of the present one, and the last segment has the remaining bytes. Devices of this package keep this
// rule within each sizeStep of a response, and the receiver makes no guess beyond the present sizeStep. One system call reads a run of FPDUs, each by a
// guess at its place. Only peers of another make or of an older version, and responses that end early, cause wrong guesses:
//
//	         place of the read's data
//	         ┌──────────────┬──────────────┬──────────────┬──────┐
//	         │   present    │    guess     │    guess     │guess │
//	         └──────────────┴──────────────┴──────────────┴──────┘
//	plan:    payload, tail+next, payload, gap, payload, gap, …
//
// A gap has the trailer of an FPDU and the head of the next one. The FPDUs are then processed one after the other like any others. When the
// FPDU behind a head has the place that was guessed, its bytes are there already. Otherwise all bytes behind that head are moved in the order of the
// stream to memory from which readUnread takes them, as if they had been read ahead.
//
// A guess names bytes of the read that is under way and nothing else. The peer may write each of them by this response anyway, and none has a
// defined value before the read is complete. Bytes of Writes and Sends are never guessed, because their places are memory with a value, or
// unknown.
//
// After a wrong guess, heads and payload of other FPDUs have lain in the sink of the read, which is memory of the program. Another peer with the right to
// write to it could change them, and so forge messages of this peer, and one with the right to read it could see them. Therefore the bytes of guesses are
// watched from before the system call until they have been moved (see exposure). No guess is made if peers may read a region that has them, or while a
// peer writes to such a region. If a peer begins to write to the bytes meanwhile, a wrong guess ends the connection. The bytes are cleared where they
// have lain.

const (
	// runMax is the largest number of guesses of one system call. With it the plan has at most 60 pieces, and a system call takes 64.
	runMax = 28
	// runBytes is the largest number of payload bytes in all guesses of one system call. It is as much as a device sends by one system call.
	runBytes = 512 << 10
	// runPause is the number of payload bytes of read responses that come without guesses after the first wrong guess of a connection, for each byte that
	// was moved because of it. So moves cost a peer's stream no more than a sixteenth of its bytes.
	runPause = 16
	// runDoubled is how many times the pause is doubled, each time by a further wrong guess. So moves cost no more than 1/1024 of the bytes of a peer that
	// never goes on as guessed.
	runDoubled = 6
	// runPauseLeast is the least length of that pause in bytes.
	runPauseLeast = 64 << 10
)

// runPlan has the memory of one system call that reads a run.
type runPlan struct {
	pieces [2*runMax + 4][]byte
	gaps   [runMax][3 + mpa.CRCLen + headLen]byte
}

// runPlans are shared by all connections, because a connection needs one only from a system call until the bytes of that call are processed.
var runPlans = sync.Pool{New: func() any { return new(runPlan) }}

// run is the receiver's state for guesses at the following segments.
type run struct {
	rest  []byte // places of the bytes that the read expects behind the present segment; nil if no guess is to be made
	sure  int32  // a segment that begins in the first sure bytes of rest has the size of the present one
	pause int32  // payload bytes of read responses that come before the next guess
	wrong int32  // number of wrong guesses, up to runDoubled
	moved int32  // bytes in ahead.unread that the last run has moved, and that are counted for the host until all are processed
	watch watch  // of the bytes of guesses, during readRun
}

// follow notes the places of the bytes behind the present segment of a read response, which begins at off of the response. The segments that begin in the
// same sizeStep as the present one have its size.
//
// +checklocks:c.rxMu
func (c *conn) follow(off int, rest []byte) {
	r := &c.rx
	if r.run.pause > 0 {
		r.run.pause -= int32(r.seg.Payload)
		return
	}
	if sure := sizeStep - off%sizeStep - r.seg.Payload; !r.seg.Last && len(rest) > 0 && sure > 0 {
		r.run.rest, r.run.sure = rest, int32(sure)
	}
}

// guessedWrong ends the guesses for a pause, because n bytes are moved after a wrong guess. Each further wrong guess of the connection doubles the pause.
func (r *run) guessedWrong(n int) {
	r.rest = nil
	r.pause = int32(max(runPause*n, runPauseLeast)) << r.wrong
	r.wrong = min(r.wrong+1, runDoubled)
}

// mayRun reports whether the next system call reads a run.
func (r *rxState) mayRun() bool {
	return r.placed && len(r.run.rest) > 0 && len(r.ahead.unread) == 0
}

// makeRun appends guesses to the plan for the present FPDU. first is the index of the first guess, and guessed are the bytes of all guesses.
func (r *rxState) makeRun(p *runPlan) (plan [][]byte, first int, guessed []byte) {
	plan = append(p.pieces[:0], r.makePlan()...)
	first = len(plan)
	end := 0
	for i := 0; i < runMax && end < min(len(r.run.rest), int(r.run.sure)); i++ {
		rest := r.run.rest[end:]
		n := min(r.seg.Payload, len(rest))
		if end+n > runBytes {
			break
		}
		plan = append(plan, rest[:n:n], p.gaps[i][:mpa.TrailerLen(ddp.TaggedHeaderLen+n)+headLen])
		end += n
	}
	return plan, first, r.run.rest[:end]
}

// readRun reads a run and processes the input. If beginRun refuses, it reads the present FPDU only. full reports whether the socket may have more bytes.
//
// +checklocks:c.rxMu
func (c *conn) readRun() (n int, full bool, err error) {
	r := &c.rx
	p, _ := runPlans.Get().(*runPlan)
	plan, first, guessed := r.makeRun(p)
	most := 0 // bytes that a wrong guess may move
	for _, b := range plan[first:] {
		most += len(b)
	}
	run := c.beginRun(guessed, most)
	if !run {
		clear(plan[first:])
		plan = plan[:first]
		c.rxStats.refusedGuesses++
		r.run.rest, r.run.pause = nil, runPauseLeast // because the next answer is probably the same
	}
	if c.enterRx() {
		sink := r.regions[0]
		held := run && sink.enter() // until the bytes behind a wrong guess are moved and cleared, for which Close of the region waits
		if !held {
			clear(plan[first:])
			plan = plan[:first]
		}
		n, err = c.read(plan)
		c.exitRx()
		switch {
		case err == nil:
			full = c.arrivedRun(plan, first, n)
		case held && !errors.Is(err, sockio.ErrWouldBlock): // TLS may have decrypted bytes before it failed
			takeBack(plan[first:], most)
		}
		if held {
			sink.exit()
		}
	}
	if run {
		c.endRun(most)
	}
	clear(plan)
	runPlans.Put(p)
	return n, full, err
}

// beginRun reports whether the next system call may have guesses. guessed is the memory of their payload, and most is the largest number of bytes that a
// wrong guess moves. There are no guesses if exposure.begin refuses the watch of this memory, or if the host's share of memory has no room for twice the
// moved bytes, because other connections of the host must be able to hold messages meanwhile.
//
// +checklocks:c.rxMu
func (c *conn) beginRun(guessed []byte, most int) bool {
	if !c.account.May(hostquota.Memory, 2*int64(most)) || c.account.Take(hostquota.Memory, int64(most)) != nil {
		return false // May comes first, because Take counts each refusal, and a read without guesses is no refusal of the host
	}
	if !exposed.begin(&c.rx.run.watch, spanOf(guessed)) {
		c.account.Give(hostquota.Memory, int64(most))
		return false
	}
	return true
}

// endRun ends the watch, and returns to the host's share all bytes that beginRun has taken but those that were moved.
//
// +checklocks:c.rxMu
func (c *conn) endRun(most int) {
	r := &c.rx
	exposed.end(&r.run.watch)
	r.run.moved = int32(len(r.ahead.unread))
	if rest := most - len(r.ahead.unread); rest > 0 {
		c.account.Give(hostquota.Memory, int64(rest))
	}
}

// giveMoved returns the moved bytes to the host's share when all of them are processed.
//
// +checklocks:c.rxMu
func (c *conn) giveMoved() {
	r := &c.rx
	if n := r.run.moved; n > 0 && len(r.ahead.unread) == 0 {
		r.run.moved = 0
		c.account.Give(hostquota.Memory, int64(n))
	}
}

// arrivedRun processes n bytes that were read by the plan of a run, and reports whether they filled it.
//
// +checklocks:c.rxMu
func (c *conn) arrivedRun(plan [][]byte, first, n int) (full bool) {
	r := &c.rx
	size := 0 // of the pieces for the FPDU, and the head behind it
	for _, b := range plan[:first] {
		size += len(b)
	}
	for plan = plan[first:]; ; plan = plan[2:] {
		full = c.arrived(min(n, size))
		if n -= size; n <= 0 || len(plan) == 0 {
			return full && n == 0 && len(plan) == 0
		}
		if c.over() {
			takeBack(plan, n) // clears the bytes; inbound processing has ended, so nothing parses them
			return false
		}
		if !r.placedAt(plan[0]) {
			c.moveUnread(plan, n)
			return true
		}
		copy(r.tail[:r.trailer], plan[1])
		copy(r.next[:], plan[1][r.trailer:])
		size = len(plan[0]) + len(plan[1])
	}
}

// placedAt reports whether the FPDU whose head has come is a segment of a read response, and b is the place of its payload.
func (r *rxState) placedAt(b []byte) bool {
	return r.placed && r.got == 0 && r.seg.Op == rdmap.OpReadResponse && len(r.dst) == 1 && len(r.dst[0]) == len(b) && &r.dst[0][0] == &b[0]
}

// moveUnread moves n bytes from the pieces of a plan, which lie in the sink and in the gaps, to memory that readUnread reads. They have at most runBytes
// of payload with the heads between, and never more payload than the read that is under way still expects. moveUnread fails
// the connection, and the read that owns the sink, in two cases: the sink is unmapped, because its bytes are lost; or a peer has written to the bytes
// since the watch began, because the bytes may be forged.
//
// +checklocks:c.rxMu
func (c *conn) moveUnread(plan [][]byte, n int) {
	r := &c.rx
	c.rxStats.wrongGuesses++
	r.run.guessedWrong(n)
	if onMove != nil {
		onMove(false)
	}
	unread, there := takeBack(plan, n)
	if onMove != nil {
		onMove(true)
	}
	t := rdmap.TermLocalCatastrophic.Terminate()
	switch {
	case !there:
		t.Detail = "the sink of a read was unmapped while its response arrived"
	case exposed.reached(&r.run.watch): // checked after the copy, because a peer may write until the copy is made
		t.Detail = "another connection wrote to the sink of a read while its response arrived"
	default:
		r.ahead.unread = unread
		return
	}
	c.refuse(refused(&t).failOldest(verbs.StatusLocProtErr))
}

// onMove is nil except in tests. moveUnread calls onMove before it moves the bytes, with false, and with true between the copy and the look for writers.
var onMove func(moved bool)

// takeBack returns a copy of the first n bytes of the pieces of a plan and clears these bytes in the pieces, because the program may later expose that
// memory to peers. The caller holds a use of the sink. there is false if the sink is unmapped.
func takeBack(plan [][]byte, n int) (b []byte, there bool) {
	b = make([]byte, n)
	return b, takeGuarded(b, plan)
}

// zeros are the bytes that overwrite a piece; a piece is at most this long.
var zeros [mpa.MaxLength]byte

// takeGuarded copies pieces of registered memory to dst one after the other, until dst is full, and clears them. there is false if the memory is unmapped.
func takeGuarded(dst []byte, pieces [][]byte) (there bool) {
	defer unguard(debug.SetPanicOnFault(true), &there)
	for _, b := range pieces {
		for b = b[:min(len(b), len(dst))]; len(b) > 0; {
			// To the end of a page, because a fault in the next page must come after these bytes are cleared.
			n := min(len(b), page-int(hostmem.Addr(b)%uint64(page)))
			hostmem.CopyExposed(dst[:n], b[:n])
			hostmem.CopyExposed(b[:n], zeros[:])
			dst, b = dst[n:], b[n:]
		}
	}
	return true
}

// page is the number of bytes of a page, which is mapped as a whole or not at all.
var page = os.Getpagesize()
