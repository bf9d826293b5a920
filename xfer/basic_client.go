package xfer

import (
	"encoding/binary"

	"cinnabar/verbs"
)

// agreement has the parameters of a transfer on which the two sides have agreed when they are connected.
type agreement struct {
	protocol   Protocol
	imm        bool // chunks are announced by immediate data
	negotiated bool // the peer is a program of this package: it understands refusals
	digest     Digest
	buffers    int
	chunk      int
	size       int64 // of the file; -1: unknown
	meta       Meta
	counted    int64 // bytes of the buffers that are counted for the sender's host
}

// basicClient is the client of the paper (section 2):
//
//	wait for MR          step 4: the server's region comes
//	wait for opening     step 5: receive re-posted, name written; step 6: READY comes
//	reading              step 7: receive re-posted, chunk read, ...
//	wait for READY       ... and written; step 8: READY comes
//	wait for DONE        step 10: receive re-posted, zero bytes written; step 11: DONE comes
//	over                 step 12: the driver disconnects
//
// Steps 1 and 2, the posting of the first receive and the connection, come
// before the machine. A buffer is not read into before its last write is done
// here, even if the server has answered it already.
type basicClient struct {
	agreement
	name string

	state   basicClientState
	remote  verbs.RemoteAddr
	offset  int64 // bytes read from the source
	last    int   // bytes of the chunk that waits for READY
	writing bool  // the buffer belongs to the device
	reading bool  // the buffer belongs to the disk
	proceed bool  // the server waits for the next write
	out     outbox
}

type basicClientState uint8

const (
	clientAwaitsRegion basicClientState = iota
	clientAwaitsOpening
	clientReading
	clientAwaitsReady
	clientAwaitsDone
	clientOver
)

var basicClientAwaits = [...]string{
	clientAwaitsRegion: "the server's memory region", clientAwaitsOpening: "READY, after the file name",
	clientReading: "the source", clientAwaitsReady: "READY, after a chunk",
	clientAwaitsDone: "DONE", clientOver: "nothing",
}

func (s basicClientState) String() string { return basicClientAwaits[s] }

func (c *basicClient) awaits() string { return c.state.String() }

func (c *basicClient) step(ev event, acts []action) []action {
	c.out.reset()
	switch ev.kind {
	case evConnected:
		return c.open(acts)
	case evReceived:
		return c.receive(ev, acts)
	case evSent:
		c.writing = false
		return c.next(acts)
	case evRead:
		return c.write(ev, acts)
	case evEnded:
		return c.end(acts, maybeStored(lostFailure(ev.err, c.awaits()), c.state == clientAwaitsDone))
	case evStopped:
		return c.abort(acts, maybeStored(ev.err, c.state == clientAwaitsDone))
	default: // the others happen to servers
		return acts
	}
}

// open makes the server send. Where writes are announced by messages, the client sends
// first, because iWARP forbids that to the passive side (RFC 5044 section 7.1.2).
func (c *basicClient) open(acts []action) []action {
	if c.imm {
		return acts
	}
	return append(acts, action{kind: actSend, slot: none, label: "hello"})
}

// receive processes a message of the server.
func (c *basicClient) receive(ev event, acts []action) []action {
	if ev.err != nil {
		return c.abort(acts, ev.err)
	}
	m, n := parseBasic(ev.data)
	if n < 0 || ev.hasImm {
		return c.abort(acts, failf(CodeProtocol, "the server sent a message of %d bytes that makes no sense", len(ev.data)))
	}
	switch {
	case m.id == basicFailed && c.negotiated:
		return c.end(acts, m.why.failure())
	case m.id == basicMR && c.state == clientAwaitsRegion:
		c.remote = m.remote
		c.state = clientAwaitsOpening
		acts = append(acts, action{kind: actReceive, slot: ev.slot})
		return c.sendName(acts)
	case m.id == basicReady && (c.state == clientAwaitsOpening || c.state == clientAwaitsReady) && !c.proceed: // once
		acts = append(acts, action{kind: actReceive, slot: ev.slot})
		if c.last > 0 {
			acts = append(acts, action{kind: actAdvance, n: c.last})
		}
		c.last = 0
		c.proceed = true
		return c.next(acts)
	case m.id == basicDone && c.state == clientAwaitsDone:
		return c.end(acts, nil)
	}
	return c.abort(acts, failf(CodeProtocol, "the server sent %s while the client waited for %v", basicName(m.id), c.state))
}

