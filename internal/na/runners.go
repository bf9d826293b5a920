package na

import (
	"context"

	"cinnabar/internal/rundown"
)

// Runners counts goroutines that run code of the layer above, which may take any time. Unlike with a [sync.WaitGroup], a
// goroutine that waits for them can give up. The zero Runners has none. All methods are safe for concurrent use.
type Runners struct{ running rundown.Guard } // never closed

// Go runs f on a goroutine that is counted until it ends.
func (r *Runners) Go(f func()) {
	r.Add()
	go func() {
		defer r.Done()
		f()
	}()
}

// Run is Go for a task.
func (r *Runners) Run(t Task) {
	r.Add()
	go func() {
		defer r.Done()
		t.Run()
	}()
}

// Add counts a goroutine, which calls Done at its end.
func (r *Runners) Add() { r.running.Acquire() }

// Done ends what Add has begun.
func (r *Runners) Done() { r.running.Release() }

// Wait returns nil when none is counted, even if ctx has ended before, and otherwise the cause of the end of ctx.
func (r *Runners) Wait(ctx context.Context) error {
	if r.running.Wait(ctx) != nil {
		return context.Cause(ctx)
	}
	return nil
}
