package cinnabar

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/codec/cereal"
	"cinnabar/codes"
	"cinnabar/internal/codecplan"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hg"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/sched"
	"cinnabar/stats"
)

// Call is the long form of a request that a handler has: the arguments, and the means to answer it, once, at any time
// and from any goroutine. It is valid until it is answered, for as long as the program holds it; a Call that the program
// loses before it is answered is answered codes.OtherError when the garbage collector finds it, and the log says so.
type Call[In, Out any] struct {
	In In // the arguments

	s   serving
	h   *handler[In, Out]
	ctx context.Context // the handler's: s.scope, or the one that interceptors have derived from it
	out Out

	done bool // nothing refers to the Call any more
}

// handler is a function that a program registers, in one of its two forms; the other is nil.
type handler[In, Out any] struct {
	short func(context.Context, In) (Out, error)
	long  func(*Call[In, Out])
	calls sync.Pool // of *Call[In, Out] to be used again, all zero
	held  bool      // the program may refer to In or out of a Call of the short form, because their own methods encode them
}

// init sets held by the types of the handler.
func (h *handler[In, Out]) init() {
	h.held = codecplan.HoldsCustom(reflect.TypeFor[In](), keepsNoReceiver) || codecplan.HoldsCustom(reflect.TypeFor[Out](), keepsNoReceiver)
}

// keepsNoReceiver reports whether t is a type of this module with an encoding of its own, whose methods do not keep their receivers. A type
// of the program may, for example if it refers to an array in itself.
func keepsNoReceiver(t reflect.Type) bool {
	return t == reflect.TypeFor[BulkHandle]() || t == reflect.TypeFor[cereal.Rest]()
}

// errAnswered is the cause of the error of a second answer to a call.
var errAnswered = errors.New("the call is answered already")

// take makes the job of serving a request.
func (h *handler[In, Out]) take(svc *service, r *hg.Request) *sched.Job {
	c, _ := h.calls.Get().(*Call[In, Out])
	if c == nil {
		c = new(Call[In, Out])
	}
	c.h = h
	c.s.begin(svc, r)
	c.ctx = c.s.scope
	c.s.job.Init((*work[In, Out])(c), svc.pool, &svc.pace, &c.s.ref)
	c.s.job.Prefer(svc.priority)
	if svc.proc.native {
		c.s.arrive(any(&c.In).(envelope.Arguments))
	}
	if c.s.times != nil {
		c.s.times.Admitted = time.Now()
	}
	return &c.s.job
}

// work is a Call as its pool sees it.
type work[In, Out any] Call[In, Out]

// Overloaded implements [sched.Work].
func (w *work[In, Out]) Overloaded() { w.s.Overloaded() }

// Yield implements [sched.Work].
func (w *work[In, Out]) Yield() { w.s.Yield() }

// Peer implements [sched.Work].
func (w *work[In, Out]) Peer() string { return w.s.Peer() }

// Host implements [sched.Work].
func (w *work[In, Out]) Host() hostquota.Host { return w.s.Host() }

// Serve implements [sched.Work].
func (w *work[In, Out]) Serve() {
	c := (*Call[In, Out])(w)
	normally := false
	defer c.s.returned(&normally)
	if c.s.times != nil {
		defer c.s.observe(c.ctx)()
	}
	switch {
	case c.s.svc.e.contexts.ctx.Err() != nil: // the engine was closed while the request waited for a worker
		c.s.finish(c.s.svc.proc.ending())
	case c.decode():
		c.handle()
	}
	// The program holds a Call of the long form, and perhaps parts of types of its own; and an interceptor may have left the handler running.
	c.done = c.h.long == nil && !c.h.held && !c.s.svc.e.hooked() && c.s.holds.Load() == 1
	normally = true
}

// About implements [sched.Work].
func (w *work[In, Out]) About() any { return w.s.scope }

// Ended implements [sched.Work].
func (w *work[In, Out]) Ended() {
	if c := (*Call[In, Out])(w); c.done {
		h := c.h
		*c = Call[In, Out]{}
		h.calls.Put(c)
	}
}

