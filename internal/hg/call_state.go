package hg

import (
	"errors"
	"fmt"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
)

var (
	errNoAddress = errors.New("no address to call")
	errNoTag     = errors.New("all tags are in use by calls that do not end")
)

// begin takes the hold of Start.
func (k *Call) begin() {
	if !k.state.begin() {
		panic("hg: call started twice")
	}
	k.c.count.callsActive.Add(1)
}

// release gives up one hold and clears op, the bit of an operation that is over; 0: none. With the last hold the call ends.
func (k *Call) release(op stateWord) {
	if k.state.drop(op) {
		k.end()
	}
}

// take takes holds for operations that are about to start. It refuses when the call is cancelled or has failed.
func (k *Call) take(ops stateWord, n int) bool {
	if ops.has(opSend) {
		k.sentTag.Store(k.tag)
		ops |= flagLaunched
	}
	return k.state.take(ops, n)
}

// record stores the error with which the call fails, unless another one was recorded before. It returns the bits of the operations in
// flight. The caller has a hold.
func (k *Call) record(e *Error) (inFlight stateWord) {
	old, first := k.state.set(flagFailed, 0)
	if first {
		k.failure = e
	}
	return old.ops()
}

// fail records a failure and cancels the operations in flight, because the call has no use for their results.
func (k *Call) fail(code codes.Code, err error) {
	k.cancelOps(k.record(newError("call", k.to, code, err)))
}

// abort is Cancel with a reason. It returns false if another goroutine ends the call.
func (k *Call) abort(code codes.Code, cause error) bool {
	if !k.claimAbort(code, cause) {
		return false
	}
	k.c.peers.leave(k)
	k.finishAbort()
	return true
}

// Interrupt begins to end the call early, with a code and a cause, as [Transfer.Interrupt] does a transfer.
func (k *Call) Interrupt(code codes.Code, cause error) (finish func()) {
	if !k.claimAbort(code, cause) {
		return nil
	}
	return func() {
		k.c.peers.leave(k)
		k.finishAbort()
	}
}

// giveUp announces a cancelled call to the transport, because the caller may next close memory of which the request carries the handle.
// The call's send operation has been cancelled before, so the request was sent or never will be; its receive operation has not.
func (k *Call) giveUp() {
	if !k.state.load().has(flagLaunched) || k.opts.OneWay || k.probe != nil {
		return
	}
	if late, ok := k.c.ep.(na.LateServer); ok {
		late.GiveUp(k.to, k.sentTag.Load(), k.payload, k.name)
	}
}

// name names the call in errors about memory of which it carried the handle.
func (k *Call) name() string {
	if k.opts.Proc == nil {
		return fmt.Sprintf("of RPC %#016x", uint64(k.id))
	}
	return k.opts.Proc.Label(k.opts.Provider)
}

// claimAbort marks the call as cancelled and takes a hold. It returns false if the call is cancelled already, or at its end. In a call to
// the own address it takes the target's hold, because the target uses no memory of the call and so need not be waited for.
func (k *Call) claimAbort(code codes.Code, cause error) bool {
	_, ok := k.state.claim(flagCancelled)
	if ok {
		k.cancel = newError("call", k.to, code, cause)
	}
	return ok
}

// finishAbort cancels the operations in flight and gives up the hold of claimAbort.
func (k *Call) finishAbort() {
	ops := k.state.load().ops()
	k.cancelOps(ops &^ opReceive)
	k.keepLent()
	k.giveUp()
	k.cancelOps(ops & opReceive)
	k.release(0)
}

// cancelOps asks the transport to end operations. The caller holds the call, so that they are not used anew meanwhile.
func (k *Call) cancelOps(ops stateWord) {
	if ops.has(opSend) {
		k.c.ep.Cancel(&k.send)
	}
	if ops.has(opReceive) {
		k.c.ep.Cancel(&k.receive)
	}
	if ops.has(opPull) {
		k.extra.pull.cancel()
	}
	if ops.has(opAck) {
		k.c.ep.Cancel(&k.ack)
	}
}

// recheck cancels operations that the caller has started if the call was cancelled or failed meanwhile, because the goroutine that
// cancelled it may have looked before they were started. The caller has a hold.
func (k *Call) recheck() {
	if w := k.state.load(); w.has(flagCancelled | flagFailed) {
		k.cancelOps(w.ops() &^ opAck) // an acknowledgement is sent after failures too
	}
}

