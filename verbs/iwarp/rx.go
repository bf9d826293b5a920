package iwarp

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime/debug"
	"time"

	"cinnabar/internal/crc32c"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

const (
	// headLen is the number of bytes of an FPDU that are read first: the length field and
	// a tagged header, or an untagged one up to its MSN. Every FPDU has as many bytes.
	headLen = mpa.HeaderLen + ddp.TaggedHeaderLen
	// moreLen is the rest of an untagged header: MO, which is known beforehand.
	moreLen = ddp.UntaggedHeaderLen - ddp.TaggedHeaderLen
	// publishLen is how many bytes at the end of a write are held back until all
	// that came before them is in place and checked.
	publishLen = 8
)

// rxState is the receiving half of a connection: the reading of one FPDU, and
// the messages of which it is a part.
//
// An FPDU is read in two steps. The first brings its head, which decides where
// the payload belongs. The second reads, in one system call if it has all come,
// the rest of the header, the payload into its place, the trailer, and the head
// of the next FPDU. For a segment of a read response it may read several FPDUs (see run).
type rxState struct {
	recv rdmap.Receiver
	any  bool // an FPDU has come

	head [headLen + moreLen]byte
	next [headLen]byte // head of the next FPDU
	got  int           // bytes of head, then of the body

	placed  bool // the head is read and the payload has a place
	stalled bool // the head is read and the payload has no place: reading stops
	eof     bool // the stream ended behind a held message
	seg     rdmap.Segment
	ulpdu   int
	more    int      // moreLen or 0
	direct  int      // payload bytes that go to dst
	keep    int      // payload bytes at the end that go through tail
	publish []byte   // where those belong
	trailer int      // pad and CRC
	dst     [][]byte // pieces of the payload's place
	regions []*mr    // of dst, entered for each access
	target  span     // the payload's place, if it is a Write
	tail    [publishLen + 3 + mpa.CRCLen]byte
	ctl     [rdmap.MaxTerminateLen]byte // payload of control messages
	plan    [][]byte
	ahead   ahead
	run     run // guesses at the places of further segments of a read response

	msgOff    uint32 // bytes of the open message of queue 0 so far
	cur       recvWQE
	curSegs   []seg  // rest of cur's list
	overShare bool   // the next message waits although receives are posted, because its host has used up its share of them
	bound     bool   // the open message goes to cur
	counted   bool   // the message is counted among the unfinished ones of a shared queue
	writeLen  uint32 // bytes of the last write
	imm       uint32 // of the marked Immediate Data message before a Send
	immNext   bool
	held      []*heldMsg // in the order of the stream
	open      *heldMsg   // the one that is incomplete
	delivered *heldMsg   // the one that is being delivered
	heldBytes int
	reserved  int // bytes that are counted for the host
	rnr       rnrTimer
	takes     uint64      // receives that were taken
	shared    *time.Timer // runs while a message in a shared receive is unfinished
	completed bool        // something was added to a completion queue
	written   uint64      // payload bytes of Writes
	sent      uint64      // payload bytes of Sends
}

// heldMsg is a message that came before its receive was posted, or a request
// behind one.
type heldMsg struct {
	op       rdmap.Opcode
	head     ddp.Header // of its last segment
	size     int        // payload bytes of that segment
	inv      uint32
	imm      uint32
	hasImm   bool
	len      uint32 // reported length of a write with immediate
	data     []byte
	complete bool
}

func (r *rxState) init(o rdmap.Options) { r.recv.Init(o) }

// pollBytes is about the number of bytes that one poll reads.
const pollBytes = 1 << 20

// receiveLocked reads until the socket is empty or about pollBytes have been read. For a
// poller it also returns as soon as a completion has been added, or a read has
// returned less than there was room for. more reports whether the socket may have more.
//
// +checklocks:c.rxMu
func (c *conn) receiveLocked(poller bool) (more bool) {
	more = c.receiveAll(poller)
	c.countUnfinished()
	if c.qp.srq != nil && c.rx.bound {
		c.watchShared()
	}
	return more
}

