package native

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hostquota"
)

// incoming is a call at its server, and the context of its handler. It is never used for another call, because the program may keep the context after
// the handler has returned, and a cancel may come late. It is small because each call needs a new one, which comes from a block of 32 (incomings) if the
// call has no rare parts. So it has the parts that few calls need in memory of their own, and makes the context behind Done only when something asks for
// it.
//
//	arrived --> begun --> ended
//	   |          |
//	   +----------+--> cancelled, before or after the context behind Done is made
type incoming struct {
	parent   context.Context // the engine's context of the handler
	server   *envelope.Server
	conn     <-chan struct{} // names the call in server.Calls, with id
	id       uint64          // 0: the call is not there
	deadline time.Duration   // by the clock of sinceStart; 0: none
	rare     atomic.Pointer[rareParts]
	life     atomic.Pointer[lifetime] // set by the first call that needs it

	mu    sync.Mutex
	ended atomic.Bool // end was called; stored with mu held, and loaded without it
	// +checklocks:mu
	sealed     bool // the response is made
	compresses bool // the caller understands compressed results
}

// rareParts are the parts of an incoming that few calls need. After the handler has begun, only reply changes.
type rareParts struct {
	err      error // the request is refused
	trace    Trace
	metadata Metadata        // of the request
	stream   *servedStream   // that the call has opened
	limits   envelope.Limits // of compressed arguments
	reply    Metadata        // of the response; incoming.mu guards it
}

// lifetime is the cancellable context that an incoming makes on demand: for Done, for a cancel, and for keys that Value does not know.
type lifetime struct {
	context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // of the deadline; nil if there is none
}

// start is the zero of sinceStart.
var start = time.Now()

// sinceStart returns the time since the start of the process, because a Duration needs less memory than a Time.
func sinceStart() time.Duration { return time.Since(start) }

// incomings has the memory for calls without rare parts. Other calls are not in blocks: the program may keep the context of one call of a block, and
// then keeps the metadata of all of them.
var incomings envelope.Blocks[incoming]

// arrived makes the call of a request, and enters it into Calls, so that a cancel can find it, and its stream into Streams. An envelope that cannot be
// read is refused when the whole request is decoded.
func arrived(a *envelope.Arrival) *incoming {
	id, remaining, err := peekRequest(a.Payload)
	var in *incoming
	if err == nil && isPlain(a.Payload) {
		in = incomings.Take()
	} else {
		in = new(incoming)
	}
	in.parent, in.server, in.conn = a.Context, a.Server, a.Conn
	if err == nil {
		in.limit(remaining)
		in.enter(id, a)
	}
	return in
}

// limit sets the deadline, from the time that the caller had left and the limit of the server.
func (in *incoming) limit(remaining time.Duration) {
	if most := in.server.MaxTime; most > 0 && (remaining == 0 || remaining > most) {
		remaining = most
	}
	if remaining > 0 {
		now := sinceStart()
		in.deadline = now + min(remaining, math.MaxInt64-max(now, 0)) // now is negative under testing/synctest, whose clock begins before the start of the process
	}
}

// enter enters the call into Calls and Streams.
func (in *incoming) enter(id uint64, a *envelope.Arrival) {
	flags := a.Payload[offFlags]
	if flags&flagCompressed != 0 {
		in.seldom().limits = a.Limits
	}
	cancelled, ok := in.server.Calls.Add(in.conn, id, in)
	if !ok {
		in.seldom().err = errTaken
		return
	}
	in.id = id
	if flags&flagStream != 0 {
		s, rare := newServedStream(in, a), in.seldom()
		if rare.err = in.server.Streams.Add(in.conn, id, a.Host, s); rare.err == nil {
			rare.stream = s
		}
	}
	if cancelled {
		in.Cancel()
	}
}

// seldom returns the rare parts, which it makes if there are none. Before the handler begins only one goroutine calls it, and later the holder of mu.
func (in *incoming) seldom() *rareParts {
	r := in.rare.Load()
	if r == nil {
		r = new(rareParts)
		in.rare.Store(r)
	}
	return r
}

// err returns the error with which the request is refused, nil if it is not.
func (in *incoming) err() error {
	if r := in.rare.Load(); r != nil {
		return r.err
	}
	return nil
}

// stream returns the stream that the call has opened, nil if it is none.
func (in *incoming) stream() *servedStream {
	if r := in.rare.Load(); r != nil {
		return r.stream
	}
	return nil
}

// limits returns the limits of compressed arguments.
func (in *incoming) limits() envelope.Limits { return in.seldom().limits }

// keep keeps the fields of the envelope that the handler or the response needs.
func (in *incoming) keep(h *requestHead, s *spec) {
	in.compresses = h.accepts && s.compresses(h.compressor)
	if !h.trace.IsZero() {
		in.seldom().trace = h.trace
	}
	if h.metadata != nil {
		in.seldom().metadata = h.metadata
	}
}

