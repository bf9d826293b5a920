package rstream

import (
	"context"
	"os"
	"sync"
	"time"
)

// deadline is a time that can be set and reset while operations wait for it.
type deadline struct {
	mu sync.Mutex
	// +checklocks:mu
	timer *time.Timer // ends ctx at the deadline; nil if none is set
	// ctx ends at the deadline, with the cause os.ErrDeadlineExceeded; operations wait for it
	// +checklocks:mu
	ctx context.Context
	// +checklocks:mu
	end context.CancelCauseFunc // of ctx
}

func newDeadline() deadline {
	ctx, end := context.WithCancelCause(context.Background())
	return deadline{ctx: ctx, end: end}
}

// set sets the time at which waits end. The zero t stands for no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ctx.Done() // because the timer has fired, and its function is about to end ctx
	}
	d.timer = nil
	left := time.Until(t)
	if !t.IsZero() && left <= 0 {
		d.end(os.ErrDeadlineExceeded)
		return
	}
	if d.ctx.Err() != nil {
		d.ctx, d.end = context.WithCancelCause(context.Background())
	}
	if !t.IsZero() {
		end := d.end
		d.timer = time.AfterFunc(left, func() { end(os.ErrDeadlineExceeded) })
	}
}

// context returns a context that ends at the deadline, also if the program sets or changes the deadline later.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}
