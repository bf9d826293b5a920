package rstream

import (
	"context"
	"os"
	"sync"
	"time"

	"cinnabar/internal/rundown"
)

// deadline is a time that can be set and reset while operations wait for it.
type deadline struct {
	mu sync.Mutex
	// +checklocks:mu
	timer *time.Timer
	// +checklocks:mu
	over chan struct{} // closed when the time has come; waiters hold it
}

func newDeadline() deadline { return deadline{over: make(chan struct{})} }

// set sets the time at which waits end. The zero t stands for no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer has fired, and closes it
	}
	d.timer = nil
	past := rundown.IsClosed(d.over)
	if t.IsZero() || time.Until(t) > 0 {
		if past {
			d.over = make(chan struct{})
		}
		if !t.IsZero() {
			over := d.over
			d.timer = time.AfterFunc(time.Until(t), func() { close(over) })
		}
		return
	}
	if !past {
		close(d.over)
	}
}

// context returns a context that ends at the deadline, also if the program sets or changes the deadline later.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return until{context.Background(), d.over}
}

// until is a context that ends when a channel is closed.
type until struct {
	context.Context
	over chan struct{}
}

func (u until) Done() <-chan struct{} { return u.over }

func (u until) Err() error {
	if rundown.IsClosed(u.over) {
		return os.ErrDeadlineExceeded
	}
	return nil
}