// sendName is step 5: the name and its NUL, with their length.
func (c *basicClient) sendName(acts []action) []action {
	msg := append(append(c.out.room(), c.name...), 0)
	return c.post(acts, c.out.sent(msg), len(msg))
}

// next is the beginning of step 7, or step 10 if nothing is left. An empty source
// is read all the same, to see that it is empty.
func (c *basicClient) next(acts []action) []action {
	if !c.proceed || c.writing {
		return acts
	}
	c.proceed = false
	left := c.size - c.offset
	if left == 0 && (c.size > 0 || c.state == clientReading) {
		c.state = clientAwaitsDone
		return c.post(acts, nil, 0)
	}
	c.state, c.reading = clientReading, true
	return append(acts, action{kind: actRead, offset: c.offset, n: int(min(left, int64(c.chunk)))})
}

// write is the end of step 7.
func (c *basicClient) write(ev event, acts []action) []action {
	c.reading = false
	if ev.err != nil {
		return c.abort(acts, ev.err)
	}
	if ev.n == 0 {
		c.proceed = true
		return c.next(acts)
	}
	c.state = clientAwaitsReady
	c.offset += int64(ev.n)
	c.last = ev.n
	return c.post(acts, nil, ev.n)
}

// post writes n bytes to offset 0 of the server's buffer and announces their
// number: by immediate data, or by a message behind the write (section 4.1).
func (c *basicClient) post(acts []action, msg []byte, n int) []action {
	c.writing = true
	return c.announce(acts, msg, n, uint32(n))
}

func (c *basicClient) announce(acts []action, msg []byte, n int, size uint32) []action {
	w := action{kind: actWrite, n: n, msg: msg, remote: c.remote, hasImm: c.imm, imm: size}
	if c.imm {
		return append(acts, w)
	}
	w.imm = 0
	return append(acts, w, action{kind: actSend, slot: 0, label: "size",
		msg: c.out.sent(binary.BigEndian.AppendUint32(c.out.room(), size))})
}

// abort ends the transfer from this side. It sends the error to a server that understands it,
// if the client may write to the server's buffer, which is from READY to the next write;
// otherwise the server sees the connection end.
func (c *basicClient) abort(acts []action, err error) []action {
	if c.negotiated && c.state == clientReading && !c.writing && !c.reading {
		msg := c.out.sent(appendErrorMessage(c.out.room(), errorMessageOf(err), maxErrorMessage))
		c.writing = true
		acts = c.announce(acts, msg, len(msg), sizeAbort)
	}
	return c.end(acts, err)
}

func (c *basicClient) end(acts []action, err error) []action {
	c.state = clientOver
	return append(acts, finish(err))
}

// maybeStored adds to a client's error that the file may have its name at the server all the
// same, if all was sent and only DONE has not come.
func maybeStored(err error, allSent bool) error {
	if !allSent {
		return err
	}
	return failf(asFailure(err).code, "%w; all was sent, so the receiver may have the file under its name", err)
}

// lostFailure is the failure of a connection that has ended before the transfer. awaits is from [machine].
func lostFailure(err error, awaits string) error {
	if err == nil {
		return failf(CodeLost, "the connection ended while this side waited for %s", awaits)
	}
	return failf(CodeLost, "the connection ended while this side waited for %s: %w", awaits, err)
}