// +checklocks:c.rxMu
func (c *conn) receiveAll(poller bool) (more bool) {
	r := &c.rx
	r.completed = false
	end := c.rxStats.bytes + pollBytes
	for !c.closed.Load() && !c.over() && !r.stalled && !r.eof {
		n, full, err := c.readSome()
		r.ahead.giveBack()
		c.giveMoved()
		switch {
		case err == nil:
		case errors.Is(err, sockio.ErrWouldBlock):
			return false
		case errors.Is(err, io.EOF):
			c.endOfStream()
			return false
		default:
			c.fail(lost(err))
			return false
		}
		if n == 0 { // memory that was to be written is gone
			return false
		}
		if (poller && (r.completed || !full) || c.rxStats.bytes >= end) && len(r.ahead.unread) == 0 {
			return true
		}
	}
	return false
}

// readSome reads once and processes the input. full reports whether there may be
// more.
//
// +checklocks:c.rxMu
func (c *conn) readSome() (n int, full bool, err error) {
	r := &c.rx
	if r.mayReadAhead() {
		return c.readAhead()
	}
	if r.mayRun() {
		return c.readRun()
	}
	plan := r.makePlan()
	if !c.enterRx() {
		return 0, false, nil
	}
	if len(r.ahead.unread) > 0 {
		var there bool
		if n, there = c.readUnread(plan); !there {
			c.exitRx()
			c.placeGone()
			return 0, false, nil
		}
	} else {
		n, err = c.read(plan)
	}
	c.exitRx()
	return n, err == nil && c.arrived(n), err
}

// read reads from the socket.
//
// +checklocks:c.rxMu
func (c *conn) read(plan [][]byte) (int, error) {
	n, err := c.sock.TryReadv(plan)
	if err == nil {
		c.rxStats.bytes += uint64(n)
		c.rxStats.calls++
		c.countTraffic()
	}
	return n, err
}

// enterRx makes sure that the memory in the plan may still be written. If it returns true, the caller calls exitRx when it has written.
//
// +checklocks:c.rxMu
func (c *conn) enterRx() bool {
	r := &c.rx
	for i, m := range r.regions {
		if !m.enter() {
			exitAll(r.regions[:i])
			c.placeGone()
			return false
		}
	}
	if r.writes() {
		exposed.beginWrite(r.regions[0], r.target)
	}
	return true
}

// exitRx ends the accesses that enterRx has begun.
//
// +checklocks:c.rxMu
func (c *conn) exitRx() {
	r := &c.rx
	if r.writes() {
		exposed.endWrite(r.regions[0])
	}
	exitAll(r.regions)
}

// writes reports whether the memory in the plan is that of a Write.
func (r *rxState) writes() bool { return r.seg.Op == rdmap.OpWrite && len(r.regions) > 0 }

// makePlan lists the memory that the stream's next bytes belong to.
func (r *rxState) makePlan() [][]byte {
	p := r.plan[:0]
	if !r.placed {
		r.plan = append(p, r.head[r.got:headLen])
		return r.plan
	}
	skip := r.got
	add := func(b []byte) {
		if skip >= len(b) {
			skip -= len(b)
			return
		}
		p = append(p, b[skip:])
		skip = 0
	}
	add(r.head[headLen : headLen+r.more])
	for _, b := range r.dst {
		add(b)
	}
	add(r.tail[:r.keep+r.trailer])
	r.plan = append(p, r.next[:])
	return r.plan
}

// mayReadAhead reports whether the next bytes of the socket begin an FPDU, which is probably a small message.
func (r *rxState) mayReadAhead() bool {
	return r.ahead.due() && len(r.ahead.unread) == 0 && !r.placed && r.got == 0
}

