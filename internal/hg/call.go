package hg

import (
	"context"
	"sync/atomic"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
)

// Call is the origin's half of an RPC (hg_handle_t at the client). It is made by [Class.NewCall], started once, and
// given back by Free.
//
//	            +------------- probing: the peer's build is being found out (Detect only)
//	            v
//	idle --> active: request and response are in flight --------------+
//	Start       |                                                     |
//	            +--> pulling: the response's overflow is in flight ---+--> done --> idle
//	            |                       |                             |       Free
//	            |                       +--> acking -------------------+
//	            +--> with the target: a call to the own address -------+
//
// The states between idle and done are no phases of [opState]. Start, each operation in flight and each goroutine that works on the Call
// have a hold, and the Call is done when the last hold is dropped. Cancel and failures do not end the Call: they end its operations,
// which then drop their holds. So the Call ends once, and the transport has no reference to it afterwards.
//
// A payload that the peer pulls is revoked before the end, but for a cancelled call and a one-way call without an
// acknowledgement, see Class.linger.
//
// A message that comes after the end finds no Call, because its tag is not in use any more, and for a long time it will not be again.
type Call struct {
	c *Class

	// Set by Start, constant until done.
	to     na.Addr
	via    na.Addr // the peer that a waiter drives; nil for calls to the own address
	id     ID
	opts   CallOptions
	tag    uint32
	tagged bool // tag is to be released
	form   wire.Form
	notify Notifier

	buf     []byte // the request: room for the transport, headers of the longer form, payload
	recv    []byte // the response
	held    []byte // a payload that waits for the result of the probe
	payload []byte // the payload of the request, for GiveUp; set before the request is sent

	send    na.Op
	receive na.Op
	ack     na.Op
	clash   atomic.Bool // the receive was refused because of its tag
	done    na.Event

	state   opState
	failure *Error        // the error of a call with flagFailed
	cancel  *Error        // the error of a call with flagCancelled
	sentTag atomic.Uint32 // the tag of the request that was handed to the transport last, valid with flagLaunched
	sentAt  atomic.Int64  // a time.Duration: the reading of Config.Clock when the transport had sent the request

	extra  callExtra // fields that only calls with overflow use
	out    []byte    // payload of the response
	result error     // valid when done
	probe  *peer     // not nil: this is the question to that peer
	local  bool      // to the own address, and in Class.selfCalls
	addr   [maxAddr]byte
}

// CallOptions are properties of one call.
type CallOptions struct {
	OneWay bool // the target sends no response
	// Proc names the RPC in errors about memory of which the call carried the handle; nil: they have the RPC's id.
	Proc     Namer
	Provider uint16
	Keep     bool // the caller probably keeps the output: a large one is fetched into memory of its own, and Owned returns true
}

// Namer names an RPC.
type Namer interface {
	// Label returns the RPC's name together with the provider.
	Label(provider uint16) string
}

// Notifier is called at the end of a call.
type Notifier interface {
	// CallDone is called once, on a goroutine that makes progress or that of Start or Cancel. It must not block. It may
	// call Free.
	CallDone(k *Call)
}

// NewCall returns an idle call.
func (c *Class) NewCall() *Call {
	k, _ := c.calls.Get().(*Call)
	if k == nil {
		k = &Call{
			c:    c,
			buf:  make([]byte, c.inputStart()+c.inputRoom(wire.FormShort)),
			recv: make([]byte, c.limits.MaxResponse),
		}
		k.send.Done = (*callSend)(k)
		k.receive.Done = (*callReceive)(k)
		k.ack.Done = (*callAck)(k)
	}
	k.state.prepare()
	return k
}

// inputStart returns the offset of the payload in Call.buf: the longer headers fit before it.
func (c *Class) inputStart() int { return c.limits.RequestRoom + wire.FormLong.Size() }

// inputRoom returns the number of bytes of payload that fit into a request.
func (c *Class) inputRoom(f wire.Form) int { return max(c.limits.MaxRequest-f.Size(), 0) }

// Input returns an empty slice of the request, to which the payload can be appended. Its capacity is the room for a payload in one message.
func (k *Call) Input() []byte {
	start, room := k.c.inputStart(), k.c.inputRoom(wire.FormLong)
	if k.c.cfg.Checksums == wire.NoChecksums {
		room = k.c.inputRoom(wire.FormShort)
	}
	return k.buf[start : start : start+room]
}

// InputFor is Input for a payload that probably has n bytes. If n is from LargePayload to scratchMost, the capacity of the slice is n at least, in scratch memory
// that the call releases at its end. Otherwise InputFor returns Input. The payload may be longer or shorter than n.
func (k *Call) InputFor(n int) []byte {
	if k.extra.in = takeScratch(n); k.extra.in == nil {
		return k.Input()
	}
	return k.extra.in.b[:0]
}

// Lends reports whether a call to a peer should be started by StartLent if it has a payload of LargePayload bytes or more. Otherwise StartLent
// copies the payload.
func (c *Class) Lends(to na.Addr) bool {
	if c.lender == nil || to == nil || c.self.Equal(to) {
		return false
	}
	switch c.cfg.Checksums {
	case wire.NoChecksums:
		return true
	case wire.Detect:
		b := buildOf(to)
		return b.valid() && (b.form == wire.FormShort || c.limits.Sealed)
	case wire.Checksums:
	}
	return c.limits.Sealed
}

// Around returns an empty slice to which the parts of a payload can be appended that the caller of StartLent encodes.
func (k *Call) Around() []byte { return k.extra.around[:0] }

