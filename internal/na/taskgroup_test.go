package na

import (
	"context"
	"errors"
	"testing"
)

// TestRunners waits for goroutines with contexts that have ended, and that have not.
func TestRunners(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var r TaskGroup
	if err := r.Wait(over); err != nil {
		t.Errorf("none: %v", err)
	}
	let := make(chan struct{})
	r.Go(func() { <-let })
	r.Run(waitTask(let))
	if err := r.Wait(over); !errors.Is(err, context.Canceled) {
		t.Errorf("two: %v", err)
	}
	close(let)
	if err := r.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.Wait(over); err != nil {
		t.Errorf("none any more: %v", err)
	}
}

type waitTask chan struct{}

func (w waitTask) Run() { <-w }