// end runs once, when nothing holds the call any more.
func (k *Call) end() {
	k.extra.release()
	if k.tagged {
		k.tagged = false
		k.c.tags.Release(k.tag)
	}
	if k.local {
		k.local = false
		k.c.selfCalls.remove(k)
	}
	if k.extra.lent == nil {
		k.complete()
		return
	}
	lent := k.extra.lent
	k.extra.lent = nil
	if k.givenUp() && (k.extra.nparts == 0 || k.state.load().has(flagLaunched)) {
		k.extra.in = nil
		k.c.linger(lent, k.extra.lentSize, k.to, func() {})
		k.complete()
		return
	}
	if m, ok := lent.(na.IdleMemory); ok {
		if m.Revoke(); m.Idle() { // as usual, because the peer answers after it has pulled
			k.complete()
			return
		}
	}
	parts, inParts := lent.(na.LentMemory)
	inParts = inParts && k.extra.nparts > 0
	k.c.tasks.Go(func() { // because Close may wait for the network, and this may be a goroutine of the network
		if inParts { // the peer has answered and still pulls: a copy is faster than to wait for the peer
			parts.Keep()
			k.complete()
		}
		lent.Close()
		if !inParts {
			k.complete()
		}
	})
}

// givenUp reports whether the peer may still pull the request's payload, because it does not know that the call was cancelled,
// or has not acknowledged a one-way request.
func (k *Call) givenUp() bool {
	w := k.state.load()
	return w.has(flagCancelled) && !w.has(flagSucceeded) || w.has(flagAckMissing)
}

// complete publishes the result. A waiter that sees the event may free the call before complete calls finish: then the call has
// flagFreed, and complete recycles it.
func (k *Call) complete() {
	k.held = nil
	k.c.count.callsActive.Add(-1)
	switch w := k.state.load(); {
	case w.has(flagSucceeded):
		k.result = nil
	case w.has(flagCancelled):
		k.result, k.out = k.cancel, nil
	default:
		k.result, k.out = k.failure, nil
	}
	notify := k.notify
	if notify == nil {
		k.done.Set()
	}
	if k.state.finish() {
		k.recycle()
	} else if notify != nil {
		notify.CallDone(k)
	}
}

// callSend completes the sending of the request.
type callSend Call

// Complete implements [na.Completer].
func (s *callSend) Complete(op *na.Op) { (*Call)(s).sent(op) }

func (k *Call) sent(op *na.Op) {
	if clock := k.c.cfg.Clock; clock != nil {
		k.sentAt.Store(int64(clock.Now()))
	}
	if op.Err != nil {
		k.fail(codeOf(op.Err), op.Err)
	} else {
		k.c.count.requestsSent.Add(1)
		if k.c.RouteTo(k.to) == OverSharedMemory {
			k.c.count.requestsShared.Add(1)
		}
		if k.opts.OneWay { // it has succeeded, unless it waits for the acknowledgement of its overflow
			k.state.set(flagSucceeded, flagFailed|opReceive)
		}
	}
	k.release(opSend)
}

// callReceive completes the receiving of the response, or of the ack of a one-way call's overflow.
type callReceive Call

// Complete implements [na.Completer].
func (r *callReceive) Complete(op *na.Op) { (*Call)(r).received(op) }

func (k *Call) received(op *na.Op) {
	switch {
	case na.KindOf(op.Err) == na.Invalid:
		k.clash.Store(true) // see transmit
	case k.opts.OneWay:
		k.acked(op)
	case op.Err != nil:
		k.fail(codeOf(op.Err), op.Err)
	case k.probe != nil:
		k.c.probed(k, k.recv[:op.N])
	default:
		k.takeResponse(k.recv[:op.N])
	}
	k.release(opReceive)
}

// takeResponse reads a response. It records the result, or starts the pull of an overflow.
func (k *Call) takeResponse(b []byte) {
	k.c.count.responsesRecvd.Add(1)
	f, payload, bad := wire.ParseResponse(b, k.form)
	switch {
	case bad != nil:
		k.c.peers.forget(k.c, k.to)
		k.record(newError("call", k.to, bad.Code, bad))
	case f.Code != wire.Success:
		k.record(&Error{Op: "call", Addr: k.to.String(), Code: f.Code, Remote: true})
	case f.Flags&wire.FlagMoreData != 0:
		k.pullOutput(payload, f.CRC)
	default:
		k.succeed(payload)
	}
}

// succeed records the answer: nothing that happens from now on makes the call fail.
func (k *Call) succeed(out []byte) {
	if _, ok := k.state.set(flagSucceeded, flagFailed); ok {
		k.out = out
	}
}
