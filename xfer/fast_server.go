package xfer

import (
	"fmt"

	"cinnabar/internal/credit"
	"cinnabar/verbs"
)

// fastServer receives with several buffers (section 4.2 of the paper):
//
//	wait for OPEN        the client speaks first
//	opening              the file is made, then LAYOUT sent
//	streaming            per chunk: receive re-posted, stored and hashed, then CREDIT sent
//	summing              END came and all is stored; the digest is finished
//	committing           digests are equal; the file gets its name, then DONE is sent
//	done                 the client disconnects
//	over
//
// A buffer counts as held from the announcement of its chunk until both the file
// and the digest have taken it; a client that announces a chunk in a held one is
// refused. A client that writes there without an announcement is not detected: checksum,
// file and digest read the buffer one after another and may see different bytes. It
// can harm no file but its own, which it could have sent like that.
type fastServer struct {
	agreement
	region verbs.RemoteAddr

	state    fastServerState
	window   credit.ReceiveWindow
	limit    int64        // bytes that cross, as far as this is known
	choice   *choosing    // nil: all bytes cross
	held     []heldBuffer // at the slots of the window
	arrived  int64        // bytes announced
	ending   bool         // END has come
	late     bool         // the transfer was to end while the file got its name
	claimed  [SumLen]byte
	sum      [SumLen]byte
	out      outbox
	reported uint64 // credits sent
}

// heldBuffer is a buffer that was written by the client and has not been given back.
type heldBuffer struct {
	index   uint64 // of the chunk in it
	length  int    // of the chunk, in bytes
	pending uint8  // users that still read it
}

// Users of a buffer.
const (
	pendingFile = 1 << iota
	pendingDigest
)

type fastServerState uint8

const (
	fastAwaitsOpen fastServerState = iota
	fastOpening
	fastReceiving
	fastServerSumming
	fastCommitting
	fastServerDone
	fastServerOver
)

var fastServerAwaits = [...]string{
	fastAwaitsOpen: "the file name", fastOpening: "the file to be made", fastReceiving: "chunks", fastServerSumming: "the digest",
	fastCommitting: "the file to be complete", fastServerDone: "the client to disconnect", fastServerOver: "nothing",
}

func (s fastServerState) String() string { return fastServerAwaits[s] }

func newFastServer(a agreement, region verbs.RemoteAddr) *fastServer {
	s := &fastServer{agreement: a, region: region, window: credit.NewReceiveWindow(a.buffers, int64(a.buffers)*int64(a.chunk)),
		held: make([]heldBuffer, a.buffers), limit: a.size}
	if a.chooses {
		s.choice = &choosing{}
	}
	return s
}

func (s *fastServer) awaits() string {
	if s.state == fastReceiving && !s.window.Idle() {
		return "the file"
	}
	return s.state.String()
}

func (s *fastServer) step(ev event, acts []action) []action {
	s.out.reset()
	switch {
	case s.state == fastCommitting && ev.kind == evWorking:
		return s.working(acts)
	case s.state >= fastCommitting && ev.kind == evSpared, s.state == fastServerDone && ev.kind == evWorking:
		return acts
	case s.state == fastCommitting && s.answersNote(ev):
		return s.receive(ev, acts)
	case s.state == fastCommitting && ev.kind != evCommitted:
		s.late = true // the event stops the transfer, but the result of the commit decides
		return acts
	case s.state == fastServerDone: // the file has its name, so any event is the end
		return s.end(acts, nil)
	}
	switch ev.kind {
	case evReceived:
		return s.receive(ev, acts)
	case evOpened:
		return s.opened(ev.err, acts)
	case evStored:
		if ev.err != nil {
			return s.refuse(acts, ev.err)
		}
		if s.choice != nil {
			s.choice.stored += int64(ev.n)
			if acts = s.choose(acts); s.state == fastServerOver {
				return acts
			}
		}
		return s.bufferRead(ev.slot, pendingFile, acts)
	case evWanted:
		return s.wanted(ev, acts)
	case evSpared:
		s.choice.sparing--
		return s.choose(acts)
	case evWorking:
		return s.working(acts)
	case evHashed:
		return s.bufferRead(ev.slot, pendingDigest, acts)
	case evSummed:
		return s.compare(ev.sum, acts)
	case evCommitted:
		return s.committed(ev.err, acts)
	case evEnded:
		return s.end(acts, lostFailure(ev.err, s.awaits()))
	case evStopped:
		return s.refuse(acts, ev.err)
	default: // the connection is for the client to open; the others happen to it
		return acts
	}
}

