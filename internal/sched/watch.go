package sched

import (
	"slices"
	"time"
)

// State is the state of a job.
type State uint8

// The states of a [Job].
const (
	Queued  State = iota // waits for a worker
	Running              // its handler runs, or waits for something that the pool knows nothing of
	Waiting              // its handler waits for a call or a transfer, or sleeps
)

func (s State) String() string {
	switch s {
	case Queued:
		return "queued"
	case Running:
		return "running"
	case Waiting:
	}
	return "waiting"
}

// JobInfo is the state of a job at a moment.
type JobInfo struct {
	About any // Work.About
	State State
	Age   time.Duration // since it was admitted
	Run   time.Duration // since its handler began; 0 if it has not
}

// First returns at most limit handlers, the oldest ones, and at most limit of the requests that wait for a handler, with the numbers of all
// handlers and of all requests that wait. If there are more than look handlers, First sees only the look newest ones, because it holds the
// pool's lock meanwhile.
func (p *Pool) First(limit, look int) (list []JobInfo, handlers, queued int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Exact()
	last := make([]*Job, 0, min(limit, p.alive)) // the last limit handlers of the list, which are the oldest, as a ring
	visited := 0
	for j := p.live; j != nil && visited < look; j = j.next {
		if len(last) < limit {
			last = append(last, j)
		} else if limit > 0 {
			last[visited%limit] = j
		}
		visited++
	}
	for i := range last {
		list = append(list, last[(visited-1-i)%len(last)].infoLocked(now))
	}
	room := limit
	for _, l := range p.queue.levels {
		l.lanes.some(&room, func(j *Job) { list = append(list, j.infoLocked(now)) })
	}
	return list, p.alive, p.queue.queued
}

// infoLocked describes j; the pool's lock is held.
func (j *Job) infoLocked(now time.Duration) JobInfo {
	s := JobInfo{About: j.work.About(), Age: now - j.arrived}
	switch {
	case !j.live:
		return s
	case j.waits > 0:
		s.State = Waiting
	default:
		s.State = Running
	}
	s.Run = now - j.began
	return s
}

// watch reports handlers that take long. Its timer runs only while there are handlers.
type watch struct {
	after  time.Duration // the age from which a handler is reported; 0: never
	report func(JobInfo) // called without lock, on a goroutine of its own
	timer  *time.Timer
	armed  bool
	told   map[*Job]time.Duration // the age that a live job was last reported at
}

// Watch has handlers that have not returned after a time reported, and again whenever they have become twice as old. A
// time of 0 ends that.
func (p *Pool) Watch(after time.Duration, report func(JobInfo)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.watch
	if w.armed {
		w.timer.Stop() // if it fires already, look finds it disarmed or armed anew, and comes too early at worst
		w.armed = false
	}
	w.after, w.report = after, report
	if after <= 0 {
		w.told = nil // or jobs would live as long as the pool
	}
	if p.live != nil {
		p.watchLocked()
	}
}

// watchLocked sees to it that the timer runs.
//
// +checklocks:p.mu
func (p *Pool) watchLocked() {
	if w := &p.watch; w.after > 0 && !w.armed {
		p.armLocked(w.after)
	}
}

// +checklocks:p.mu
func (p *Pool) armLocked(d time.Duration) {
	w := &p.watch
	w.armed = true
	if w.timer == nil {
		w.timer = time.AfterFunc(d, p.look)
		return
	}
	w.timer.Reset(d)
}

// look runs when the timer fires. It reports the handlers that are due, and sets the timer for the next one.
func (p *Pool) look() {
	due, report := p.due()
	for _, s := range due {
		report(s)
	}
}

// due returns the handlers that are to be reported now, the oldest first.
func (p *Pool) due() (due []JobInfo, report func(JobInfo)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.watch
	if !w.armed {
		return nil, nil
	}
	w.armed = false
	now, next := p.clock.Exact(), time.Duration(0)
	told := map[*Job]time.Duration{}
	for j := p.live; j != nil; j = j.next {
		at := max(w.after, 2*w.told[j])
		if s := j.infoLocked(now); s.Run >= at {
			due = append(due, s)
			told[j] = s.Run
			at = 2 * s.Run
		} else if before, ok := w.told[j]; ok {
			told[j] = before
		}
		if wait := j.began + at - now; next == 0 || wait < next {
			next = wait
		}
	}
	if next > 0 {
		p.armLocked(next)
	}
	w.told = told
	slices.Reverse(due)
	return due, w.report
}
