package xfer

import (
	"encoding/binary"
	"slices"

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
	counted    int64       // bytes of the buffers that are counted for the sender's host
	solo       bool        // this side has one goroutine for the chunks (solo.go)
	chooses    bool        // the receiver chooses the ranges that cross; fast only
	pull       bool        // the side that has connected receives (pull.go)
	stream     bool        // the size is not known before the end, and is -1 until then (stream.go)
	lanes      lanesAgreed // the zero value: the transfer has one lane
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
// before the machine.
//
// Unlike the client of the paper, basicClient has two buffers, so that it reads the source while the last chunk crosses the network and
// the server stores it. The messages and their order are those of the paper, because the server has one buffer. basicClient reads into a
// buffer only after the last write from that buffer is complete and the server has answered it.
type basicClient struct {
	agreement
	name string

	state   basicClientState
	remote  verbs.RemoteAddr
	buffers [basicBuffers]basicBuffer
	offset  int64  // number of bytes of the source for which reads have begun
	reads   uint64 // number of chunks for which reads have begun
	writes  uint64 // number of chunks for which writes have begun
	last    int    // bytes of the chunk that waits for READY
	writing bool   // the device works on a write from a buffer
	empty   bool   // the source has been read, and has no bytes
	proceed bool   // the server waits for the next write
	out     outbox
}

// basicBuffers is the number of buffers of a client. Chunk i goes through buffer i mod basicBuffers.
const basicBuffers = 2

// basicBuffer is a buffer of the client.
type basicBuffer struct {
	state bufferState
	n     int
	err   error // of the read; kept until the chunk's turn, because the server takes messages only between READY and the next write
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
		return c.filled(ev, acts)
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
	return c.post(acts, 0, c.out.sent(msg), len(msg))
}

// next goes on with step 7, or with step 10 if no chunk is left. It reads an empty source once, because only a read shows that it is empty.
func (c *basicClient) next(acts []action) []action {
	if !c.proceed || c.writing {
		return acts
	}
	for i := range c.buffers {
		if b := &c.buffers[i]; b.state == bufferSending {
			b.state = bufferEmpty
		}
	}
	acts = c.fill(acts)
	slot := c.slot(c.writes)
	switch b := &c.buffers[slot]; {
	case c.offset == c.size && c.writes == c.reads && (c.size > 0 || c.empty):
		c.state, c.proceed = clientAwaitsDone, false
		return c.post(acts, slot, nil, 0)
	case b.state != bufferFull:
		c.state = clientReading
		return acts
	case b.err != nil:
		c.state, b.state = clientReading, bufferEmpty
		return c.abort(acts, b.err)
	default:
		c.state, c.proceed = clientAwaitsReady, false
		c.last = b.n
		c.writes++
		return c.post(acts, slot, nil, b.n)
	}
}

// slot returns the buffer of chunk i.
func (c *basicClient) slot(i uint64) int { return int(i % basicBuffers) }

// fill starts reads of the source into the empty buffers, in turn.
func (c *basicClient) fill(acts []action) []action {
	for c.offset < c.size || c.size == 0 && c.reads == 0 && !c.empty {
		slot := c.slot(c.reads)
		b := &c.buffers[slot]
		if b.state != bufferEmpty {
			break
		}
		b.state, b.n = bufferReading, int(min(c.size-c.offset, int64(c.chunk)))
		acts = append(acts, action{kind: actRead, slot: slot, offset: c.offset, n: b.n})
		c.offset += int64(b.n)
		c.reads++
	}
	return acts
}

// filled processes the end of a read.
func (c *basicClient) filled(ev event, acts []action) []action {
	b := &c.buffers[ev.slot]
	b.state, b.err = bufferFull, ev.err
	if ev.n == 0 && ev.err == nil {
		b.state, c.reads, c.empty = bufferEmpty, 0, true
	}
	return c.next(acts)
}

// post writes the n bytes of a buffer to offset 0 of the server's buffer and announces their
// number: by immediate data, or by a message behind the write (section 4.1).
func (c *basicClient) post(acts []action, slot int, msg []byte, n int) []action {
	return c.announce(acts, slot, msg, n, uint32(n))
}

func (c *basicClient) announce(acts []action, slot int, msg []byte, n int, size uint32) []action {
	c.writing, c.buffers[slot].state = true, bufferSending
	w := action{kind: actWrite, slot: slot, n: n, msg: msg, remote: c.remote, hasImm: c.imm, imm: size}
	if c.imm {
		return append(acts, w)
	}
	w.imm = 0
	return append(acts, w, action{kind: actSend, slot: slot, label: "size",
		msg: c.out.sent(binary.BigEndian.AppendUint32(c.out.room(), size))})
}

// abort ends the transfer from this side. It sends the error to a server that understands it,
// if the client may write to the server's buffer, which it may between READY and the next write, and has a buffer into which no read is
// under way. Otherwise the server sees the end of the connection.
func (c *basicClient) abort(acts []action, err error) []action {
	slot := slices.IndexFunc(c.buffers[:localBuffers(&c.agreement)], func(b basicBuffer) bool { return b.state == bufferEmpty || b.state == bufferFull })
	if c.negotiated && c.state == clientReading && !c.writing && slot >= 0 {
		msg := c.out.sent(appendErrorMessage(c.out.room(), errorMessageOf(err), maxErrorMessage))
		acts = c.announce(acts, slot, msg, len(msg), sizeAbort)
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
