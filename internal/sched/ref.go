package sched

// Ref refers to a job until its handler has returned. The context of a handler has one, because a program may keep the context for longer,
// while the Job belongs to another request already. The methods of a Ref without a job do nothing. A Ref is never used again for another job,
// and is safe for concurrent use.
type Ref struct {
	pool *Pool // set by Job.Init
	job  *Job  // nil after the end of the handler, or a refusal; the pool's lock guards it from Job.Admit on
}

// Pause records that the handler begins to wait for a call or a transfer. Another handler may have its worker until Resume. Several goroutines
// of the handler may call Pause; each call is followed by one of Resume.
func (r *Ref) Pause() { r.pause((*LatencyEstimator).Waited, 0) }

// PauseMoving is Pause for a transfer with the peer that sent the request, on a network on which a handler that waits for such a transfer
// delays no other peer. It is followed by one call of ResumeMoving.
func (r *Ref) PauseMoving() { r.pause((*LatencyEstimator).Moved, 1) }

// pause records a wait by calling note, and the beginning of a transfer if moves is 1.
func (r *Ref) pause(note func(*LatencyEstimator), moves int32) {
	p := r.pool
	p.mu.Lock()
	j := r.job
	if j == nil {
		p.mu.Unlock()
		return
	}
	note(j.pace)
	if moves > 0 {
		j.beginMovingLocked()
	}
	j.waits++
	free := j.live && j.waits == 1
	if free {
		p.running--
		free = p.queue.queued > 0
	}
	p.mu.Unlock()
	if free {
		p.startWaiting()
	}
}

// Resume records that the handler goes on. It does not wait for a worker, because other handlers may wait for a resource that the handler
// holds. So more than Workers handlers may run for a moment.
func (r *Ref) Resume() { r.resume(false) }

// ResumeMoving is Resume after PauseMoving.
func (r *Ref) ResumeMoving() { r.resume(true) }

func (r *Ref) resume(moved bool) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	j := r.job
	if j == nil {
		return
	}
	if moved {
		j.endMovingLocked()
	}
	j.waits--
	if j.live && j.waits == 0 {
		p.running++
	}
}

// BeginMoving records that the handler begins to work on a transfer of the kind that PauseMoving describes, for example to send its bytes,
// without giving its worker to another request. It may be called by several goroutines of the handler; each call is followed by one of
// EndMoving. The times of several transfers that overlap count once.
func (r *Ref) BeginMoving() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if r.job != nil {
		r.job.beginMovingLocked()
	}
}

// EndMoving ends the work that BeginMoving has begun.
func (r *Ref) EndMoving() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if r.job != nil {
		r.job.endMovingLocked()
	}
}

// beginMovingLocked implements BeginMoving; the pool's lock is held.
func (j *Job) beginMovingLocked() {
	if j.moves++; j.moves == 1 {
		j.moveBegan = j.pool.clock.Exact()
	}
}

// endMovingLocked implements EndMoving; the pool's lock is held.
func (j *Job) endMovingLocked() {
	if j.moves--; j.moves == 0 {
		j.moving += j.pool.clock.Exact() - j.moveBegan
	}
}