// keepAround is the largest capacity in bytes of the memory of Around that a Call keeps.
const keepAround = 4 << 10

// StartLent is Start for a payload in three parts: head, lent and tail, in this order. head and tail are Around appended to. opts.OneWay is false.
// The peer pulls lent directly, so the caller must not change lent until Wait has returned, and may change it then. If the peer may pull after
// that, because it does not know of a cancel for example, it gets a copy.
func (k *Call) StartLent(to na.Addr, id ID, opts CallOptions, head, lent, tail []byte) {
	k.to, k.id, k.opts = to, id, opts
	x := &k.extra
	x.lends = true
	if x.around = head[:0]; cap(head) > keepAround {
		x.around = nil
	}
	for _, p := range [...][]byte{head, lent, tail} {
		if len(p) > 0 {
			x.parts[x.nparts] = p
			x.nparts++
		}
	}
	k.begin()
	k.route(nil)
	k.release(0)
}

// Notify makes the end of the call run f.CallDone, in place of a Wait. It is called before Start.
func (k *Call) Notify(f Notifier) { k.notify = f }

// Start sends the request. payload is Input appended to, or any other slice. If it fits into one message it belongs to
// the Call until the end. Otherwise it stays where it is and is pulled by the peer, and must never be written to again:
// a peer that does not know of a cancel may pull it after the end. Errors show at the end.
func (k *Call) Start(to na.Addr, id ID, opts CallOptions, payload []byte) {
	k.to, k.id, k.opts = to, id, opts
	k.begin()
	k.route(payload)
	k.release(0)
}

func (k *Call) route(payload []byte) {
	switch {
	case k.c.closed.Load():
		k.fail(codes.Canceled, errClosed)
		return
	case k.to == nil:
		k.fail(codes.InvalidArg, errNoAddress)
		return
	case k.c.self.Equal(k.to):
		k.startSelf(payload)
		return
	}
	k.via = k.to
	switch k.c.cfg.Checksums {
	case wire.Detect:
		k.startDetect(payload)
	case wire.Checksums:
		k.form = wire.FormLong
		k.launch(payload)
	case wire.NoChecksums:
		k.form = wire.FormShort
		k.launch(payload)
	}
}

// Wait waits for the end and returns Err. If ctx ends before, the call is cancelled and the error has code Timeout or
// Canceled; after a second in which the network does not let go of it, Wait returns all the same: then payload still
// belongs to the call. A one-way call ends when the network has taken it, or when the peer has its overflow. Wait for a call that StartLent
// has started returns when the parts are the caller's again.
func (k *Call) Wait(ctx context.Context) error {
	if k.c.await(ctx, k.via, &k.done) {
		return k.result
	}
	code, cause := endOf(ctx)
	cause = k.during(cause)
	aborted := k.abort(code, cause)
	if settle(&k.done) {
		return k.result
	}
	// If another goroutine has cancelled the call, it may still copy the parts. A call that was not launched may still be reading them.
	if k.extra.lends && !(aborted && k.state.load().has(flagLaunched)) {
		if wake := k.done.Park(); wake != nil {
			<-wake
		}
		return k.result
	}
	return newError("call", k.to, code, cause)
}

// Cancel ends the call early, with code Canceled, unless it has its answer already. Any goroutine may call it between
// Start and Free. The end comes soon after, not before Cancel returns.
func (k *Call) Cancel() { k.abort(codes.Canceled, k.during(nil)) }

// Err returns why the call failed, an [*Error], or nil; it is valid after the end.
func (k *Call) Err() error { return k.result }

// Output returns the payload of the response, nil for one-way calls and after errors. It is valid from the end until
// Free.
func (k *Call) Output() []byte { return k.out }

// Owned reports whether the memory of Output belongs to this call alone and is used for nothing else later. Then the program may keep Output,
// or parts of it, also after Free. The result is valid as long as Output is.
func (k *Call) Owned() bool { return k.extra.owned }

// Fetched reports whether Output did not fit into a message. Then it counts against the budget of the Class until Free. The result is
// valid as long as Output is.
func (k *Call) Fetched() bool { return k.extra.charged.bytes != 0 }

// Charge counts n bytes of memory that Output takes when it is unpacked, for the host of the server, until Free. It is called after the end.
func (k *Call) Charge(n int64) error {
	if err := k.c.charge(&k.extra.charged, k.to, n); err != nil {
		return newError("unpack output", k.to, codes.Again, err)
	}
	return nil
}

// Free gives the call back, also one that was never started. It is meant to be called after the end; a call that still
// runs goes on unobserved and is given back when it ends.
func (k *Call) Free() {
	if k.done.IsSet() { // refund here, because complete may still run and recycle the call later, and callers rely on the budget after Free
		k.c.refund(&k.extra.charged)
	}
	phase := k.state.free()
	if phase == phasePooled {
		panic("hg: call freed twice")
	}
	if phase != phaseStarted {
		k.recycle()
	}
}

// recycle makes a call that nothing refers to ready for reuse.
func (k *Call) recycle() {
	k.c.refund(&k.extra.charged)
	k.state.retire()
	k.to, k.via, k.notify, k.probe = nil, nil, nil, nil
	k.extra.in.release()
	k.extra.mem.release()
	k.extra.in, k.extra.mem, k.extra.owned = nil, nil, false
	k.extra.dropParts()
	k.extra.lends = false
	k.out, k.result, k.payload = nil, nil, nil
	k.failure, k.cancel = nil, nil
	k.opts = CallOptions{}
	k.done.Reset()
	k.c.calls.Put(k)
}
