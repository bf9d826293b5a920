package progress

import (
	"slices"
	"testing"
)

// next calls Next and checks its results. A want below 0 stands for no task.
func next(t *testing.T, tasks *Tasks[int], gen uint32, want int) {
	t.Helper()
	switch got, more, mine := tasks.Next(gen); {
	case !mine:
		t.Errorf("Next(%d): the goroutine was replaced", gen)
	case !more && want >= 0, more && got != want:
		t.Errorf("Next(%d): task %d, %t; want %d", gen, got, more, want)
	}
}

// replaced checks that Next does nothing for the goroutine of generation gen.
func replaced(t *testing.T, tasks *Tasks[int], gen uint32) {
	t.Helper()
	begun, waiting := tasks.Begun(), tasks.Waiting()
	if got, more, mine := tasks.Next(gen); mine || more {
		t.Errorf("Next(%d) of a replaced goroutine: task %d, %t, mine %t", gen, got, more, mine)
	}
	if tasks.Begun() != begun || tasks.Waiting() != waiting {
		t.Errorf("Next(%d) of a replaced goroutine began a task", gen)
	}
}

// TestTasks: tasks begin in the order of Offer, each once, also if their goroutine is replaced or ends.
func TestTasks(t *testing.T) {
	var tasks Tasks[int]
	next(t, &tasks, 0, -1)
	if tasks.Pending() {
		t.Error("an empty list is pending")
	}
	tasks.Offer([]int{1, 2})
	tasks.Offer(nil)
	tasks.Offer([]int{3, 4})
	if n := tasks.Waiting(); n != 4 || !tasks.Pending() {
		t.Errorf("%d tasks wait, want 4", n)
	}
	if _, ok := tasks.Replace(0); ok {
		t.Error("a goroutine is replaced that is in no task")
	}
	next(t, &tasks, 0, 1)
	if _, ok := tasks.Replace(0); ok {
		t.Error("a goroutine is replaced that has begun another task meanwhile")
	}
	gen, ok := tasks.Replace(tasks.Begun())
	if !ok || gen != 1 {
		t.Fatalf("Replace: generation %d, %t", gen, ok)
	}
	if _, ok := tasks.Replace(tasks.Begun()); ok {
		t.Error("a goroutine is replaced twice")
	}
	next(t, &tasks, 1, 2)
	replaced(t, &tasks, 0)
	if _, ok := tasks.Ended(0); ok {
		t.Error("the end of a goroutine that was replaced starts another one")
	}
	if gen, ok = tasks.Ended(1); !ok || gen != 2 {
		t.Fatalf("Ended: generation %d, %t", gen, ok)
	}
	replaced(t, &tasks, 1)
	next(t, &tasks, 2, 3)
	next(t, &tasks, 2, 4)
	if !tasks.Pending() {
		t.Error("the last task is not pending before its end")
	}
	next(t, &tasks, 2, -1)
	if tasks.Pending() || tasks.Waiting() != 0 || tasks.Begun() != 4 {
		t.Errorf("after all tasks: %d wait, %d have begun, pending %t", tasks.Waiting(), tasks.Begun(), tasks.Pending())
	}
}

// TestTasksDetach: Detach removes the tasks that would wait for the one that the goroutine is in, and no others.
func TestTasksDetach(t *testing.T) {
	var tasks Tasks[int]
	var detached []int
	detach := func() { tasks.Detach(func(task int) { detached = append(detached, task) }) }
	tasks.Offer([]int{1, 2, 3})
	detach()
	if detached != nil {
		t.Errorf("tasks %v are detached, although the goroutine is in none", detached)
	}
	next(t, &tasks, 0, 1)
	detach()
	if want := []int{2, 3}; !slices.Equal(detached, want) || tasks.Waiting() != 0 || !tasks.Pending() {
		t.Errorf("detached %v, want %v; %d wait, pending %t", detached, want, tasks.Waiting(), tasks.Pending())
	}
	next(t, &tasks, 0, -1)
	tasks.Offer([]int{4, 5})
	next(t, &tasks, 0, 4)
	gen, _ := tasks.Replace(tasks.Begun())
	detach()
	if len(detached) != 2 {
		t.Errorf("detached %v, although the next goroutine is in no task", detached)
	}
	next(t, &tasks, gen, 5)
	next(t, &tasks, gen, -1)
}

// TestTasksAllocate: in the steady state tasks need no memory.
func TestTasksAllocate(t *testing.T) {
	var tasks Tasks[*int]
	list := []*int{new(int), new(int)}
	if n := testing.AllocsPerRun(100, func() {
		tasks.Offer(list)
		for more := true; more; {
			_, more, _ = tasks.Next(0)
		}
	}); n != 0 {
		t.Errorf("%v allocations for two tasks", n)
	}
}

// TestTasksForget: the list does not refer to a task that has begun, and does not grow while each goroutine is replaced in its task.
func TestTasksForget(t *testing.T) {
	var tasks Tasks[int]
	offered, begun := 2, 0
	tasks.Offer([]int{1, 2})
	for gen := range uint32(1000) {
		begun++
		next(t, &tasks, gen, begun)
		if _, ok := tasks.Replace(tasks.Begun()); !ok {
			t.Fatalf("goroutine %d is not replaced", gen)
		}
		offered++
		tasks.Offer([]int{offered})
		tasks.mu.Lock()
		if n := cap(tasks.list); n > 8 || slices.Contains(tasks.list, begun) {
			t.Fatalf("after %d tasks there are %d places, and %v", begun, n, tasks.list)
		}
		tasks.mu.Unlock()
	}
	tasks.Detach(func(int) { t.Error("a task is detached, although the next goroutine is in no task") })
	next(t, &tasks, 1000, begun+1)
	tasks.Detach(func(task int) {
		if task != begun+2 {
			t.Errorf("task %d is detached, want %d", task, begun+2)
		}
	})
	tasks.mu.Lock()
	if slices.Contains(tasks.list, begun+2) {
		t.Errorf("a detached task is kept: %v", tasks.list)
	}
	tasks.mu.Unlock()
	next(t, &tasks, 1000, -1)
	if n := tasks.Waiting(); n != 0 {
		t.Errorf("%d tasks wait", n)
	}
}