// receive processes a message of the client. Its receive is posted again at once,
// before any credit that could provoke the next one.
func (s *fastServer) receive(ev event, acts []action) []action {
	m, err := fastReceived(ev, "client")
	if err != nil {
		return s.refuse(acts, err)
	}
	switch {
	case m.kind == fastFailed:
		return s.end(acts, peerFailure(m))
	case m.kind == fastOpen && s.state == fastAwaitsOpen:
		return s.open(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	case m.kind == fastChunk && s.state == fastReceiving && !s.ending:
		return s.chunkArrived(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	case m.kind == fastEnd && s.state == fastReceiving && !s.ending:
		return s.endArrived(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	case m.kind == fastNote && s.choice != nil:
		return s.noteAnswered(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	}
	return s.refuse(acts, failf(CodeProtocol, "the client sent %s while the server waited for %s", fastNames[m.kind], s.awaits()))
}

// open starts to make the file.
func (s *fastServer) open(m fastMessage, acts []action) []action {
	if err := checkWireName(string(m.tail)); err != nil {
		return s.refuse(acts, err)
	}
	s.state = fastOpening
	open := action{kind: actOpen, msg: s.out.sent(append(s.out.room(), m.tail...))}
	if s.choice != nil {
		if m.number > uint64(s.size) {
			return s.refuse(acts, failf(CodeProtocol, "the head of the file is said to have %d bytes, and the file %d", m.number, s.size))
		}
		s.limit = int64(m.number)
		s.choice.head, s.choice.wishes, s.choice.ends = s.limit, Wishes(m.word), ranges{s.limit, s.limit}
		open.offset, open.crc = s.limit, m.word
	}
	return append(acts, open)
}

// opened lets the client write.
func (s *fastServer) opened(err error, acts []action) []action {
	if err != nil {
		return s.refuse(acts, err)
	}
	s.state = fastReceiving
	acts = s.send(acts, fastMessage{kind: fastLayout, length: uint32(s.chunk), number: s.region.Addr, word: s.region.RKey, count: uint32(s.buffers)})
	return s.choose(acts)
}

// chunkArrived starts to store and hash a chunk. Only the last one may be short, so its
// index gives its place in the file.
func (s *fastServer) chunkArrived(m fastMessage, acts []action) []action {
	want := min(int64(s.chunk), s.limit-s.arrived)
	switch {
	case s.stream: // each chunk may be short, or empty
		want = min(int64(s.chunk), int64(m.length))
	case s.choice != nil && m.length > 0: // the client may not have had the last WANT when it sent the chunk
		want = min(want, int64(m.length))
	}
	if err := s.window.Receive(m.number, int(want)); err != nil {
		return s.refuse(acts, failf(CodeProtocol, "chunk: %w", err))
	}
	if want == 0 && !s.stream {
		return s.refuse(acts, failf(CodeProtocol, "chunk %d comes after the end of the file, which was said to have %d bytes", m.number, s.limit))
	}
	if int64(m.length) != want {
		return s.refuse(acts, failf(CodeProtocol, "chunk %d has %d bytes; %d are due", m.number, m.length, want))
	}
	slot, n := s.window.Slot(m.number), int(m.length)
	acts = append(acts, action{kind: actStore, slot: slot, offset: s.arrived, n: n, crc: m.word, checked: true})
	b := &s.held[slot]
	*b = heldBuffer{index: m.number, length: n, pending: pendingFile}
	if s.digest != NoDigest {
		b.pending |= pendingDigest
		acts = append(acts, action{kind: actHash, slot: slot, n: n})
	}
	s.arrived += int64(n)
	if s.choice != nil {
		s.choice.arrivedWanted(s.arrived)
		return s.choose(acts)
	}
	return acts
}

// bufferRead notes that a user has read a buffer, and gives the buffer back when no other reads it.
func (s *fastServer) bufferRead(slot int, user uint8, acts []action) []action {
	b := &s.held[slot]
	if b.pending &^= user; b.pending != 0 {
		return acts
	}
	acts = s.advance(acts, b.length)
	if err := s.window.Release(b.index); err != nil {
		panic(fmt.Sprintf("xfer: buffer %d of chunk %d: %v", slot, b.index, err))
	}
	total := s.window.Released()
	if due := max(len(s.held)/creditShare, 1); total-s.reported >= uint64(due) || s.window.Idle() && total > s.reported {
		s.reported = total
		acts = s.send(acts, fastMessage{kind: fastCredit, number: total})
	}
	return s.wrapUp(acts)
}

// creditShare is the part of the buffers that is given back with one message:
// half of them, which spares waking the client for each. When nothing is being
// worked on, all is given back, since the client may be waiting for it.
const creditShare = 2

// endArrived processes the client's message that all is sent.
func (s *fastServer) endArrived(m fastMessage, acts []action) []action {
	if s.choice != nil && !s.choice.last {
		return s.refuse(acts, failf(CodeProtocol, "the client sent END while the server had not chosen all that it needs"))
	}
	if s.choice != nil && s.choice.awaitsVeto() {
		return s.refuse(acts, failf(CodeProtocol, "the client sent END before it had answered the list of removals"))
	}
	if s.stream {
		if err := s.endStream(m); err != nil {
			return s.refuse(acts, err)
		}
	}
	if m.number != uint64(s.limit) || s.arrived != s.limit {
		return s.refuse(acts, failf(CodeChanged, "the file ends after %d bytes, of which %d came; it was said to have %d", m.number, s.arrived, s.limit))
	}
	if s.digest != NoDigest && len(m.tail) != len(s.claimed) {
		return s.refuse(acts, failf(CodeProtocol, "the digest has %d bytes", len(m.tail)))
	}
	copy(s.claimed[:], m.tail)
	s.ending = true
	return s.wrapUp(acts)
}

// wrapUp goes on to the end when nothing more comes and all is stored.
func (s *fastServer) wrapUp(acts []action) []action {
	if !s.ending || !s.window.Idle() {
		return acts
	}
	s.state = fastServerSumming
	if s.digest != NoDigest {
		return append(acts, action{kind: actSum})
	}
	return s.commit(acts)
}

// compare compares the digest of the stored file with the client's.
func (s *fastServer) compare(sum [SumLen]byte, acts []action) []action {
	if sum != s.claimed {
		return s.refuse(acts, failf(CodeCorrupt, "digest %s is %x here and %x at the sender", s.digest, sum, s.claimed))
	}
	s.sum = sum
	return s.commit(acts)
}

func (s *fastServer) commit(acts []action) []action {
	s.state = fastCommitting
	return append(acts, action{kind: actCommit})
}

func (s *fastServer) committed(err error, acts []action) []action {
	if err != nil {
		return s.refuse(acts, err)
	}
	s.state = fastServerDone
	acts = s.send(acts, totalMessage(fastDone, s.limit, s.digest, &s.sum))
	if s.late {
		return s.end(acts, nil)
	}
	return acts
}

// answersNote reports whether an event is the client's answer to a NOTE, which is no reason to end a transfer.
func (s *fastServer) answersNote(ev event) bool {
	if s.choice == nil || ev.kind != evReceived || ev.err != nil {
		return false
	}
	m, n := parseFast(ev.data)
	return n > 0 && m.kind == fastNote && s.choice.isAnswer(m)
}

func (s *fastServer) send(acts []action, m fastMessage) []action {
	return append(acts, action{kind: actSend, slot: none, label: fastNames[m.kind], msg: s.out.sent(appendFast(s.out.room(), m))})
}

// refuse ends the transfer from this side and sends the error to the client.
func (s *fastServer) refuse(acts []action, err error) []action {
	return s.end(s.send(acts, failedMessage(err)), err)
}

func (s *fastServer) end(acts []action, err error) []action {
	s.state = fastServerOver
	return append(acts, finish(err))
}