// decode reads the arguments. If they cannot be decoded, it logs that, answers the caller with the code, and returns false.
func (c *Call[In, Out]) decode() bool {
	var err error
	c.s.parent, err = c.s.svc.proc.decodeInput(c.s.req.Input(), &c.In, c.s.over(), c.s.req.Owned())
	if c.s.times != nil {
		c.s.times.Decoded = time.Now()
	}
	if err != nil {
		c.s.svc.e.note(c.s.from, "request refused: arguments cannot be decoded; compare the types of both sides",
			slog.String(logRPC, c.s.svc.label()), slog.Any(logError, logged{err}))
	} else if c.s.native != nil {
		if c.ctx, err = c.s.native.Begin(c.s.scope); err != nil {
			c.ctx = c.s.scope
		}
	}
	if err == nil {
		return true
	}
	code := codeOf(err)
	if out := c.carry(code, err); out == nil {
		c.s.job.Leave()
		c.s.finish(code)
	} else if c.claim() {
		c.s.logUnsent(c.send(c.s.scope, out)) // which calls Leave
	}
	return false
}

// carry returns results that carry an error to the caller, nil if the RPC has no such results. They are not c.out, because a handler that an
// interceptor has left running may still change that.
func (c *Call[In, Out]) carry(code codes.Code, err error) *Out {
	if c.s.native == nil {
		return nil
	}
	out := new(Out)
	if results, ok := any(out).(envelope.Results); !ok || !results.Refuse(c.s.native, code, err) {
		return nil
	}
	return out
}

// handle runs the handler and sees to the answer.
func (c *Call[In, Out]) handle() {
	switch e := c.s.svc.e; {
	case e.hooked():
		c.handleHooked()
	case c.h.long != nil:
		_ = c.invoke(c.ctx) // the long form has no error
		c.guard()
	default:
		c.settle(c.invoke(c.ctx))
	}
}

// invoke runs the program's function, and measures it if that is wanted.
func (c *Call[In, Out]) invoke(ctx context.Context) (err error) {
	var start time.Time
	measure := c.s.svc.pace.Measure()
	if measure {
		start = time.Now()
	}
	if c.h.long != nil {
		c.h.long(c)
	} else {
		c.out, err = c.h.short(ctx, c.In)
	}
	if measure {
		c.s.job.Ran(time.Since(start))
	}
	return err
}

// settle answers for a handler of the short form.
func (c *Call[In, Out]) settle(err error) {
	if err == nil {
		if c.s.claim() {
			c.s.logUnsent(c.send(c.s.scope, &c.out))
		}
		return
	}
	// Methods of the program's error may panic, so they are called before the right to answer is taken.
	code := errorCode(err)
	c.s.logFailure(code, err)
	carried := c.carry(code, err)
	if !c.s.claim() {
		return
	}
	if carried != nil {
		c.s.logUnsent(c.send(c.s.scope, carried)) // which calls Leave
		return
	}
	c.s.job.Leave()
	c.s.logUnsent(c.s.fail(code))
}

// errorCode is the code that stands for a handler's error. An error is never a success.
func errorCode(err error) codes.Code {
	if code := codeOf(err); code != codes.Code(0) {
		return code
	}
	return codes.OtherError
}

// send answers with *out. The caller has the claim. If a type's own encoding panics, the request is given up without an
// answer, and the core answers for it.
func (c *Call[In, Out]) send(ctx context.Context, out *Out) error {
	defer c.s.release()
	if c.s.oneWay {
		return nil
	}
	var began time.Time
	if c.s.times != nil {
		began = time.Now()
	}
	payload, err := c.s.svc.proc.appendOutput(c.s.req.Output(), out, c.s.over())
	if err != nil {
		c.s.svc.e.note(c.s.from, "result cannot be encoded", slog.String(logRPC, c.s.svc.label()), slog.Any(logError, logged{err}))
		return errors.Join(encodingError("answer", c.s.svc.label(), c.s.from.String(), err), c.s.svc.answer(c.s.req, codes.OtherError))
	}
	return c.respond(ctx, payload, began)
}

// respond passes the response to the network. If the response does not fit into a message, respond waits until the caller has fetched
// it, or ctx ends. began is the time at which the program returned the result; the monitor gets it.
func (c *Call[In, Out]) respond(ctx context.Context, payload []byte, began time.Time) error {
	if len(payload) > cap(c.s.req.Output()) { // the caller has to fetch it
		c.s.pause()
		defer c.s.resume()
	} else if c.h.long == nil {
		c.s.job.Leave()
	}
	e := c.s.svc.e
	if e.cfg.Monitor == nil {
		return c.s.req.Respond(ctx, payload)
	}
	encoded := time.Now()
	ev := stats.Event{Kind: stats.EventRespond, Info: c.s.event(), Bytes: int64(len(payload))}
	e.observe(c.ctx, ev)
	ev.End, ev.Times = true, stats.Timing{Began: began, Encoded: encoded, Running: c.s.times.Running}
	ev.Err = c.s.req.Respond(ctx, payload)
	ev.Times.Ended = time.Now()
	e.observe(c.ctx, ev)
	return ev.Err
}

