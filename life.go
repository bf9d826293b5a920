package cinnabar

import (
	"context"
	"errors"
	"sync"

	"cinnabar/internal/invariants"
	"cinnabar/internal/rundown"
)

// errPeerGone is the cause with which a handler's context ends when the connection that its request came by is lost.
var errPeerGone = errors.New("cinnabar: the caller is gone")

// lives makes the contexts that handlers' contexts stand on: one for each connection whose requests have asked for
// theirs. They end with the connection, and all of them when the engine gives its handlers up.
type lives struct {
	ctx  context.Context
	kill context.CancelCauseFunc
	wg   sync.WaitGroup

	mu invariants.Mutex
	// +checklocks:mu
	byConn map[<-chan struct{}]context.Context // by the channel that is closed with the connection
}

func (l *lives) init() {
	l.ctx, l.kill = context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byConn = map[<-chan struct{}]context.Context{}
}

// of returns the context of the connection with whose loss gone is closed. A nil gone stands for a call of the process
// to itself, which is never lost.
func (l *lives) of(gone <-chan struct{}) context.Context {
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
func (l *lives) watch(gone <-chan struct{}, ctx context.Context, cancel context.CancelCauseFunc) {
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
func (l *lives) end(cause error) {
	l.mu.Lock() // so that of starts no goroutine afterwards
	l.kill(cause)
	l.mu.Unlock()
	l.wg.Wait()
}
