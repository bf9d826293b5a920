package xfer

import (
	"cinnabar/internal/credit"
	"cinnabar/verbs"
)

// fastClient sends with several buffers on both sides (section 4.2 of the
// paper). Chunk i goes through buffer i mod N here and at the server:
//
//	wait for layout      OPEN with the file name is sent; LAYOUT comes
//	streaming            per buffer: empty - reading - full - sending - empty
//	summing              all chunks are sent; the digest is finished
//	wait for DONE        END is sent; DONE comes
//	over
//
// If the receiver chooses, choose_client.go has more about streaming.
//
// While a chunk is read from the source, others cross the network and others are
// hashed. A full buffer is written as soon as the window has a buffer of the
// server's for it; a buffer is empty again when the device and the digest are
// through with it, whether or not the server is.
type fastClient struct {
	agreement
	name string

	state   fastClientState
	remote  verbs.RemoteAddr
	window  credit.SendWindow
	buffers []fastBuffer
	offset  int64  // bytes that were asked of the source
	reads   uint64 // chunks that were asked of the source
	reading int    // of these, under way
	hashing int    // buffers that the digest has to take in yet
	passed  int64  // bytes that were sent
	stored  int64  // bytes that the server has given buffers back for
	sum     [SumLen]byte
	choice  *chosen // nil: all bytes cross
	out     outbox
}

// fastBuffer is a buffer of the client.
type fastBuffer struct {
	state   bufferState
	hashing bool
	n       int
	crc     uint32
}

type bufferState uint8

const (
	bufferEmpty bufferState = iota
	bufferReading
	bufferFull
	bufferSending
)

type fastClientState uint8

const (
	fastAwaitsLayout fastClientState = iota
	fastStreaming
	fastSumming
	fastAwaitsDone
	fastOver
)

var fastClientAwaits = [...]string{
	fastAwaitsLayout: "the server's buffers", fastStreaming: "the source", fastSumming: "the digest",
	fastAwaitsDone: "DONE", fastOver: "nothing",
}

func (s fastClientState) String() string { return fastClientAwaits[s] }

// newFastClient makes a client. If a says that the receiver chooses, ch is the choice; nil: it is known later (setChoice).
func newFastClient(a agreement, name string, ch *Choice) *fastClient {
	c := &fastClient{agreement: a, name: name, window: credit.NewSendWindow(a.buffers, int64(a.buffers)*int64(a.chunk)), buffers: make([]fastBuffer, a.buffers)}
	if a.chooses && ch != nil {
		c.setChoice(ch, a.size)
	}
	return c
}

// setChoice lets the receiver choose from a source of size bytes, of which the head crosses in any case.
func (c *fastClient) setChoice(ch *Choice, size int64) {
	c.choice = newChosen(ch, size)
	c.size = ch.Head
}

func (c *fastClient) awaits() string {
	if c.state == fastStreaming && c.reading == 0 {
		if c.choice != nil && c.offset == c.size && !c.choice.last {
			return "the server to choose"
		}
		return "the server to free a buffer"
	}
	return c.state.String()
}

func (c *fastClient) step(ev event, acts []action) []action {
	c.out.reset()
	switch ev.kind {
	case evConnected:
		open := fastMessage{kind: fastOpen, tail: []byte(c.name)}
		if c.choice != nil {
			open.number, open.word = uint64(c.choice.Head), uint32(c.choice.Wishes)
		}
		return c.send(acts, open, none)
	case evReceived:
		return c.receive(ev, acts)
	case evRead:
		return c.filled(ev, acts)
	case evSent:
		c.buffers[ev.slot].state = bufferEmpty
		return c.fill(acts)
	case evHashed:
		c.buffers[ev.slot].hashing = false
		c.hashing--
		return c.wrapUp(c.fill(acts))
	case evSummed:
		c.sum = ev.sum
		return c.sendEnd(acts)
	case evEnded:
		return c.end(acts, maybeStored(lostFailure(ev.err, c.awaits()), c.state == fastAwaitsDone))
	case evStopped:
		return c.abort(acts, maybeStored(ev.err, c.state == fastAwaitsDone))
	default: // the others happen to servers
		return acts
	}
}