// guard makes the collector answer the call if the program loses it. The engine calls it after a handler of the long form has returned.
func (c *Call[In, Out]) guard() {
	if c.s.answered.Load() {
		return
	}
	o := &unansweredCall{svc: c.s.svc, req: c.s.req, from: c.s.from.String(), gone: c.s.gone, oneWay: c.s.oneWay, since: time.Now(), done: make(chan struct{})}
	c.s.unanswered.Store(o)
	c.s.svc.e.handlers.unanswered.add(o)
	if !c.s.answered.Load() { // an answer from now on sees o
		runtime.AddCleanup(c, (*unansweredCall).found, o)
	} else {
		c.s.svc.e.handlers.unanswered.remove(o)
	}
}

// claim is serving.claim for programs' goroutines.
func (c *Call[In, Out]) claim() bool {
	if !c.s.claim() {
		return false
	}
	if o := c.s.unanswered.Load(); o != nil {
		o.answered.Store(true)
		o.svc.e.handlers.unanswered.remove(o)
	}
	return true
}

// unansweredCall has the means to answer a Call that the program has lost. It does not refer to the Call, which could not become garbage then.
type unansweredCall struct {
	svc      *service
	req      *hg.Request
	from     string
	gone     <-chan struct{} // closed when the connection of the request is lost; nil for a call to oneself
	oneWay   bool
	since    time.Time // when the handler returned
	answered atomic.Bool
	left     sync.Once
	done     chan struct{} // closed by leave
}

// leave lets Shutdown go on without the request, because it is answered or its caller is gone.
func (o *unansweredCall) leave() {
	o.left.Do(func() {
		close(o.done)
		o.svc.e.handlers.gate.Release()
	})
}

// found is called by the garbage collector, which must not be kept waiting.
func (o *unansweredCall) found() {
	if !o.answered.Load() {
		go o.answer()
	}
}

func (o *unansweredCall) answer() {
	o.svc.e.handlers.unanswered.remove(o)
	defer o.leave()
	defer o.req.Free()
	if o.oneWay {
		return // nothing was expected
	}
	o.svc.e.log.Error("handler has lost its call without an answer; keep the Call and answer it with Respond or Fail",
		logRPC, o.svc.label(), logPeer, o.from)
	_ = o.svc.answer(o.req, codes.OtherError) // best effort
}

// Context returns the context that a handler of the short form is given.
func (c *Call[In, Out]) Context() context.Context { return c.ctx }

// Respond answers with out, which the program may change when Respond returns. A response that fits into a message is handed to
// the network. For a longer one Respond waits until the caller has fetched it, the caller is lost, or ctx ends; the caller may
// still fetch it after ctx has ended, because the engine keeps a copy for a while. A second answer is an error. If the caller
// wants no response, nothing is sent and there is no error.
func (c *Call[In, Out]) Respond(ctx context.Context, out Out) error {
	if !c.claim() {
		return c.answerError(errAnswered)
	}
	if scopeFrom(ctx) != c.s.scope { // a context of the handler ends with the request already
		joined, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(c.s.scope, func() { cancel(context.Cause(c.s.scope)) })()
		ctx = joined
	}
	c.out = out
	return c.answerError(c.send(ctx, &c.out))
}

// Fail answers with the code of err ([codes.Of]), and with codes.OtherError for a [net.ErrClosed] that is not of an engine. The text of err does not travel: the engine logs it, at Warn if err has no code,
// and otherwise at Debug.
func (c *Call[In, Out]) Fail(err error) error {
	code := errorCode(err) // before the claim, as in settle
	c.s.logFailure(code, err)
	if !c.claim() {
		return c.answerError(errAnswered)
	}
	return c.answerError(c.s.fail(code))
}

func (c *Call[In, Out]) answerError(err error) error {
	if err == errAnswered { //nolint:errorlint // it is never wrapped here
		return &Error{Op: "answer", RPC: c.s.svc.label(), Addr: c.s.from.String(), Code: codes.InvalidArg, Err: err}
	}
	return errorFrom("answer", c.s.svc.label(), c.s.from.String(), err)
}
