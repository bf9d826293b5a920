package xfer

import (
	"encoding/binary"

	"cinnabar/verbs"
)

// basicServer is the server of the paper (section 2):
//
//	wait for hello       only without immediate data: the client speaks first
//	wait for name        step 4: the region is sent; step 5: the name comes
//	opening              step 6: the file is made, ...
//	wait for chunk       ... receive re-posted, READY sent; step 7: a chunk comes
//	storing              step 8: it is written to the file, then as above
//	committing           step 10: zero bytes came; the file gets its name, ...
//	done                 ... step 11: DONE sent; step 12: the client disconnects
//	over                 step 13: the driver closes the file, if that is not done
//
// Unlike the paper's it trusts nothing: sizes are compared with the buffer and
// with the announced size, and a client that writes out of turn is refused.
type basicServer struct {
	agreement
	buf    []byte // the region that the client writes to, always from 0 on
	region verbs.RemoteAddr

	state  basicServerState
	stored int64
	slot   int  // receive that brought the last announcement
	last   int  // bytes being stored
	late   bool // the transfer was to end while the file got its name
	out    outbox
}

type basicServerState uint8

const (
	serverAwaitsHello basicServerState = iota
	serverAwaitsName
	serverOpening
	serverAwaitsChunk
	serverStoring
	serverCommitting
	serverDone
	serverOver
)

var basicServerAwaits = [...]string{
	serverAwaitsHello: "the client's first message", serverAwaitsName: "the file name", serverOpening: "the file to be made",
	serverAwaitsChunk: "a chunk", serverStoring: "the file", serverCommitting: "the file to be complete",
	serverDone: "the client to disconnect", serverOver: "nothing",
}

func (s basicServerState) String() string { return basicServerAwaits[s] }

func (s *basicServer) awaits() string { return s.state.String() }

func (s *basicServer) step(ev event, acts []action) []action {
	s.out.reset()
	switch {
	case s.state == serverCommitting && ev.kind != evCommitted:
		s.late = true // the event stops the transfer, but the result of the commit decides
		return acts
	case s.state == serverDone: // the file has its name, so any event is the end
		return s.end(acts, nil)
	}
	switch ev.kind {
	case evConnected:
		if s.imm {
			return s.sendRegion(acts)
		}
		return acts
	case evReceived:
		return s.receive(ev, acts)
	case evOpened:
		return s.ready(ev.err, acts)
	case evStored:
		if ev.err == nil {
			s.stored += int64(s.last)
			acts = append(acts, action{kind: actAdvance, n: s.last})
		}
		return s.ready(ev.err, acts)
	case evCommitted:
		return s.done(ev.err, acts)
	case evEnded:
		return s.end(acts, lostFailure(ev.err, s.awaits()))
	case evStopped:
		return s.refuse(acts, ev.err)
	default: // the others happen to clients, or to the fast protocol
		return acts
	}
}

// sendRegion is step 4.
func (s *basicServer) sendRegion(acts []action) []action {
	s.state = serverAwaitsName
	return s.send(acts, basicMessage{id: basicMR})
}

// receive processes immediate data, or the message in its place.
func (s *basicServer) receive(ev event, acts []action) []action {
	if ev.err != nil {
		return s.refuse(acts, ev.err)
	}
	s.slot = ev.slot
	if s.state == serverAwaitsHello && !ev.hasImm && ev.n == 0 {
		acts = append(acts, action{kind: actReceive, slot: ev.slot})
		return s.sendRegion(acts)
	}
	size, ok := s.announced(ev)
	switch {
	case !ok:
		return s.refuse(acts, failf(CodeProtocol, "a message of %d bytes came where the size of a write was due", ev.n))
	case size == sizeAbort && s.negotiated && s.writable():
		return s.aborted(acts)
	case int64(size) > int64(len(s.buf)):
		return s.refuse(acts, failf(CodeProtocol, "%d bytes are announced, but the buffer has %d", size, len(s.buf)))
	case s.state == serverAwaitsName:
		return s.open(int(size), acts)
	case s.state != serverAwaitsChunk:
		return s.refuse(acts, failf(CodeProtocol, "the client wrote while the server waited for %v", s.state))
	case size == 0:
		return s.commit(acts)
	}
	return s.store(int(size), acts)
}