// arrived processes n bytes that were read by the plan, and reports whether they
// filled it.
//
// +checklocks:c.rxMu
func (c *conn) arrived(n int) bool {
	r := &c.rx
	if !r.placed {
		if r.got += n; r.got == headLen {
			c.headComplete()
			return true
		}
		return false
	}
	before := r.got
	r.got += n
	if r.more > 0 && before < r.more && r.got >= r.more && !c.checkMO() {
		return false
	}
	body := r.more + r.direct + r.keep + r.trailer
	if r.got < body {
		return false
	}
	over := r.got - body
	full := over == headLen
	if !c.finishFPDU() {
		return false
	}
	r.placed = false
	r.regions = r.regions[:0]
	r.got = over
	copy(r.head[:over], r.next[:over])
	if over == headLen {
		c.headComplete()
	}
	return full
}

// headComplete decides where the payload of the FPDU belongs.
//
// +checklocks:c.rxMu
func (c *conn) headComplete() {
	r := &c.rx
	r.ulpdu = int(binary.BigEndian.Uint16(r.head[:]))
	hl := ddp.HeaderLen(r.head[mpa.HeaderLen])
	if r.ulpdu < hl {
		t := rdmap.TermCatastrophic.Terminate()
		t.Detail = "a ULPDU shorter than its DDP header"
		c.refuse(refused(&t))
		return
	}
	r.more = hl - ddp.TaggedHeaderLen
	if r.more > 0 { // MO, before it is read: see checkMO
		mo := uint32(0)
		if r.qn() == ddp.QNSend {
			mo = r.msgOff
		}
		binary.BigEndian.PutUint32(r.head[headLen:], mo)
	}
	h, _ := ddp.ParseHeader(r.head[mpa.HeaderLen : mpa.HeaderLen+hl])
	seg, term := r.recv.Segment(h, r.ulpdu-hl)
	if term != nil {
		c.refuse(refused(term))
		return
	}
	r.seg = seg
	c.place()
}

// qn is the queue number of the untagged header in head.
func (r *rxState) qn() uint32 {
	return binary.BigEndian.Uint32(r.head[mpa.HeaderLen+6:])
}

// checkMO compares the MO that has come with the only one that an ordered stream
// can bring, by which the segment was judged (RFC 5041 section 7.1).
//
// +checklocks:c.rxMu
func (c *conn) checkMO() bool {
	r := &c.rx
	if mo := binary.BigEndian.Uint32(r.head[headLen:]); mo != r.seg.Header.MO {
		h := r.seg.Header
		h.MO = mo
		t := rdmap.TermDDPInvalidMO.ForSegment(h, r.seg.Payload)
		t.Detail = "MO does not continue the message"
		c.refuse(refused(&t))
		return false
	}
	return true
}

// place finds the place of the payload and starts the second step, or stalls.
//
// +checklocks:c.rxMu
func (c *conn) place() {
	r := &c.rx
	r.ahead.placed(r.seg.Payload)
	r.dst, r.regions = r.dst[:0], r.regions[:0]
	r.got, r.keep, r.publish, r.run.rest = 0, 0, nil, nil
	r.direct = r.seg.Payload
	r.trailer = mpa.TrailerLen(r.ulpdu)
	ok := true
	switch r.seg.Op {
	case rdmap.OpWrite:
		ok = c.placeWrite()
	case rdmap.OpReadResponse:
		ok = c.placeResponse()
	case rdmap.OpSend, rdmap.OpSendSE, rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate:
		ok = c.placeSend()
	case rdmap.OpImmediate, rdmap.OpImmediateSE, rdmap.OpReadRequest, rdmap.OpAtomicRequest:
		if ok = !c.holdFull(0); !ok {
			c.stall()
		}
		r.dst = append(r.dst, r.ctl[:r.seg.Payload])
	default: // rdmap.Receiver bounds these by the size of ctl
		r.dst = append(r.dst, r.ctl[:r.seg.Payload])
	}
	r.placed = ok
}

// finishFPDU checks the CRC of the complete FPDU and processes it.
//
// +checklocks:c.rxMu
func (c *conn) finishFPDU() bool {
	r := &c.rx
	if (c.crc || r.keep > 0) && !c.checkFPDU() {
		return false
	}
	c.rxStats.fpdus++
	r.countPayload()
	first := !r.any
	r.any = true
	c.received.Store(true)
	if first && !c.active {
		c.canSend.Store(true)
		c.txWant.Store(true)
	}
	return c.act()
}

