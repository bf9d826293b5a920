package ring

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"cinnabar/regmem"
)

// TestEnd ends those who wait while a block is in use, which is freed afterwards.
func TestEnd(t *testing.T) {
	r := newRing(t, 1024)
	b, err := r.Alloc(1024)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() { _, err := r.AllocContext(context.Background(), 1); waited <- err }()
	for r.Stats().Waiting == 0 {
		runtime.Gosched()
	}
	r.End()
	if err := <-waited; !errors.Is(err, regmem.ErrClosed) {
		t.Error(err)
	}
	if _, err := r.Alloc(1); !errors.Is(err, regmem.ErrClosed) {
		t.Error(err)
	}
	if err := r.Close(); !errors.Is(err, regmem.ErrInUse) {
		t.Error(err)
	}
	if err := errors.Join(b.Free(), r.Close()); err != nil {
		t.Error(err)
	}
}
