package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/na"
)

var (
	errNoAddress = errors.New("no address to call")
	errNoTag     = errors.New("all tags are in use by calls that do not end")
)

// begin takes the hold of Start.
func (k *Call) begin() {
	k.mu.Lock()
	if k.state != callIdle {
		k.mu.Unlock()
		panic("hg: call started twice")
	}
	k.state, k.holds, k.ops = callStarted, 1, 0
	k.seq++
	k.answered, k.failure, k.cancel, k.extra.missing, k.launched = false, nil, nil, false, false
	k.mu.Unlock()
	k.c.count.callsActive.Add(1)
}

// release gives up one hold; the last one ends the call.
func (k *Call) release() {
	k.mu.Lock()
	last := k.releaseLocked(0)
	k.mu.Unlock()
	if last {
		k.end()
	}
}

// releaseLocked is release for the hold of an operation in flight, 0 if it is none. The caller unlocks and, if told
// so, calls end.
//
// +checklocks:k.mu
func (k *Call) releaseLocked(op callOps) (last bool) {
	k.ops &^= op
	k.holds--
	return k.holds == 0
}

// take takes holds for operations that are about to start. It refuses when the call is cancelled or has failed.
func (k *Call) take(ops callOps, n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cancel != nil || k.failure != nil {
		return false
	}
	k.holds += n
	k.ops |= ops
	if ops&opSend != 0 {
		k.launched, k.sentTag = true, k.tag
	}
	return true
}

// record remembers why the call cannot succeed, the first time. The caller holds the call.
func (k *Call) record(e *Error) (inFlight callOps) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure == nil {
		k.failure = e
	}
	return k.ops
}

// fail is record for failures after which the operations in flight are of no use: it has them end too.
func (k *Call) fail(code Code, err error) {
	k.cancelOps(k.record(newError("call", k.to, code, err)))
}

// abort is Cancel with a reason.
func (k *Call) abort(code Code, cause error) {
	if k.claimAbort(code, cause) {
		k.c.peers.leave(k)
		k.finishAbort()
	}
}

// Interrupt begins to end the call early, with a code and a cause, as [Transfer.Interrupt] does a transfer.
func (k *Call) Interrupt(code Code, cause error) (finish func()) {
	if !k.claimAbort(code, cause) {
		return nil
	}
	return func() {
		k.c.peers.leave(k)
		k.finishAbort()
	}
}

// giveUp announces a cancelled call to the transport, because the caller may next close memory whose handle the request carries.
// The call's send operation has been cancelled before, so the request was sent or never will be; its receive operation has not.
func (k *Call) giveUp() {
	k.mu.Lock()
	launched, tag := k.launched, k.sentTag
	k.mu.Unlock()
	if late, ok := k.c.ep.(na.LateServer); ok && launched && !k.opts.OneWay && k.probe == nil {
		late.GiveUp(k.to, tag, k.payload, k.name)
	}
}

// name names the call in errors about memory whose handle it carried.
func (k *Call) name() string {
	if k.opts.Proc == nil {
		return fmt.Sprintf("of RPC %#016x", uint64(k.id))
	}
	return k.opts.Proc.Label(k.opts.Provider)
}

// claimAbort marks the call as cancelled and holds it. It refuses if the call is so already, or at its end.
func (k *Call) claimAbort(code Code, cause error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != callStarted || k.holds == 0 || k.cancel != nil {
		return false
	}
	k.cancel = newError("call", k.to, code, cause)
	k.holds++
	if k.withTarget { // the target of a call to oneself keeps no memory of the call
		k.withTarget = false
		k.holds--
	}
	return true
}

// finishAbort has the operations in flight end and gives up the hold of claimAbort.
func (k *Call) finishAbort() {
	k.mu.Lock()
	ops := k.ops
	k.mu.Unlock()
	k.cancelOps(ops &^ opReceive)
	k.giveUp()
	k.cancelOps(ops & opReceive)
	k.release()
}

// drop gives up the hold for an operation that has not started. The caller has another.
func (k *Call) drop(op callOps) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.releaseLocked(op)
}

