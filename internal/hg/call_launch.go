package hg

import (
	"errors"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

var (
	errNoOverflow = errors.New("payload does not fit into a message and overflow is switched off (Config.NoOverflow): use a bulk transfer")
	errNoLoopback = errors.New("calls to the own address are switched off (Config.NoLoopback)")
)

// callExtra has the fields of a call that only overflow uses.
type callExtra struct {
	lent na.Memory // the payload of the request, while the peer may pull it

	lends  bool               // StartLent was called
	parts  [na.MaxLent][]byte // the payload, if lends is true
	nparts int                // the number of parts; 0: the payload is in one piece
	around []byte             // memory for the first and the last part; see Around

	in       *scratch // the memory of InputFor; nil: there is none, or the peer may still pull it
	lentSize int
	timer    *time.Timer
	pull     *pull    // of the payload of the response
	mem      *scratch // memory of the pulled payload; nil: it has other memory
	owned    bool     // see Call.Owned
	crc      uint32
	ackBuf   []byte
	charged  charge
}

// release stops the timer and drops the pull at the end of a call. Call.out keeps the payload, and Call.end closes the lent memory.
func (x *callExtra) release() {
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.pull = nil
}

// launch sends the request in the form k.form. The caller holds the call.
func (k *Call) launch(payload []byte) {
	if !k.takeTag() {
		return
	}
	f := wire.Request{Form: k.form, ID: uint64(k.id)}
	if k.opts.OneWay {
		f.Flags = wire.FlagNoResponse
	}
	if k.extra.nparts > 0 && (k.checked() || k.extra.size() <= k.c.inputRoom(k.form)) {
		payload = k.flat()
	}
	if k.checked() {
		f.CRC = wire.CRC32C(payload)
	}
	k.payload = payload
	if k.extra.nparts > 0 || len(payload) > k.c.inputRoom(k.form) {
		var ok bool
		if payload, ok = k.lend(payload); !ok {
			return
		}
		f.Flags |= wire.FlagMoreData
	}
	k.transmit(k.place(f, payload), f.Flags)
}

// checked reports whether the request has a checksum of its payload.
func (k *Call) checked() bool { return k.form == wire.FormLong && !k.c.limits.Sealed }

// size returns the number of bytes of the parts.
func (x *callExtra) size() (n int) {
	for _, b := range x.parts[:x.nparts] {
		n += len(b)
	}
	return n
}

// flat copies the parts into one slice, drops them, and returns the slice.
func (k *Call) flat() []byte {
	x := &k.extra
	b := hostmem.Uncleared(x.size())[:0]
	for _, p := range x.parts[:x.nparts] {
		b = append(b, p...)
	}
	x.dropParts()
	return b
}

func (x *callExtra) dropParts() {
	clear(x.parts[:])
	x.nparts = 0
}

// keepLent makes the network use a copy of the parts, because the caller may change them as soon as Wait has returned, and the peer may still
// pull. The goroutine that calls keepLent has a hold, and the call is cancelled.
func (k *Call) keepLent() {
	w := k.state.load()
	if !w.has(flagLaunched) { // it never will be
		return
	}
	m, ok := k.extra.lent.(na.LentMemory)
	if !ok || k.extra.nparts == 0 {
		return
	}
	if w.has(flagSucceeded) { // a peer usually responds after it has pulled, and must not pull any more
		if m.Revoke(); m.Idle() {
			return
		}
	}
	k.payload = m.Keep()
}

// place writes the headers before the payload, which it copies unless it is there already, and returns the message with
// the room for the transport.
func (k *Call) place(f wire.Request, payload []byte) []byte {
	start := k.c.inputStart()
	if here := k.buf[start:]; len(payload) > 0 && &payload[0] != &here[0] {
		copy(here, payload)
	}
	head := start - f.Form.Size()
	wire.PutRequest(k.buf[head:], f)
	return k.buf[head-k.c.limits.RequestRoom : start+len(payload)]
}

// transmit starts the operations of the transport: the receive first, because the response may overtake the completion
// of the send.
func (k *Call) transmit(msg []byte, flags uint8) {
	if flags == wire.FlagNoResponse { // a one-way call with overflow waits for an ack
		if k.take(opSend, 1) {
			k.c.ep.SendRequest(&k.send, k.to, k.tag, msg)
			k.recheck()
		}
		return
	}
	for range maxClashes {
		if !k.take(opSend|opReceive, 2) {
			return
		}
		k.clash.Store(false)
		k.c.ep.RecvExpected(&k.receive, k.to, k.tag, k.recv)
		if !k.clash.Load() {
			k.c.ep.SendRequest(&k.send, k.to, k.tag, msg)
			k.recheck()
			return
		}
		// The ack for a response to this peer is awaited under the same tag, which that peer has chosen.
		k.state.drop(opSend)
		if !k.takeTag() {
			return
		}
	}
	k.fail(codeOf(k.receive.Err), k.receive.Err) // for another reason, then
}

// maxClashes is how many tags in a row a call tries that happen to be in use by the peer's requests.
const maxClashes = 16

// takeTag gets a new tag. The caller holds the call.
func (k *Call) takeTag() bool {
	if k.tagged {
		k.c.tags.Release(k.tag)
	}
	if k.tag, k.tagged = k.c.tags.Take(); !k.tagged {
		k.fail(codes.Again, errNoTag)
	}
	return k.tagged
}

// lend exposes a payload for the peer to pull and returns the descriptor that travels in its place.
func (k *Call) lend(payload []byte) (desc []byte, ok bool) {
	if k.c.cfg.NoOverflow {
		k.fail(codes.Overflow, errNoOverflow)
		return nil, false
	}
	var mem na.Memory
	var err error
	size := len(payload)
	if x := &k.extra; x.nparts > 0 {
		size = x.size()
		mem, err = k.c.lender.Lend(x.parts[:x.nparts]...)
	} else {
		mem, err = k.c.ep.Register(payload, na.ReadOnly)
	}
	if err != nil {
		k.fail(codeOf(err), err)
		return nil, false
	}
	k.c.count.requestsExtra.Add(1)
	k.extra.lent, k.extra.lentSize = mem, size
	desc = wire.AppendLent(k.buf[k.c.inputStart():k.c.inputStart()], size, mem.AppendHandle, k.c.appendShared(mem, k.to))
	if k.opts.OneWay {
		k.boundAck(size)
	}
	return desc, true
}

// boundAck limits the time for the acknowledgement of a one-way call with overflow. Its absence is no failure, because peers of releases
// before 2.4.1 send none, and a one-way request may get lost in any case.
func (k *Call) boundAck(n int) {
	started := k.state.load().sequence()
	k.extra.timer = time.AfterFunc(patience(oneWayAckTime, n), func() { k.missAck(started) })
}

// missAck runs when the time for the acknowledgement is over. started is the sequence of the call, because k may have been recycled for
// another call since.
func (k *Call) missAck(started uint32) {
	if k.state.claimOf(started, flagAckMissing) {
		k.c.ep.Cancel(&k.receive)
		k.release(0)
	}
}

var errNoAck = errors.New("peer has not acknowledged a one-way request with overflow: its Mercury may be older than 2.4.1; the request may be lost")

// acked handles the end of the receive of a one-way call: the acknowledgement of its overflow has come, or is not awaited any more.
func (k *Call) acked(op *na.Op) {
	w := k.state.load()
	missing := w.has(flagAckMissing) && !w.has(flagCancelled)
	switch {
	case op.Err == nil:
		k.succeed(nil)
	case missing && codeOf(op.Err) == codes.Canceled:
		k.c.count.acksMissing.Add(1)
		k.c.warn(k.to, "no acknowledgement", errNoAck)
		k.succeed(nil)
	default:
		k.fail(codeOf(op.Err), op.Err)
	}
}

// pullOutput fetches a response that is described by payload instead of being there.
func (k *Call) pullOutput(payload []byte, crc uint32) {
	k.c.count.responsesExtra.Add(1)
	x := &k.extra
	d, err := k.c.checkLent(payload, k.to)
	if err != nil {
		k.record(err.about("call", k.to))
		k.sendAck()
		return
	}
	x.crc, x.pull = crc, k.c.newPull("call", k.to, d, &x.charged, (*callPull)(k), k.opts.Keep) // before take: from then on Cancel uses it
	if !k.take(opPull, 1) {
		k.sendAck()
		return
	}
	x.pull.next()
	k.recheck()
}

// callPull completes the pull of the response's overflow.
type callPull Call

func (q *callPull) pulled(p *pull, err *Error) {
	k := (*Call)(q)
	k.state.clear(opPull) // the pull is over, and must not be cancelled any more
	if err == nil {
		if bad := wire.VerifyPayload(k.extra.crc, p.buf, false); bad != nil {
			err = newError("call", k.to, bad.Code, bad)
		}
	}
	if err != nil {
		k.record(err)
	} else {
		k.extra.mem, k.extra.owned = p.mem, p.owned()
		k.succeed(p.buf)
	}
	if err == nil || err.Code != codes.HostUnreach && err.Code != codes.HostFirewall {
		k.sendAck()
	}
	k.release(0)
}

// sendAck sends the acknowledgement of the response's overflow, after which the peer may free its memory. The call ends after the
// acknowledgement was sent, but its result does not depend on it. C sends none if its pull has failed, and its peer keeps the memory; this
// process does not need the memory in that case either.
func (k *Call) sendAck() {
	k.state.hold(opAck)
	k.extra.ackBuf = append(k.extra.ackBuf[:0], make([]byte, k.c.limits.ResponseRoom+wire.AckSize)...)
	k.c.ep.SendExpected(&k.ack, k.to, k.tag, k.extra.ackBuf)
}

// callAck completes the sending of the ack.
type callAck Call

// Complete implements [na.Completer].
func (a *callAck) Complete(*na.Op) { (*Call)(a).release(opAck) }
