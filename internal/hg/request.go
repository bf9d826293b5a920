package hg

import (
	"context"
	"errors"
	"sync/atomic"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// Dispatcher is the layer above: it takes requests.
type Dispatcher interface {
	// Dispatch is called when the whole input is there, on a goroutine that makes progress. It must not block. It owns r
	// from now on. The task that it returns, if any, is run soon, see [na.Handler].
	Dispatch(r *Request) na.Task
	// Unknown returns 0 if an RPC is registered, and otherwise the code for its callers. An input that does not fit into a message is
	// fetched only if the RPC is registered. It must not block.
	Unknown(id ID) codes.Code
}

// Keeper is a [Dispatcher] that may keep the memory of inputs.
type Keeper interface {
	Dispatcher
	// Keeps reports whether the receiver of the next input of an RPC probably keeps it. A large input is then fetched into memory of its own, and
	// [Request.Owned] returns true. It must not block.
	Keeps(id ID) bool
}

// Request is the target's half of an RPC (hg_handle_t at the server). The [Dispatcher] answers it once, unless it is
// one-way, and gives it back by Free.
//
//	pulling: the input's overflow is in flight
//	   |
//	   v                Respond, Fail
//	dispatched ------------------------> answered: the response is in flight, and with overflow its ack
//	   |                                    |
//	   +----------------- Free -------------+--> idle, when the network holds nothing of it any more
//
// As for a [Call], holds decide when it is idle: the owner's, and one for each operation in flight.
type Request struct {
	c       *Class
	from    na.Addr
	tag     uint32
	f       wire.Request
	caller  *Call  // the call, if it is one to the own address
	probe   bool   // see IsProbe
	started uint32 // the sequence of caller's opState when it made the request

	in       []byte   // the result of Input
	mem      *scratch // the memory of in; nil: in is in buf, or in memory of its own
	owned    bool     // see Owned
	buf      []byte   // of requests that fit into a message
	out      []byte   // the response: room for the transport, headers, payload
	charged  charge
	descCost int64              // bytes that the descriptor of the input counts for
	pulling  *hostquota.Account // which the pull of the input counts for; nil: there is none
	unsent   atomic.Uint32      // whether the response counts as unsent

	send    na.Op
	ack     na.Op
	ackBuf  [8]byte
	ackDone na.Event
	ackErr  error // valid when ackDone is set

	answered atomic.Bool
	sent     atomic.Pointer[sendResult]

	holds atomic.Int32
}

// sendResult is how the sending of a response ended.
type sendResult struct{ err error }

var sentWell = &sendResult{}

var (
	errOneWay   = errors.New("a one-way RPC takes no response")
	errAnswered = errors.New("the request has its response already")
	errUnacked  = errors.New("peer has not acknowledged a response with overflow")
	errUnheard  = errors.New("handler has freed the request without a response")
)

func (c *Class) newRequest(from na.Addr, tag uint32, f wire.Request) *Request {
	r, _ := c.requests.Get().(*Request)
	if r == nil {
		r = &Request{
			c:   c,
			buf: make([]byte, c.limits.MaxRequest),
			out: make([]byte, c.limits.ResponseRoom+c.limits.MaxResponse),
		}
		r.send.Done = (*requestSend)(r)
		r.ack.Done = (*requestAck)(r)
	}
	r.from, r.tag, r.f, r.probe, r.owned = from, tag, f, false, false
	r.holds.Store(1)
	c.count.requestsActive.Add(1)
	holdOrigin(from, 1)
	return r
}

// holdOrigin keeps the connection that a request came over from giving way to others while the request exists, where the
// transport counts that.
func holdOrigin(from na.Addr, n int64) {
	if h, ok := from.(na.Holder); ok {
		h.Hold(n)
	}
}

// ID returns the id of the RPC.
func (r *Request) ID() ID { return ID(r.f.ID) }

// From returns the address of the caller. It may be kept.
func (r *Request) From() na.Addr { return r.from }

// OneWay reports whether the caller waits for no response.
func (r *Request) OneWay() bool { return r.f.Flags&wire.FlagNoResponse != 0 }

// IsProbe reports whether the request is a probe, by which another Class finds out whether this process computes checksums. No
// process registers its RPC.
func (r *Request) IsProbe() bool { return r.probe }

// Context returns the caller's context id.
func (r *Request) Context() uint8 { return r.f.Cookie }

// Input returns the payload of the request. It is valid until Free.
func (r *Request) Input() []byte { return r.in }

// Owned reports whether the memory of Input belongs to this request alone and is used for nothing else later. Then the program may keep
// Input, or parts of it, also after Free.
func (r *Request) Owned() bool { return r.owned }

// Output returns an empty slice of the response, to which the payload can be appended. Its capacity is the room for a payload in one message.
func (r *Request) Output() []byte {
	start := r.c.limits.ResponseRoom + r.f.Form.Size()
	return r.out[start:start:max(len(r.out), start)]
}

// takeInput copies a payload that came within the message.
func (r *Request) takeInput(payload []byte) {
	if len(payload) > len(r.buf) {
		r.in = append([]byte(nil), payload...)
		return
	}
	r.in = r.buf[:copy(r.buf, payload)]
}

// ReleaseInput gives up the input before Free (HG_Release_input_buf): memory that was pulled counts no more.
func (r *Request) ReleaseInput() {
	r.in = nil
	r.mem.release()
	r.mem = nil
	r.c.refund(&r.charged)
}

// Charge counts n bytes of memory that the input takes when it is unpacked, for the host of the caller, until the input is released.
func (r *Request) Charge(n int64) error {
	if err := r.c.charge(&r.charged, r.from, n); err != nil {
		return newError("unpack input", r.from, codes.Again, err)
	}
	return nil
}

// Broken counts the input as a message that breaks the protocol of package native, and logs err at the limited rate for the host of the caller.
func (r *Request) Broken(err error) {
	r.c.cfg.Audit.Record(audit.Broken, "malformed native message", hostOf(r.from), peerAttrs(r.from, err)...)
}

// pullInput fetches an input that is described by payload instead of being there. The request is dispatched when it is.
func (r *Request) pullInput(payload []byte) {
	account := r.from.Account()
	if err := account.Take(hostquota.Pulls, 1); err != nil { // before the descriptor is parsed, because a refusal must cost little
		r.reject(newError(opInput, r.from, codes.Again, &laterError{err}))
		return
	}
	r.pulling = account
	d, bad := r.c.checkLent(payload, r.from)
	if bad != nil {
		r.endPull()
		r.reject(bad.about(opInput, r.from))
		return
	}
	r.descCost = descCost * int64(len(payload))
	if err := account.Take(hostquota.Memory, r.descCost); err != nil {
		r.descCost = 0
		r.endPull()
		r.reject(newError(opInput, r.from, codes.Again, err))
		return
	}
	keeper, ok := r.c.cfg.Dispatch.(Keeper)
	r.c.newPull(opInput, r.from, d, &r.charged, (*requestPull)(r), ok && keeper.Keeps(r.ID())).next()
}

// laterError is the error of a request that is refused because its host has its share of pulls under way. Its text is formatted only
// for the log, because a host may send a million such requests a second.
type laterError struct{ err error }

// Error implements error.
func (e *laterError) Error() string { return e.err.Error() + ": try again later" }

// Unwrap returns the error of the quota.
func (e *laterError) Unwrap() error { return e.err }

// endPull ends the count of a pull, because the input is fetched, or is not going to be.
func (r *Request) endPull() {
	r.pulling.Give(hostquota.Pulls, 1)
	if r.descCost > 0 {
		r.pulling.Give(hostquota.Memory, r.descCost)
	}
	r.pulling, r.descCost = nil, 0
}

const opInput = "pull input"

// requestPull completes the pull of the input's overflow.
type requestPull Request

func (q *requestPull) pulled(p *pull, err *Error) {
	r := (*Request)(q)
	r.endPull()
	if err == nil {
		if bad := wire.VerifyPayload(r.f.CRC, p.buf, true); bad != nil {
			err = newError(opInput, r.from, bad.Code, bad)
		}
	}
	if err != nil {
		r.reject(err)
		return
	}
	r.in, r.mem, r.owned = p.buf, p.mem, p.owned()
	if r.OneWay() {
		r.ackInput()
	}
	r.c.dispatchElsewhere(r)
}

// reject drops a request after the pull of its input has failed, and sends the error to a caller that waits for a response.
func (r *Request) reject(e *Error) {
	if e.Code == codes.Again {
		r.c.count.requestsRefused.Add(1)
		r.c.refused(r.from, "no room for an input", e)
	} else {
		r.c.count.requestsDropped.Add(1)
		r.c.cfg.Audit.Record(audit.Broken, "input cannot be fetched", hostOf(r.from), peerAttrs(r.from, e)...)
	}
	r.c.refund(&r.charged) // the peer may take its time with the answer
	switch {
	case r.OneWay():
	case e.Code == codes.HostUnreach || e.Code == codes.HostFirewall || e.Code == codes.Canceled: // by loss of the peer or end of the Class
		r.answered.Store(true)
	default:
		_ = r.Fail(e.Code) // its outcome is counted there
	}
	r.Free()
}

// ackInput acknowledges the overflow of a one-way request, after which its origin may free the memory.
func (r *Request) ackInput() {
	msg := r.out[:r.c.limits.ResponseRoom+wire.AckSize]
	msg[r.c.limits.ResponseRoom] = 0
	r.hand(msg)
}

// Fail answers with an error instead of a payload, as the core of C does for an RPC that it does not know (NoEntry). It
// does not wait for the network.
func (r *Request) Fail(code codes.Code) error {
	if err := r.claim(); err != nil {
		return err
	}
	if r.caller != nil {
		r.answerSelf(code, nil)
		return nil
	}
	return r.transmit(r.errorMessage(code))
}

// errorMessage makes the response that carries an error. Like C it sends twice the size of its core header, because peers recognize the
// build of a process by that.
func (r *Request) errorMessage(code codes.Code) []byte {
	msg := r.out[:r.c.limits.ResponseRoom+2*r.f.Form.CoreSize()]
	clear(msg)
	wire.PutResponse(msg[r.c.limits.ResponseRoom:], r.response(code, 0))
	return msg
}

// claim lets one answer pass.
func (r *Request) claim() error {
	if r.OneWay() {
		return newError("respond", r.from, codes.OpNotSupported, errOneWay)
	}
	if !r.answered.CompareAndSwap(false, true) {
		return newError("respond", r.from, codes.InvalidArg, errAnswered)
	}
	return nil
}

// response returns the headers of an answer: flags and cookie are the request's.
func (r *Request) response(code codes.Code, flags uint8) wire.Response {
	return wire.Response{Form: r.f.Form, Code: code, Flags: r.f.Flags&^wire.FlagMoreData | flags, Cookie: uint16(r.f.Cookie)}
}

// Respond answers with a payload: Output appended to, or any other slice. It can be used again when Respond returns, but
// for one that does not fit into a message: that must never be written to again, because the peer may still pull it after Respond has
// returned.
//
// A response that fits into one message is handed to the network, and Respond does not wait for the network to take it:
// it may be called where responses are collected and leave together. If taking it fails later, that is logged and
// counted, and the caller learns of the loss of the peer by itself. A larger one is lent to the peer: Respond returns when
// the peer has it, is gone, or ctx ends; or when the peer takes unreasonably long, which is sooner if it pulls none of
// several. A peer that goes on asking and not pulling is answered Again.
func (r *Request) Respond(ctx context.Context, payload []byte) error {
	if err := r.claim(); err != nil {
		return err
	}
	if r.caller != nil {
		r.answerSelf(wire.Success, payload)
		return nil
	}
	here := r.Output()
	f := r.response(wire.Success, 0)
	if f.Form == wire.FormLong && !r.c.limits.Sealed {
		f.CRC = wire.CRC32C(payload)
	}
	if len(payload) > cap(here) {
		return r.respondExtra(ctx, f, payload)
	}
	return r.transmit(r.place(f, payload))
}

// place writes the headers before the payload, which it copies unless it is there already.
func (r *Request) place(f wire.Response, payload []byte) []byte {
	room := r.c.limits.ResponseRoom
	start := room + f.Form.Size()
	if here := r.out[start:]; len(payload) > 0 && &payload[0] != &here[0] {
		copy(here, payload)
	}
	wire.PutResponse(r.out[room:], f)
	return r.out[:start+len(payload)]
}

// transmit hands a response to the network. It returns the error if the sending has failed by then.
func (r *Request) transmit(msg []byte) error {
	r.hand(msg)
	if s := r.sent.Load(); s != nil && s.err != nil {
		return newError("respond", r.from, codeOf(s.err), s.err)
	}
	return nil
}

// Values of Request.unsent.
const (
	unsentNot     uint32 = iota // not handed to the network, or not counted yet
	unsentCounted               // the host's account has it
	unsentOver                  // the network has taken it
)

// hand hands a message to the network. A message that the network does not take at once counts for the host of the peer,
// unless the host has used up its share since the request was admitted.
func (r *Request) hand(msg []byte) {
	r.c.count.unsent.Add(1)
	r.unsent.Store(unsentNot)
	account := r.from.Account()
	r.hold()
	r.c.ep.SendExpected(&r.send, r.from, r.tag, msg)
	if r.unsent.Load() == unsentNot && account.Take(hostquota.Unsent, 1) == nil && !r.unsent.CompareAndSwap(unsentNot, unsentCounted) {
		account.Give(hostquota.Unsent, 1)
	}
}

// requestSend completes the sending of a response, or of the ack for a one-way request.
type requestSend Request

// Complete implements [na.Completer].
func (s *requestSend) Complete(op *na.Op) {
	r := (*Request)(s)
	switch {
	case r.OneWay(): // an ack
	case op.Err == nil:
		r.c.count.responsesSent.Add(1)
		r.sent.Store(sentWell)
	default:
		r.c.count.responsesFailed.Add(1)
		r.c.log.Debug("response not sent", "peer", r.from.String(), "error", op.Err)
		r.sent.Store(&sendResult{op.Err})
	}
	if r.unsent.Swap(unsentOver) == unsentCounted {
		r.from.Account().Give(hostquota.Unsent, 1)
	}
	if r.c.count.unsent.Add(-1) == 0 {
		r.c.flush.wake()
	}
	r.release()
}

// Free gives the request back; its Input and Output must not be used any more. A two-way request that has no answer yet
// is answered with OtherError, so that its caller does not wait for ever. (C leaves it waiting.)
func (r *Request) Free() {
	if !r.OneWay() && !r.answered.Load() {
		r.c.count.requestsUnheard.Add(1)
		r.c.warn(r.from, "request without response", errUnheard)
		_ = r.Fail(codes.OtherError) // its outcome is counted there
	}
	r.release()
}

func (r *Request) hold() { r.holds.Add(1) }

func (r *Request) release() {
	switch left := r.holds.Add(-1); {
	case left < 0:
		panic("hg: request freed twice")
	case left == 0:
		r.recycle()
	}
}

// recycle makes a request that nothing refers to ready for reuse.
func (r *Request) recycle() {
	r.c.refund(&r.charged)
	holdOrigin(r.from, -1)
	r.mem.release()
	r.from, r.caller, r.in, r.mem = nil, nil, nil, nil
	r.answered.Store(false)
	r.sent.Store(nil)
	r.ackDone.Reset()
	r.ackErr = nil
	r.c.count.requestsActive.Add(-1)
	r.c.requests.Put(r)
}