// checkFPDU checks the FPDU and stores the end of a write. False means that the connection is over.
//
// +checklocks:c.rxMu
func (c *conn) checkFPDU() bool {
	if !c.enterRx() {
		return false
	}
	intact, there := c.settle()
	c.exitRx()
	if !there {
		c.placeGone()
		return false
	}
	if !intact {
		t := rdmap.TermMPACRC.Terminate()
		t.Detail = "an FPDU with a wrong CRC"
		c.refuse(refused(&t))
	}
	return intact
}

// settle checks the FPDU and stores the end of a write. there is false if the memory that it lies in is gone.
//
// +checklocks:c.rxMu
func (c *conn) settle() (intact, there bool) {
	r := &c.rx
	defer unguard(debug.SetPanicOnFault(true), &there)
	if c.crc && !c.checkCRC() {
		return false, true
	}
	if r.keep > 0 {
		publish(r.publish, r.tail[:r.keep])
	}
	return true, true
}

// checkCRC compares the CRC of the FPDU with the one it carries.
//
// +checklocks:c.rxMu
func (c *conn) checkCRC() bool {
	r := &c.rx
	crc := crc32c.Update(0, r.head[:headLen+r.more])
	for _, b := range r.dst {
		crc = crc32c.Update(crc, b)
	}
	crc = crc32c.Update(crc, r.tail[:r.keep])
	return mpa.CheckTrailer(r.tail[r.keep:r.keep+r.trailer], r.ulpdu, crc)
}

// publish puts the last bytes of a write into place, where possible as one word,
// so that a program that polls them finds all the bytes before them in place.
func publish(dst, src []byte) {
	if len(src) == publishLen && hostmem.Store64(dst, binary.NativeEndian.Uint64(src)) {
		return
	}
	if n := len(src) - 4; n >= 0 {
		hostmem.CopyExposed(dst, src[:n])
		if hostmem.StoreUint32(dst[n:], binary.NativeEndian.Uint32(src[n:])) {
			return
		}
	}
	hostmem.CopyExposed(dst, src)
}

// endOfStream handles the peer's end of the stream. Before the connection ends, messages
// that wait for a receive are delivered, and work posted before Disconnect is sent.
//
// +checklocks:c.rxMu
func (c *conn) endOfStream() {
	r := &c.rx
	if !r.placed && r.got == 0 && c.unfinished() {
		r.eof = true
		c.paused.Store(true)
		if r.rnr.timer == nil && !c.closing.Load() { // no wait is for ever any more, because a program may wait for the end only
			c.startRNR(c.dev.cfg.HandshakeTimeout)
		}
		return
	}
	if f := c.writeFailed.Load(); f != nil { // the reader of a stream that was reset finds an orderly end after the writer has found the reset
		c.fail(f)
		return
	}
	if r.placed || r.got > 0 || r.bound || r.open != nil {
		c.fail(lost(io.ErrUnexpectedEOF))
		return
	}
	f := &failure{err: verbs.ErrDisconnected, status: verbs.StatusRetryExcErr, quiet: true}
	if c.responses.empty() {
		c.fail(f)
	} else {
		c.refuse(f) // the queued responses are sent first
	}
}

// unfinished reports whether the connection stays although the peer has ended its side:
// before Disconnect for held messages that the program may still receive, and after it for
// posted work, unless that needs responses of the peer.
//
// +checklocks:c.rxMu
func (c *conn) unfinished() bool {
	if !c.closing.Load() {
		return len(c.rx.held) > 0
	}
	return !c.sentAll.Load() && !c.awaitsAnswer()
}

// awaitsAnswer reports whether a posted request needs a response.
func (c *conn) awaitsAnswer() bool {
	c.qp.mu.Lock()
	defer c.qp.mu.Unlock()
	q := &c.qp.sq
	for i := q.tail; i < q.head; i++ {
		if w := q.at(i); needsAnswer(w.op) || c.confirmed(w) {
			return true
		}
	}
	return false
}