// Causes of the end of a handler's context.
var (
	errCancelled = fmt.Errorf("native: the caller has cancelled the call (%w)", codes.Canceled)
	errTooLate   = fmt.Errorf("native: the time of the call was over before its handler could begin (%w)", codes.Timeout)
)

// begin returns the error with which the request is refused before the handler begins.
func (in *incoming) begin() error {
	if err := in.err(); err != nil {
		return err
	}
	if l := in.life.Load(); l != nil && !in.late() { // made by a cancel
		if cause := context.Cause(l); cause != nil {
			return cause
		}
	}
	switch {
	case in.late():
		return errTooLate
	case in.deadline != 0 && in.Err() != nil:
		return context.Cause(in)
	}
	return nil
}

// late reports whether the deadline is over.
func (in *incoming) late() bool { return in.deadline != 0 && sinceStart() >= in.deadline }

// Cancel implements [envelope.Canceller].
func (in *incoming) Cancel() { in.abort(errCancelled) }

// abort cancels the call. The first cause is the one that the handler finds.
func (in *incoming) abort(cause error) { in.lifetime().cancel(cause) }

// end ends the context, and frees the id.
func (in *incoming) end() {
	if s := in.stream(); s != nil { // before the id is free, because the next call with the id may be a stream, too
		in.server.Streams.Remove(in.conn, in.id)
		s.close()
	}
	if in.id != 0 {
		in.server.Calls.Remove(in.conn, in.id)
	}
	if in.late() {
		in.lifetime() // so that Err returns DeadlineExceeded after the end too
	}
	in.mu.Lock()
	in.ended.Store(true)
	if r := in.rare.Load(); r != nil {
		r.reply = nil
	}
	l := in.life.Load()
	in.mu.Unlock()
	if l != nil {
		l.end()
	}
}

// end ends the context.
func (l *lifetime) end() {
	if l.stop != nil {
		l.stop()
	}
	l.cancel(nil)
}

// lifetime returns the context behind in, which it makes if there is none.
func (in *incoming) lifetime() *lifetime {
	if l := in.life.Load(); l != nil {
		return l
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if l := in.life.Load(); l != nil {
		return l
	}
	l := new(lifetime)
	l.Context, l.cancel = context.WithCancelCause(in.parent)
	if in.ended.Load() {
		l.cancel(nil)
	} else if t, ok := in.Deadline(); ok {
		l.Context, l.stop = context.WithDeadline(l.Context, t)
	}
	in.life.Store(l)
	return l
}

// Deadline implements [context.Context].
func (in *incoming) Deadline() (time.Time, bool) {
	if in.deadline == 0 {
		return time.Time{}, false // the engine's context has none
	}
	now := time.Now() // so that a step of the wall clock since the start of the process makes no difference
	return now.Add(in.deadline - now.Sub(start)), true
}

// Done implements [context.Context].
func (in *incoming) Done() <-chan struct{} { return in.lifetime().Done() }

// Err implements [context.Context].
func (in *incoming) Err() error {
	if in.life.Load() == nil && !in.ended.Load() && !in.late() {
		return in.parent.Err()
	}
	return in.lifetime().Err()
}

type servedKey struct{}

// Value implements [context.Context]. Package context asks for a key of its own, by which it finds the cause of the end, and to which it attaches the
// contexts that are derived from this one. Value therefore makes the lifetime for every key that it does not know.
func (in *incoming) Value(key any) any {
	switch key.(type) {
	case servedKey:
		return in
	case traceKey:
		if r := in.rare.Load(); r != nil {
			return r.trace
		}
		return nil
	case metadataKey:
		return nil
	case envelope.ScopeKey, hostquota.ContextKey, audit.ContextKey:
		return in.parent.Value(key)
	}
	return in.lifetime().Value(key)
}

// served returns the native call of the handler that ctx belongs to, nil if it belongs to none.
func served(ctx context.Context) *incoming {
	in, _ := ctx.Value(servedKey{}).(*incoming)
	return in
}

// requested returns the metadata of the request.
func (in *incoming) requested() Metadata {
	if r := in.rare.Load(); r != nil {
		return r.metadata
	}
	return nil
}

// setReply sets metadata of the response.
func (in *incoming) setReply(key, value string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.sealed || in.ended.Load() {
		return errAnswered
	}
	r := in.seldom()
	if r.reply == nil {
		r.reply = Metadata{}
	}
	old, had := r.reply[key]
	r.reply[key] = value
	err := r.reply.check()
	switch {
	case err == nil:
	case had:
		r.reply[key] = old
	default:
		delete(r.reply, key)
	}
	return err
}

// sealReply returns the metadata of the response, which does not change any more.
func (in *incoming) sealReply() Metadata {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.sealed = true
	if r := in.rare.Load(); r != nil {
		return r.reply
	}
	return nil
}
