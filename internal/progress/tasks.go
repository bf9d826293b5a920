package progress

import (
	"slices"
	"sync/atomic"

	"cinnabar/internal/invariants"
)

// Tasks holds the tasks of requests that the background goroutine of an engine or connection has read. That goroutine runs them one after
// the other. If a task takes long, or waits for a message itself, another goroutine becomes the background goroutine, and the former one only
// ends its task. Each background goroutine has a number, its generation. [Tasks.Next] returns mine as false to a goroutine of an older
// generation. The first generation is 0. The zero Tasks is empty.
//
//	          Offer                Next                    Next
//	(no task) -----> not begun ----------> in the task ----------> ended
//	                     |                      |
//	                     | Detach               | Replace, or Goexit and Ended:
//	                     v                      v the tasks that have not begun belong to the next generation
//	              another goroutine         ended alone
type Tasks[T any] struct {
	// fresh holds the tasks of Offer that Next has not moved to list yet. Only the present background goroutine uses it. It is empty while
	// that goroutine is in a task.
	fresh []T
	// left is the number of tasks in fresh and list that have not begun.
	left  atomic.Int32
	begun atomic.Uint64

	mu invariants.Mutex
	// list holds tasks in the order of Offer. The tasks from next on have not begun. The elements before next are zero, because a task
	// refers to the memory of its request, and the collector must be able to free that memory.
	// +checklocks:mu
	list []T
	// +checklocks:mu
	next int
	// gen is the present generation.
	// +checklocks:mu
	gen uint32
	// +checklocks:mu
	inTask bool
}

// Offer adds copies of the tasks in list. Only the present background goroutine calls it, outside of its tasks.
func (t *Tasks[T]) Offer(list []T) {
	if len(list) > 0 {
		t.fresh = append(t.fresh, list...)
		t.left.Add(int32(len(list)))
	}
}

// Waiting returns the number of tasks that have not begun. All goroutines may call it.
func (t *Tasks[T]) Waiting() int { return int(t.left.Load()) }

// Begun returns the number of tasks that Next has returned so far. All goroutines may call it.
func (t *Tasks[T]) Begun() uint64 { return t.begun.Load() }

// Next records that the caller has ended its task, if it was in one, and returns the next task. more is false if there is none. mine is false
// if the caller, the goroutine of generation gen, was replaced; the caller must then leave the connection to its successor.
func (t *Tasks[T]) Next(gen uint32) (task T, more, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gen != gen {
		return task, false, false
	}
	if len(t.fresh) > 0 && t.next > 0 { // otherwise list would grow as long as each goroutine is replaced before the last task begins
		t.list = slices.Delete(t.list, 0, t.next)
		t.next = 0
	}
	t.list = append(t.list, t.fresh...)
	clear(t.fresh)
	t.fresh = t.fresh[:0]
	t.inTask = t.next < len(t.list)
	if !t.inTask {
		t.list, t.next = t.list[:0], 0
		return task, false, true
	}
	t.begun.Add(1)
	return t.takeLocked(), true, true
}

// takeLocked removes the oldest task and returns it.
//
// +checklocks:t.mu
func (t *Tasks[T]) takeLocked() (task T) {
	task, t.list[t.next] = t.list[t.next], task
	t.next++
	t.left.Add(-1)
	return task
}

// Replace starts the next generation and returns it, if the background goroutine is still in the task that was the last one when
// [Tasks.Begun] returned begun. The caller starts the goroutine of that generation.
func (t *Tasks[T]) Replace(begun uint64) (next uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.inTask || t.begun.Load() != begun {
		return 0, false
	}
	return t.nextLocked(), true
}

// Ended starts the next generation and returns it, after a task has ended the goroutine of generation gen by [runtime.Goexit]. ok is
// false if that goroutine was replaced before.
func (t *Tasks[T]) Ended(gen uint32) (next uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gen != gen {
		return 0, false
	}
	return t.nextLocked(), true
}

// nextLocked starts the next generation. Its goroutine is in no task yet.
//
// +checklocks:t.mu
func (t *Tasks[T]) nextLocked() uint32 {
	t.gen++
	t.inTask = false
	return t.gen
}

// Detach removes the tasks that have not begun and calls run for each of them, if the background goroutine is in a task, because they would
// otherwise wait for the end of that task. run starts a goroutine for the task, and must not call methods of t.
func (t *Tasks[T]) Detach(run func(T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.inTask {
		return
	}
	for t.next < len(t.list) {
		run(t.takeLocked())
	}
}

// Pending reports whether the background goroutine is in a task, or some have not begun.
func (t *Tasks[T]) Pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inTask || t.left.Load() > 0
}