// cancelOps asks the transport to end operations. The caller holds the call, so that they are not used anew meanwhile.
func (k *Call) cancelOps(ops callOps) {
	if ops&opSend != 0 {
		k.c.ep.Cancel(&k.send)
	}
	if ops&opReceive != 0 {
		k.c.ep.Cancel(&k.receive)
	}
	if ops&opPull != 0 {
		k.extra.pull.cancel()
	}
	if ops&opAck != 0 {
		k.c.ep.Cancel(&k.ack)
	}
}

// recheck cancels operations that were started while the call was cancelled or failed, which those who did that may have
// missed. The caller holds the call.
func (k *Call) recheck() {
	k.mu.Lock()
	ops := k.ops
	over := k.cancel != nil || k.failure != nil
	k.mu.Unlock()
	if over {
		k.cancelOps(ops &^ opAck) // an ack is sent after failures too
	}
}

// end runs once, when nothing holds the call any more.
func (k *Call) end() {
	k.extra.release()
	if k.tagged {
		k.tagged = false
		k.c.tags.release(k.tag)
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
	if k.givenUp() {
		k.c.linger(lent, k.extra.lentSize, k.to, func() {})
		k.complete()
		return
	}
	k.c.tasks.Go(func() { // closing may wait for the network, whose goroutine this may be
		lent.Close()
		k.complete()
	})
}

// givenUp tells that the peer may still pull the request's payload: it does not know that nobody waits for its answer,
// or has not acknowledged a one-way request.
func (k *Call) givenUp() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cancel != nil && !k.answered || k.extra.missing
}

// complete tells the owner.
func (k *Call) complete() {
	k.held = nil
	k.c.count.callsActive.Add(-1)
	k.mu.Lock()
	switch {
	case k.answered:
		k.result = nil
	case k.cancel != nil:
		k.result, k.out = k.cancel, nil
	default:
		k.result, k.out = k.failure, nil
	}
	k.state = callDone
	if k.freed {
		k.mu.Unlock()
		k.recycle()
		return
	}
	notify := k.notify
	if notify == nil {
		k.done.Set() // with the lock held: Free of who sees it waits for the lock
	}
	k.mu.Unlock()
	if notify != nil {
		notify.CallDone(k)
	}
}

// callSend completes the sending of the request.
type callSend Call

// Complete implements [na.Completer].
func (s *callSend) Complete(op *na.Op) { (*Call)(s).sent(op) }

func (k *Call) sent(op *na.Op) {
	if op.Err != nil {
		k.fail(codeOf(op.Err), op.Err)
	} else {
		k.c.count.requestsSent.Add(1)
	}
	var now time.Duration
	if clock := k.c.cfg.Clock; clock != nil {
		now = clock.Now()
	}
	k.mu.Lock()
	k.sentAt = now
	if op.Err == nil && k.opts.OneWay && k.ops&opReceive == 0 && k.failure == nil {
		k.answered = true // nothing else will come; with an ack outstanding, that decides
	}
	last := k.releaseLocked(opSend)
	k.mu.Unlock()
	if last {
		k.end()
	}
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
	k.mu.Lock()
	last := k.releaseLocked(opReceive)
	k.mu.Unlock()
	if last {
		k.end()
	}
}

// takeResponse reads a response; what it finds ends the call or starts the pull of an overflow.
func (k *Call) takeResponse(b []byte) {
	k.c.count.responsesRecvd.Add(1)
	f, payload, bad := parseResponse(b, k.form)
	switch {
	case bad != nil:
		k.c.peers.forget(k.c, k.to)
		k.record(newError("call", k.to, bad.code, bad))
	case f.code != Success:
		k.record(&Error{Op: "call", Addr: k.to.String(), Code: f.code, Remote: true})
	case f.flags&flagMoreData != 0:
		k.pullOutput(payload, f.crc)
	default:
		k.succeed(payload)
	}
}

// succeed records the answer: nothing that happens from now on makes the call fail.
func (k *Call) succeed(out []byte) {
	k.mu.Lock()
	if k.failure == nil {
		k.answered, k.out = true, out
	}
	k.mu.Unlock()
}
