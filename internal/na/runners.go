package na

import (
	"context"
	"sync"
)

// Runners counts goroutines that are in code of the layer above, for as long as that pleases. Unlike with a
// [sync.WaitGroup] who waits for them can give up, and is told the truth even if there was no time left to wait. The zero
// Runners has none. All methods are safe for concurrent use.
type Runners struct {
	mu sync.Mutex
	// +checklocks:mu
	running int
	// +checklocks:mu
	idle chan struct{} // closed when running becomes 0; nil if nobody waits
}

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
func (r *Runners) Add() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running++
}

// Done ends what Add has begun.
func (r *Runners) Done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	if r.running == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// Wait returns nil when none is counted, which it finds out even if ctx has ended before, and otherwise why ctx has ended.
func (r *Runners) Wait(ctx context.Context) error {
	r.mu.Lock()
	if r.running == 0 {
		r.mu.Unlock()
		return nil
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-idle: // both at once
		return nil
	default:
		return context.Cause(ctx)
	}
}
