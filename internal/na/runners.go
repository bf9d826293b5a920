package na

import (
	"context"

	"cinnabar/internal/rundown"
)

// Runners counts goroutines that run code of the layer above, which may take any time. Its Wait has a context, unlike that of
// [sync.WaitGroup]. The zero Runners counts 0 goroutines. All methods are safe for concurrent use.
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

// Done ends the count of a goroutine that Add has counted.
func (r *Runners) Done() { r.running.Release() }

// Wait waits until no goroutine is counted and returns nil, also if ctx has ended before. If ctx ends while Wait waits, Wait returns
// the cause of ctx.
func (r *Runners) Wait(ctx context.Context) error {
	if r.running.Wait(ctx) != nil {
		return context.Cause(ctx)
	}
	return nil
}