// receive takes a message of the server. Its receive is posted again before
// anything is sent because of it.
func (c *fastClient) receive(ev event, acts []action) []action {
	m, err := fastReceived(ev, "server")
	if err != nil {
		return c.abort(acts, err)
	}
	switch {
	case m.kind == fastFailed:
		return c.end(acts, peerFailure(m))
	case m.kind == fastLayout && c.state == fastAwaitsLayout:
		return c.start(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	case m.kind == fastCredit && c.state != fastAwaitsLayout:
		return c.credit(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	case m.kind == fastDone && c.state == fastAwaitsDone:
		return c.done(m, acts)
	case m.kind == fastWant && c.state == fastStreaming && c.choice != nil:
		return c.want(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	case m.kind == fastNote && c.choice != nil:
		return c.note(m, append(acts, action{kind: actReceive, slot: ev.slot}))
	}
	return c.abort(acts, failf(CodeProtocol, "the server sent %s while the client waited for %s", fastNames[m.kind], c.awaits()))
}

// fastReceived returns the message that the peer, "client" or "server", has sent with an event of kind evReceived.
func fastReceived(ev event, peer string) (fastMessage, error) {
	if ev.err != nil {
		return fastMessage{}, ev.err
	}
	m, n := parseFast(ev.data)
	if n < 0 || ev.hasImm {
		return fastMessage{}, failf(CodeProtocol, "the %s sent a message of %d bytes that makes no sense", peer, len(ev.data))
	}
	return m, nil
}

// peerFailure is the failure that the peer has sent.
func peerFailure(m fastMessage) error {
	v, n := parseErrorMessage(m.tail)
	if n < 0 {
		return &failure{code: CodeOther, remote: true}
	}
	return v.failure()
}

// start takes the address of the server's buffers and begins to read.
func (c *fastClient) start(m fastMessage, acts []action) []action {
	if int64(m.length) != int64(c.chunk) || int64(m.count) != int64(c.agreement.buffers) {
		return c.abort(acts, failf(CodeProtocol, "the server lays out %d buffers of %d bytes; %d of %d were agreed", m.count, m.length, c.agreement.buffers, c.chunk))
	}
	c.remote = verbs.RemoteAddr{Addr: m.number, RKey: m.word}
	c.state = fastStreaming
	if c.size == 0 && c.choice == nil { // read all the same, to see that it is empty
		c.reading++
		c.buffers[0].state = bufferReading
		return append(acts, action{kind: actRead})
	}
	return c.fill(acts)
}

// fill starts reads of the source into the empty buffers, in turn.
func (c *fastClient) fill(acts []action) []action {
	if c.stream {
		return c.fillStream(acts)
	}
	if c.state != fastStreaming {
		return acts
	}
	for c.offset < c.size {
		slot := c.window.Slot(c.reads)
		b := &c.buffers[slot]
		if b.state != bufferEmpty || b.hashing {
			break
		}
		b.state = bufferReading
		b.n = int(min(c.size-c.offset, int64(c.chunk)))
		read := action{kind: actRead, slot: slot, offset: c.offset}
		if c.choice != nil && c.offset >= c.choice.Head {
			b.n = c.choice.next(&read, c.chunk)
			c.choice.passed(c.offset + int64(b.n))
		} else if c.choice != nil { // the head ends with a chunk
			b.n = int(min(c.choice.Head-c.offset, int64(c.chunk)))
		}
		read.n = b.n
		acts = append(acts, read)
		c.offset += int64(b.n)
		c.reads++
		c.reading++
	}
	if c.choice != nil {
		return c.look(acts)
	}
	return acts
}

// filled processes the end of a read. Reads end in the order in which they were started, so
// the digest gets the chunks in order.
func (c *fastClient) filled(ev event, acts []action) []action {
	c.reading--
	if ev.err != nil {
		return c.abort(acts, ev.err)
	}
	if c.stream {
		return c.streamFilled(ev, acts)
	}
	b := &c.buffers[ev.slot]
	if ev.n == 0 {
		if c.choice == nil {
			b.state = bufferEmpty
		}
		return c.wrapUp(acts)
	}
	b.state, b.crc = bufferFull, ev.crc
	if c.digest != NoDigest {
		b.hashing = true
		c.hashing++
		acts = append(acts, action{kind: actHash, slot: ev.slot, n: b.n})
	}
	return c.wrapUp(c.pump(acts))
}

// pump writes full buffers to free ones of the server, in turn.
func (c *fastClient) pump(acts []action) []action {
	for {
		slot := c.window.Slot(c.window.Sent())
		b := &c.buffers[slot]
		if b.state != bufferFull || !c.window.Fits(b.n) {
			return acts
		}
		index := c.window.Send(b.n)
		b.state = bufferSending
		c.passed += int64(b.n)
		to := verbs.RemoteAddr{Addr: c.remote.Addr + uint64(slot)*uint64(c.chunk), RKey: c.remote.RKey}
		acts = append(acts, action{kind: actWrite, slot: slot, n: b.n, remote: to})
		acts = c.send(acts, fastMessage{kind: fastChunk, length: uint32(b.n), number: index, word: b.crc}, slot)
	}
}

// credit processes a grant of the server. Messages of one connection do not overtake each
// other, so a grant that gives nothing back is refused, because a server could pretend
// progress with it.
func (c *fastClient) credit(m fastMessage, acts []action) []action {
	if before := c.window.Granted(); m.number <= before {
		return c.abort(acts, failf(CodeProtocol, "the server gives %d buffers back in all, after %d", m.number, before))
	}
	if err := c.window.Grant(m.number); err != nil {
		return c.abort(acts, failf(CodeProtocol, "the server sent %w", err))
	}
	_, outstanding := c.window.Outstanding()
	if n := c.passed - outstanding - c.stored; n > 0 {
		acts = c.advance(acts, n)
	}
	return c.wrapUp(c.pump(acts))
}

// wrapUp goes on to the end when all chunks are sent and hashed.
func (c *fastClient) wrapUp(acts []action) []action {
	if c.state != fastStreaming || c.choice != nil && !c.choice.looked || c.size < 0 || c.offset < c.size || c.reading > 0 || c.window.Sent() < c.reads || c.hashing > 0 {
		return acts
	}
	c.state = fastSumming
	if c.digest != NoDigest {
		return append(acts, action{kind: actSum})
	}
	return c.sendEnd(acts)
}

func (c *fastClient) sendEnd(acts []action) []action {
	if c.state != fastSumming {
		return acts
	}
	c.state = fastAwaitsDone
	return c.send(acts, c.total(fastEnd), none)
}

// total is the message about the whole file.
func (c *fastClient) total(kind uint16) fastMessage {
	return totalMessage(kind, c.size, c.digest, &c.sum)
}

func totalMessage(kind uint16, size int64, d Digest, sum *[SumLen]byte) fastMessage {
	m := fastMessage{kind: kind, number: uint64(size)}
	if d != NoDigest {
		m.tail = sum[:]
	}
	return m
}

// done processes the server's last message: the file is stored as it was sent.
func (c *fastClient) done(m fastMessage, acts []action) []action {
	if m.number != uint64(c.size) || string(m.tail) != string(c.total(fastDone).tail) {
		return c.end(acts, failf(CodeProtocol, "the server has stored %d bytes with digest %x, which differs from the file", m.number, m.tail))
	}
	if n := c.size - c.stored; n > 0 {
		acts = c.advance(acts, n)
	}
	return c.end(acts, nil)
}

func (c *fastClient) send(acts []action, m fastMessage, slot int) []action {
	return append(acts, action{kind: actSend, slot: slot, label: fastNames[m.kind], msg: c.out.sent(appendFast(c.out.room(), m))})
}

// abort ends the transfer from this side and sends the error to the server.
func (c *fastClient) abort(acts []action, err error) []action {
	return c.end(c.send(acts, failedMessage(err), none), err)
}

// failedMessage is the message that sends this side's error to the peer.
func failedMessage(err error) fastMessage {
	return fastMessage{kind: fastFailed, tail: appendErrorMessage(nil, errorMessageOf(err), maxErrorMessage)}
}

func (c *fastClient) end(acts []action, err error) []action {
	c.state = fastOver
	return append(acts, finish(err))
}
