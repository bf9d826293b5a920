package hg

import (
	"context"
	"errors"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
)

// respondExtra answers with a payload that does not fit into a message: the peer pulls it and says when it has.
func (r *Request) respondExtra(ctx context.Context, f wire.Response, payload []byte) error {
	if r.c.cfg.NoOverflow {
		return r.failInstead(codes.Overflow, errNoOverflow)
	}
	resp := r.c.unacked.enter(r.from, len(payload))
	if resp == nil {
		r.c.count.responsesFailed.Add(1)
		r.c.refused(r.from, "responses are not pulled", errUnpulled)
		return r.failInstead(codes.Busy, errUnpulled)
	}
	mem, err := r.c.ep.Register(payload, na.ReadOnly)
	if err != nil {
		resp.waited(err, false)
		return r.failInstead(codeOf(err), err)
	}
	err = r.lend(ctx, f, mem, len(payload), resp)
	lingers := err != nil && (ctx.Err() != nil || errors.Is(err, errStalled))
	resp.waited(err, lingers)
	if lingers {
		r.c.linger(mem, len(payload), r.from, resp.forget)
	} else {
		mem.Close()
	}
	return err
}

// lend sends a response with the descriptor of n bytes of payload in mem, and waits until the peer has pulled them.
func (r *Request) lend(ctx context.Context, f wire.Response, mem na.Memory, n int, resp *unackedResponse) error {
	r.c.count.responsesExtra.Add(1)
	if err := r.expectAck(); err != nil {
		if na.KindOf(err) == na.Invalid {
			return r.failInstead(codes.Busy, err)
		}
		return newError("respond", r.from, codeOf(err), err)
	}
	f.Flags |= wire.FlagMoreData
	if err := r.transmit(r.place(f, wire.AppendLent(r.Output(), n, mem.AppendHandle, r.c.appendShared(mem, r.from)))); err != nil {
		r.giveUpAck()
		return err
	}
	return r.awaitAck(ctx, n, resp)
}

// failInstead sends code to the peer in place of a response that cannot be sent. The caller has claimed the answer. The handler has run, so the code
// is never codes.Again: a caller takes that for a refusal before the handler, after which it may repeat any call (package balance).
func (r *Request) failInstead(code codes.Code, err error) error {
	if code == codes.Again {
		code = codes.Busy
	}
	_ = r.transmit(r.errorMessage(code)) // its outcome is counted there
	return newError("respond", r.from, code, err)
}

// expectAck prepares for the ack, before the response leaves. It reports whether that is possible: it is not while a
// call of this process to the peer has the same tag by chance.
func (r *Request) expectAck() error {
	r.hold()
	r.c.ep.RecvExpected(&r.ack, r.from, r.tag, r.ackBuf[:])
	if r.ackDone.IsSet() {
		return r.ackErr
	}
	return nil
}

// requestAck completes the receiving of the ack.
type requestAck Request

// Complete implements [na.Completer].
func (a *requestAck) Complete(op *na.Op) {
	r := (*Request)(a)
	r.ackErr = op.Err
	r.ackDone.Set()
	r.release()
}

// awaitAck waits until the peer has pulled the n bytes of the response.
func (r *Request) awaitAck(ctx context.Context, n int, resp *unackedResponse) error {
	r.c.ep.Drive(r.from, &r.ackDone)
	wake := r.ackDone.Park()
	if wake == nil {
		return r.ackResult()
	}
	code, cause := r.parkForAck(ctx, wake, n, resp)
	if code == wire.Success {
		return r.ackResult()
	}
	if !r.ackDone.Unpark() && r.giveUpAck() {
		r.c.count.responsesFailed.Add(1)
		return newError("respond", r.from, code, cause)
	}
	return r.ackResult()
}

// parkForAck returns Success when the ack has come, or else why it is waited for no longer.
func (r *Request) parkForAck(ctx context.Context, wake <-chan struct{}, n int, resp *unackedResponse) (codes.Code, error) {
	timer, stall := time.NewTimer(patience(ackTime, n)), time.NewTimer(patience(unackedTime, n))
	defer timer.Stop()
	defer stall.Stop()
	for hurried := r.c.hurried; ; {
		select {
		case <-wake:
			return wire.Success, nil
		case <-ctx.Done():
			return endOf(ctx)
		case <-hurried:
			hurried = nil
			timer.Reset(patience(hurryTime, n))
		case <-resp.evict:
			r.c.count.acksMissing.Add(1)
			return codes.Timeout, errStalled
		case <-stall.C:
			over, again := resp.overdue()
			if over {
				r.c.count.acksMissing.Add(1)
				return codes.Timeout, errStalled
			}
			stall.Reset(again)
		case <-timer.C:
			r.c.count.acksMissing.Add(1)
			return codes.Timeout, errUnacked
		}
	}
}

// giveUpAck stops waiting. It returns false if the ack has come all the same.
func (r *Request) giveUpAck() bool {
	r.c.ep.Cancel(&r.ack)
	return !settle(&r.ackDone) || r.ackErr != nil
}

// ackResult returns how the waiting ended, once ackDone is set.
func (r *Request) ackResult() error {
	if r.ackErr == nil {
		return nil
	}
	r.c.count.responsesFailed.Add(1)
	return newError("respond", r.from, codeOf(r.ackErr), r.ackErr)
}
