package cinnabar

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sched"
	"cinnabar/stats"
)

// scope is the context of a handler. It describes one request and is never used for another one, because a program may keep the context after
// the handler has returned. Its methods read only its own fields. ref refers to the job of the handler, through which a wait gives the worker to
// another handler; ref is cleared when the handler returns, because the job then belongs to another request.
type scope struct {
	svc    *service
	from   na.Addr         // nil for a function of AfterFunc
	gone   <-chan struct{} // closed when the connection that the request came by is lost
	id     uint64
	parent uint64 // set before the handler begins

	life atomic.Pointer[context.Context] // the context behind Done and Err, set by the first call that needs it

	ref sched.Ref

	// holds counts the users of the request: the handler until it returns, and the answer until it is sent.
	holds atomic.Int32
}

// pause and resume enclose a wait for the network that the handler makes with its context. They do nothing once the handler has returned.
func (s *scope) pause()  { s.ref.Pause() }
func (s *scope) resume() { s.ref.Resume() }

// readsFor reports whether a handler that waits for a transfer with to keeps no other peer waiting, even if it runs on the goroutine that
// reads the connection of its request. That holds if to is the sender of the request, and its connection has a reader of its own.
func (s *scope) readsFor(to na.Addr) bool { return to == s.from && na.HasSoleReader(to) }

// info describes the request.
func (s *scope) info() CallInfo {
	return CallInfo{
		Server: true, RPC: s.svc.proc.name, ID: s.id, Provider: s.svc.provider,
		Peer: &Endpoint{e: s.svc.e, addr: s.from}, Parent: s.parent, Pool: s.svc.pool.Name(),
		Identity: na.IdentityOf(s.from),
	}
}

// event returns info in the form that events have.
func (s *scope) event() stats.CallInfo {
	info := s.info()
	return info.event()
}

// Deadline implements [context.Context]. A scope has no deadline, because Mercury's messages have no place for the caller's.
func (s *scope) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (s *scope) Done() <-chan struct{} { return s.lifetime().Done() }

// Err implements [context.Context].
func (s *scope) Err() error {
	if life := s.life.Load(); life != nil {
		return (*life).Err()
	}
	if s.gone != nil && rundown.IsClosed(s.gone) {
		return s.lifetime().Err()
	}
	return s.svc.e.contexts.ctx.Err()
}

// scopeKey is the key under which a handler's context, and those made from it, have their scope.
type scopeKey = envelope.ScopeKey

// Value implements [context.Context]. It passes keys that it does not know to the context of the connection, because package context looks up
// a parent of a type of its own there, and a context derived from such a parent needs no goroutine.
func (s *scope) Value(key any) any {
	if key == (scopeKey{}) {
		return s
	}
	if key == (hostquota.ContextKey{}) && s.from != nil {
		return s.from.Account().Host()
	}
	if key == (audit.ContextKey{}) && s.from != nil {
		return audit.Recorder(func(e audit.Event, cause string) { s.svc.e.audit(s, e, cause) })
	}
	return s.lifetime().Value(key)
}

func (s *scope) lifetime() context.Context {
	if life := s.life.Load(); life != nil {
		return *life
	}
	s.life.CompareAndSwap(nil, s.svc.e.contexts.of(s.gone))
	return *s.life.Load()
}

// scopeFrom returns the scope of the handler in which ctx was made, nil if there is none.
func scopeFrom(ctx context.Context) *scope {
	if s, ok := ctx.(*scope); ok {
		return s
	}
	s, _ := ctx.Value(scopeKey{}).(*scope)
	return s
}

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
	byConn map[<-chan struct{}]*context.Context // by the channel that is closed with the connection; pointers, so that all scopes share them
}

func (l *connContexts) init() {
	l.ctx, l.kill = context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byConn = map[<-chan struct{}]*context.Context{}
}

// of returns the context of the connection that closes gone when it is lost. A nil gone stands for a call of the process
// to itself, which is never lost.
func (l *connContexts) of(gone <-chan struct{}) *context.Context {
	if gone == nil {
		return &l.ctx
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx, ok := l.byConn[gone]; ok {
		return ctx
	}
	ctx, cancel := context.WithCancelCause(l.ctx)
	if rundown.IsClosed(gone) || ctx.Err() != nil {
		cancel(errPeerGone)
		return &ctx
	}
	l.byConn[gone] = &ctx
	l.wg.Go(func() { l.watch(gone, ctx, cancel) })
	return &ctx
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
	cancel(errPeerGone) // without effect if the engine has ended ctx before
}

// end ends all contexts, for the reason cause, and waits for the goroutines.
func (l *connContexts) end(cause error) {
	l.mu.Lock() // so that of starts no goroutine afterwards
	l.kill(cause)
	l.mu.Unlock()
	l.wg.Wait()
}
