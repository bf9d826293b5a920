package sm

import "cinnabar/internal/progress"

// runTasks gives back the right to spin, and runs the tasks that have not begun. mine is false if another goroutine has become the poller.
func (p *poller) runTasks(gen uint32, s *progress.Spin) (ran, mine bool) {
	if p.tasks.Waiting() == 0 {
		return false, true
	}
	p.state.Store(pollInTask)
	p.ep.watch.Add(&p.watch.Watch)
	s.Found() // because a task is the result of a message
	s.End()
	for {
		t, more, mine := p.tasks.Next(gen)
		if !mine {
			return true, false
		}
		if !more {
			p.state.Store(pollActive)
			return true, true
		}
		t.Run()
	}
}

// replacePoller makes another goroutine the poller if the present one is still in the task that began as number begun.
func (p *poller) replacePoller(begun uint64) {
	if gen, ok := p.tasks.Replace(begun); ok {
		p.startPoller(gen)
	}
}

// startPoller starts the goroutine of a new generation. From then on that goroutine alone uses the fields of the poller that have no lock.
func (p *poller) startPoller(gen uint32) {
	p.state.Store(pollActive)
	p.ep.runners.Add()
	go p.run(gen)
}

// taskWatch is the entry of the poller in the list of the watcher. It is there while the poller runs tasks, and for idleLooks after that.
type taskWatch struct {
	progress.Watch
	poll *poller
	task uint64 // value of poller.tasks.Begun at the last look
	idle int    // looks in a row without a new task
}

// idleLooks is the number of looks without a new task after which the poller leaves the list. It does not leave at once, because the next task
// would then have to start the watcher's goroutine again.
const idleLooks = 16

// Look implements [progress.Watched]. It replaces the poller if that is in the same task as at the last look.
func (w *taskWatch) Look() (again bool) {
	begun := w.poll.tasks.Begun()
	if begun == w.task {
		w.poll.replacePoller(begun)
		w.idle++
	} else {
		w.idle = 0
	}
	w.task = begun
	return w.idle < idleLooks
}

// Depends implements [progress.Watched].
func (w *taskWatch) Depends() bool { return w.poll.tasks.Pending() }

// Look implements [progress.Watched]. It ends the claim of c if no goroutine has driven c for some looks, no driver waits, and joint does not
// receive from c.
func (c *conn) Look() (again bool) {
	if c.role.claim.Quiet(c.addr.expected.Len() > 0, c.role.held.Load() || c.role.joined.Load()) && !c.dead.Load() {
		c.releaseClaim()
	}
	return false
}

// Depends implements [progress.Watched].
func (c *conn) Depends() bool { return !c.dead.Load() && c.role.claim.Taken() }
