package na

import (
	"context"

	"cinnabar/internal/rundown"
)

// TaskGroup counts goroutines that run code of the layer above, which may take any time. Its Wait has a context, unlike that of
// [sync.WaitGroup]. The zero TaskGroup counts 0 goroutines. All methods are safe for concurrent use.
type TaskGroup struct{ running rundown.Guard } // never closed

// Go runs f on a goroutine that is counted until it ends.
func (g *TaskGroup) Go(f func()) {
	g.Add()
	go func() {
		defer g.Done()
		f()
	}()
}

// Run is Go for a task.
func (g *TaskGroup) Run(t Task) {
	g.Add()
	go func() {
		defer g.Done()
		GrowStack(0)
		t.Run()
	}()
}

// taskStack is the size in bytes of the frame of GrowStack. The runtime needs a stack of 8 KiB for a frame of this size.
const taskStack = 3 << 10

// GrowStack makes the runtime enlarge the stack of a new goroutine that is about to run a handler, to 8 KiB. The runtime enlarges a stack by copying
// it, and the work grows with the number of frames on it. In the midst of a handler there are some ten frames, and the runtime would enlarge the
// stack twice. That took more than a third of the time of a small call within a process. The argument and the result have no meaning, but the
// compiler would drop the frame without them.
//
//go:noinline
func GrowStack(i uint) byte {
	var frame [taskStack]byte
	frame[i%taskStack] = 1
	return frame[(i+1)%taskStack]
}

// Add counts a goroutine, which calls Done at its end.
func (g *TaskGroup) Add() { g.running.Acquire() }

// Done ends the count of a goroutine that Add has counted.
func (g *TaskGroup) Done() { g.running.Release() }

// Wait waits until no goroutine is counted and returns nil, also if ctx has ended before. If ctx ends while Wait waits, Wait returns
// the cause of ctx.
func (g *TaskGroup) Wait(ctx context.Context) error {
	if g.running.Wait(ctx) != nil {
		return context.Cause(ctx)
	}
	return nil
}
