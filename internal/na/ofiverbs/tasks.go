package ofiverbs

import (
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// turns holds the tasks of the requests of one connection. The goroutine of the connection runs them between two polls, because a new goroutine
// for each task would wake another processor. If a task takes more than one to two intervals ([progress.WatchInterval]), the endpoint's watcher
// starts another goroutine for the connection; the former one only ends its task.
type turns struct {
	tasks progress.Tasks[na.Task]
	watch progress.Watch
	one   [1]na.Task // argument of Offer, reused

	// Used by the watcher alone.
	looked uint64 // value of tasks.Begun at the last look
	quiet  int    // looks in a row at which that value was the same
}

// quietLooks is the number of looks without a new task for which the watcher keeps a connection in its list, so that the next task need
// not start the watcher again.
const quietLooks = 16

// offer adds a task to turns if the caller is the goroutine of the connection. A driver starts a goroutine for the task, because the driver must
// return to its caller. The caller holds polling.
func (c *conn) offer(t na.Task) {
	if !c.background {
		c.ep.runners.Run(t)
		return
	}
	c.turns.one[0] = t
	c.turns.tasks.Offer(c.turns.one[:])
	c.turns.one[0] = nil
}

// runTasks runs the tasks that wait. It returns false if the caller, the goroutine of generation gen, was replaced. The tasks of a connection
// that has ended run on goroutines of their own, because the end of the connection must not wait for them.
func (c *conn) runTasks(gen uint32) (mine bool) {
	tasks := &c.turns.tasks
	if tasks.Waiting() == 0 {
		return true
	}
	c.ep.runners.Add()
	returned := false
	defer func() {
		c.ep.runners.Done()
		if returned {
			return
		}
		if next, ok := tasks.Ended(gen); ok { // a task has called runtime.Goexit
			c.uncork()
			go c.run(next)
		}
	}()
	apart := !c.ep.watcher.Add(&c.turns.watch) || c.dead.Load()
	corked := false
	for n := 0; ; n++ {
		if corked && n%corkTasks == 0 {
			c.uncork()
			corked = false
		}
		if !corked && !apart && tasks.Waiting() > 1 {
			c.cork() // before Next, because the watcher uncorks for a task that takes long
			corked = true
		}
		t, more, mine := tasks.Next(gen)
		switch {
		case !more:
			if corked {
				c.uncork()
			}
			returned = true
			return mine
		case apart:
			c.ep.runners.Run(t)
		default:
			t.Run()
		}
	}
}

// corkTasks is the largest number of tasks of which the responses are posted together.
const corkTasks = 32

// replace starts another goroutine for the connection if the present one is still in its task number begun, the latest one at the time at
// which the caller called Tasks.Begun.
func (c *conn) replace(begun uint64) {
	if next, ok := c.turns.tasks.Replace(begun); ok {
		c.uncork()
		go c.run(next)
	}
}

// Look implements [progress.Watched]: it ends a claim that no driver has used for some looks, and replaces the goroutine of the connection if that goroutine is
// still in the task of the last look. A driver that still polls uses its claim, however long ago it has come.
func (c *conn) Look() (again bool) {
	t := &c.turns
	if c.claim.Quiet(c.yielded.on.Load() || c.waits(), c.wanted.Load() > 0) && c.claim.Taken() {
		c.handBack()
	}
	begun := t.tasks.Begun()
	if begun != t.looked {
		t.looked, t.quiet = begun, 0
		return true
	}
	t.quiet++
	c.replace(begun)
	return t.quiet < quietLooks || c.Depends()
}

// Depends implements [progress.Watched].
func (c *conn) Depends() bool { return c.claim.Taken() || c.turns.tasks.Pending() }
