package cinnabar

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sched"
	"cinnabar/stats"
)

// serving is one request while it is served, without its types: the state of a [Call], and the context of its handler.
// It is made for one request and never used again, since programs may hold on to the context.
type serving struct {
	svc    *service
	job    sched.Job
	req    *hg.Request
	from   na.Addr
	gone   <-chan struct{} // closed when the connection that the request came by is lost
	id     uint64
	parent uint64
	oneWay bool               // no response is wanted
	times  *stats.Timing      // nil unless the engine has a monitor
	native envelope.Arguments // nil unless the RPC is native

	life atomic.Pointer[context.Context] // the context behind Done and Err, made by the first call that needs it

	unanswered atomic.Pointer[unansweredCall] // set once the handler has returned without an answer

	// answered is set by the goroutine that answers. holds counts the users of req: the handler until it returns, and the
	// answer until it is sent.
	answered atomic.Bool
	holds    atomic.Int32
}

// begin takes over r.
func (s *serving) begin(svc *service, r *hg.Request) {
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
		Payload: payload, Conn: s.gone, Host: s.from.Account().Host(), Calls: &e.handlers.natives, Streams: e.handlers.streams, MaxTime: e.cfg.MaxHandlerTime,
		Served: &e.handlers, Ending: e.handlers.ending,
		Limits: envelope.Limits{MaxBytes: e.cfg.MaxOverflow, Budget: s.req},
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

// pause and resume enclose a wait for the network that the handler makes with its context.
func (s *serving) pause()  { s.job.Pause() }
func (s *serving) resume() { s.job.Resume() }

// over returns the network over which the request has come, and the response travels.
func (s *serving) over() hg.Route { return s.svc.e.core.RouteTo(s.from) }

// readsFor reports whether a handler that waits for a transfer with to keeps no other peer waiting, even if it runs on the goroutine that
// reads the connection of its request. That holds if to is the sender of the request, and its connection has a reader of its own.
func (s *serving) readsFor(to na.Addr) bool { return to == s.from && na.HasSoleReader(to) }

// info describes the request.
func (s *serving) info() CallInfo {
	return CallInfo{
		Server: true, RPC: s.svc.proc.name, ID: s.id, Provider: s.svc.provider,
		Peer: &Endpoint{e: s.svc.e, addr: s.from}, Parent: s.parent, Pool: s.svc.pool.Name(),
	}
}

// event returns info in the form that events have.
func (s *serving) event() stats.CallInfo {
	info := s.info()
	return info.event()
}

// Deadline implements [context.Context]. There is none: the caller's does not travel.
func (s *serving) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (s *serving) Done() <-chan struct{} { return s.lifetime().Done() }

// Err implements [context.Context].
func (s *serving) Err() error {
	if life := s.life.Load(); life != nil {
		return (*life).Err()
	}
	if s.gone != nil && rundown.IsClosed(s.gone) {
		return s.lifetime().Err()
	}
	return s.svc.e.contexts.ctx.Err()
}

// servingKey is the key under which a handler's context, and those made from it, have their serving.
type servingKey struct{}

// Value implements [context.Context]. Other keys are asked of the context below, since package context looks there for
// a parent that it knows, which makes derived contexts cheap.
func (s *serving) Value(key any) any {
	if key == (servingKey{}) {
		return s
	}
	if key == (hostquota.ContextKey{}) {
		return s.from.Account().Host()
	}
	if key == (audit.ContextKey{}) {
		return audit.Recorder(func(e audit.Event, cause string) { s.svc.e.audit(s, e, cause) })
	}
	return s.lifetime().Value(key)
}

func (s *serving) lifetime() context.Context {
	if life := s.life.Load(); life != nil {
		return *life
	}
	life := s.svc.e.contexts.of(s.gone)
	if !s.life.CompareAndSwap(nil, &life) {
		return *s.life.Load()
	}
	return life
}

// servingFrom returns the request of the handler in which ctx was made, nil if there is none.
func servingFrom(ctx context.Context) *serving {
	if s, ok := ctx.(*serving); ok {
		return s
	}
	s, _ := ctx.Value(servingKey{}).(*serving)
	return s
}

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

// errPeerGone is the cause with which a handler's context ends when the connection that its request came by is lost.
var errPeerGone = errors.New("cinnabar: the caller is gone")

// connContexts makes the parents of handlers' contexts: one for each connection, when the first handler of one of its requests asks for
// it. They end with the connection, and all of them when the engine gives its handlers up.
type connContexts struct {
	ctx  context.Context
	kill context.CancelCauseFunc
	wg   sync.WaitGroup

	mu invariants.Mutex
	// +checklocks:mu
	byConn map[<-chan struct{}]context.Context // by the channel that is closed with the connection
}

func (l *connContexts) init() {
	l.ctx, l.kill = context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byConn = map[<-chan struct{}]context.Context{}
}

// of returns the context of the connection that closes gone when it is lost. A nil gone stands for a call of the process
// to itself, which is never lost.
func (l *connContexts) of(gone <-chan struct{}) context.Context {
	if gone == nil {
		return l.ctx
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx, ok := l.byConn[gone]; ok {
		return ctx
	}
	ctx, cancel := context.WithCancelCause(l.ctx)
	if rundown.IsClosed(gone) || ctx.Err() != nil {
		cancel(errPeerGone)
		return ctx
	}
	l.byConn[gone] = ctx
	l.wg.Go(func() { l.watch(gone, ctx, cancel) })
	return ctx
}

// watch ends ctx with the connection. The goroutine that runs it ends then, or when the engine gives its handlers up.
func (l *connContexts) watch(gone <-chan struct{}, ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-gone:
	case <-ctx.Done():
	}
	l.mu.Lock()
	delete(l.byConn, gone)
	l.mu.Unlock()
	cancel(errPeerGone) // without effect if the engine was faster
}

// end ends all contexts, for the reason cause, and waits for the goroutines.
func (l *connContexts) end(cause error) {
	l.mu.Lock() // so that of starts no goroutine afterwards
	l.kill(cause)
	l.mu.Unlock()
	l.wg.Wait()
}
