package cinnabar

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/sched"
	"cinnabar/stats"
)

// serving is one request while it is served, without its types: the state of a [Call]. It may be used again for another request if the
// program cannot hold the Call, so the program gets only the scope.
type serving struct {
	*scope
	job    sched.Job
	req    *hg.Request
	oneWay bool               // no response is wanted
	times  *stats.Timing      // nil unless the engine has a monitor
	native envelope.Arguments // nil unless the RPC is native

	unanswered atomic.Pointer[unansweredCall] // set once the handler has returned without an answer

	answered atomic.Bool // set by the goroutine that answers
}

// begin takes over r.
func (s *serving) begin(svc *service, r *hg.Request) {
	s.scope = svc.e.handlers.scopes.Take()
	s.svc, s.req, s.from = svc, r, r.From()
	s.gone, s.id, s.oneWay = s.from.Done(), uint64(r.ID()), r.OneWay()
	s.holds.Store(2)
	if svc.e.cfg.Monitor != nil {
		s.times, s.parent = &stats.Timing{Began: time.Now()}, wire.NoParent
	}
}

// arrive passes the request of a native RPC to its arguments. A payload without Margo's header is passed as an empty one.
func (s *serving) arrive(in envelope.Arguments) {
	e := s.svc.e
	_, payload, _ := wire.ParseMargoRequest(s.req.Input())
	s.native = in
	in.Arrive(envelope.Arrival{
		Payload: payload, Context: s.scope, Conn: s.gone, Host: s.from.Account().Key(), Breaches: s.req,
		Limits: envelope.Limits{MaxBytes: e.cfg.MaxOverflow, Budget: s.req}, Server: &e.handlers.natives,
	})
}

// observe reports the start of a stats.EventRequest to the monitor, and returns the function that reports its end.
func (s *serving) observe(ctx context.Context) (end func()) {
	s.times.Running = time.Now()
	s.svc.e.observe(ctx, stats.Event{Kind: stats.EventRequest, Info: s.event()})
	return func() {
		times := *s.times
		times.Ended = time.Now()
		s.svc.e.observe(ctx, stats.Event{Kind: stats.EventRequest, End: true, Info: s.event(), Times: times})
	}
}

// release gives up one hold. With the last the request is the core's again.
func (s *serving) release() {
	if s.holds.Add(-1) > 0 {
		return
	}
	if s.native != nil {
		s.native.End()
	}
	s.req.Free()
	if o := s.unanswered.Load(); o != nil {
		o.leave()
		return
	}
	s.svc.e.handlers.gate.Release()
}

// claim reserves the right to answer. Only one caller gets it.
func (s *serving) claim() bool { return s.answered.CompareAndSwap(false, true) }

// fail answers with a code, in the way of the RPC's flavour. The caller has the claim.
func (s *serving) fail(code codes.Code) error {
	defer s.release()
	if s.oneWay {
		return nil
	}
	return s.svc.answer(s.req, code)
}

// logFailure logs why a handler fails, because the caller gets the code only. An error without a code of its own, and each
// of a one-way request, is logged at Warn, within the bound for the caller's host; others at Debug.
func (s *serving) logFailure(code codes.Code, err error) {
	msg := "handler fails"
	if s.oneWay {
		msg = "handler of a one-way request fails"
	}
	if code == codes.OtherError || s.oneWay {
		s.svc.e.note(s.from, msg, slog.String(logRPC, s.svc.label()), slog.Any(logError, logged{err}))
		return
	}
	if log := s.svc.e.log; log.Enabled(context.Background(), slog.LevelDebug) {
		log.Debug(msg, logRPC, s.svc.label(), logPeer, s.from.String(), logError, logged{err})
	}
}

// finish ends a handler that has not answered, because it panicked or ended its goroutine, or is not served at all.
func (s *serving) finish(code codes.Code) {
	if s.claim() {
		s.logUnsent(s.fail(code))
	}
}

// logUnsent logs that an answer could not be sent. The level is Debug, because this process is not the cause.
func (s *serving) logUnsent(err error) {
	if err != nil {
		s.svc.e.log.Debug("answer not sent", logRPC, s.svc.label(), logPeer, s.from.String(), logError, err)
	}
}

// returned is deferred around a handler: it deals with panics.
func (s *serving) returned(normally *bool) {
	defer s.release()
	if *normally {
		return
	}
	if v := recover(); v != nil {
		s.svc.e.panicked("handler panics", s.svc.label(), s.from, v, debug.Stack())
	} else {
		s.svc.e.panicked("handler ends its goroutine", s.svc.label(), s.from, "runtime.Goexit", nil)
	}
	s.finish(codes.OtherError)
}

// Overloaded implements [sched.Work]: the request gets no handler.
func (s *serving) Overloaded() {
	s.finish(codes.Again)
	s.release()
}

// Peer implements [sched.Work].
func (s *serving) Peer() string { return s.from.String() }

// Host implements [sched.Work].
func (s *serving) Host() hostquota.Host { return s.from.Account().Host() }

// Yield implements [sched.Work].
func (s *serving) Yield() { na.Yield(s.from) }

// over returns the network over which the request has come, and the response travels.
func (s *serving) over() hg.Route { return s.svc.e.core.RouteTo(s.from) }

// Keys of log attributes.
const (
	logRPC       = "rpc"
	logPeer      = "peer"
	logError     = "error"
	logAge       = "age"
	logState     = "state"
	logMade      = "made"   // where in the program
	logSubsystem = "subsys" // of the layers below the engine; margo.LogHandler knows it
)
