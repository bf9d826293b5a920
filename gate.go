package cinnabar

import (
	"context"
	"sync/atomic"
)

// gate counts operations under way and, once closed, lets no more in. Entering and leaving cost an atomic addition
// each.
type gate struct {
	n    atomic.Int64  // operations under way, plus gateClosed
	idle chan struct{} // has a token when the gate may have become closed and empty
}

const gateClosed = 1 << 62

func (g *gate) init() { g.idle = make(chan struct{}, 1) }

// enter lets one operation in, or reports that the gate is closed.
func (g *gate) enter() bool {
	if g.n.Add(1) < gateClosed {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == gateClosed {
		g.nudge()
	}
}

// close lets no more operations in. It must be called only once.
func (g *gate) close() {
	if g.n.Add(gateClosed) == gateClosed {
		g.nudge()
	}
}

func (g *gate) nudge() {
	select {
	case g.idle <- struct{}{}:
	default:
	}
}

func (g *gate) closed() bool { return g.n.Load() >= gateClosed }

// count returns how many operations are under way.
func (g *gate) count() int64 { return g.n.Load() % gateClosed }

// wait returns when a closed gate is empty, or ctx done.
func (g *gate) wait(ctx context.Context) error {
	for g.n.Load() != gateClosed {
		select {
		case <-g.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