// announced returns the size of a write.
func (s *basicServer) announced(ev event) (size uint32, ok bool) {
	if s.imm {
		return ev.imm, ev.hasImm
	}
	if ev.hasImm || ev.n != sizeLen {
		return 0, false
	}
	return binary.BigEndian.Uint32(ev.data), true
}

// writable reports whether the buffer is the client's at this moment.
func (s *basicServer) writable() bool {
	return s.state == serverAwaitsName || s.state == serverAwaitsChunk
}

// open is the beginning of step 6: the name is size bytes, the last of which is
// NUL. The client may still write to the buffer, so the name is checked as a copy.
func (s *basicServer) open(size int, acts []action) []action {
	if size > MaxName+1 {
		return s.refuse(acts, failf(CodeName, "the name has %d bytes, the most is %d", size-1, MaxName))
	}
	name := append(s.out.room(), s.buf[:size]...)
	if size > 0 {
		if name[size-1] != 0 {
			return s.refuse(acts, failf(CodeName, "the name is not terminated by a NUL"))
		}
		name = name[:size-1]
	}
	if err := checkWireName(string(name)); err != nil {
		return s.refuse(acts, err)
	}
	s.state = serverOpening
	return append(acts, action{kind: actOpen, msg: s.out.sent(name)})
}

// store is the beginning of step 8.
func (s *basicServer) store(n int, acts []action) []action {
	if s.size >= 0 && int64(n) > s.size-s.stored {
		return s.refuse(acts, failf(CodeProtocol, "%d bytes come after %d, but the file was said to have %d", n, s.stored, s.size))
	}
	s.state, s.last = serverStoring, n
	return append(acts, action{kind: actStore, offset: s.stored, n: n})
}

// ready is the end of steps 6 and 8: the receive goes first.
func (s *basicServer) ready(err error, acts []action) []action {
	if err != nil {
		return s.refuse(acts, err)
	}
	s.state = serverAwaitsChunk
	acts = append(acts, action{kind: actReceive, slot: s.slot})
	return s.send(acts, basicMessage{id: basicReady})
}

// commit is the beginning of step 11.
func (s *basicServer) commit(acts []action) []action {
	if s.size >= 0 && s.stored != s.size {
		return s.refuse(acts, failf(CodeChanged, "%d bytes came of the %d that the file was said to have", s.stored, s.size))
	}
	s.state = serverCommitting
	return append(acts, action{kind: actCommit})
}

// done is the end of step 11. The paper posts no receive: nothing more may come.
func (s *basicServer) done(err error, acts []action) []action {
	if err != nil {
		return s.refuse(acts, err)
	}
	s.state = serverDone
	acts = s.send(acts, basicMessage{id: basicDone})
	if s.late {
		return s.end(acts, nil)
	}
	return acts
}

func (s *basicServer) send(acts []action, m basicMessage) []action {
	m.remote = s.region
	return append(acts, action{kind: actSend, slot: none, label: basicName(m.id), msg: s.out.sent(appendBasic(s.out.room(), m))})
}

// aborted ends the transfer because the client gives up.
func (s *basicServer) aborted(acts []action) []action {
	v, n := parseErrorMessage(s.buf)
	if n < 0 {
		return s.end(acts, failf(CodeProtocol, "the client gave up and gave no reason that makes sense"))
	}
	return s.end(acts, v.failure())
}

// refuse ends the transfer from this side, and sends the error to a client that
// understands it.
func (s *basicServer) refuse(acts []action, err error) []action {
	if s.negotiated {
		acts = s.send(acts, basicMessage{id: basicFailed, why: errorMessageOf(err)})
	}
	return s.end(acts, err)
}

func (s *basicServer) end(acts []action, err error) []action {
	s.state = serverOver
	return append(acts, finish(err))
}
