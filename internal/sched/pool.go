package sched

import (
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// PoolConfig are the bounds of a [Pool].
type PoolConfig struct {
	Name    string
	Workers int // handlers that run at once
	Alive   int // handlers that run or wait at once, at least Workers
	Queue   int // requests that wait for a handler; negative: none
	Kind    Kind
}

// Pool gives requests their handlers: at most Workers run at once, at most Alive exist. The others wait in the order of
// the pool's kind. Alive and Queue are divided among the hosts that the requests come from as package hostquota has it, so
// the requests of one host wait while it has its share of Alive, and those of others go on. It has no goroutines while
// there is nothing to do.
type Pool struct {
	cfg   PoolConfig
	clock *Clock                   // that jobs go by
	burst int                      // limit of starting
	may   func(*tenant, *Job) bool // mayLocked

	leaving atomic.Int32 // handlers that have called Job.Leave and not returned

	mu invariants.Mutex
	// +checklocks:mu
	running int // handlers that have a worker
	// +checklocks:mu
	alive int // handlers that have begun and not returned
	// +checklocks:mu
	starting int // handlers among alive with a goroutine that has not run yet
	// +checklocks:mu
	turn time.Duration // begin of the present turn of handlers, see turnTime
	// +checklocks:mu
	queue queue
	// +checklocks:mu
	live *Job // handlers that have begun and not returned, linked by prev and next
	// +checklocks:mu
	tenants tenants
	// +checklocks:mu
	watch watch
	// +checklocks:mu
	served uint64
	// +checklocks:mu
	refused uint64
	// +checklocks:mu
	most int // alive
}

// NewPool makes a pool.
func NewPool(cfg PoolConfig) *Pool {
	cfg.Alive = max(cfg.Alive, cfg.Workers)
	p := &Pool{cfg: cfg, clock: NewClock(), burst: burstPerProcessor * runtime.GOMAXPROCS(0), queue: queue{kind: cfg.Kind}}
	p.may = p.mayLocked
	return p
}

// burstPerProcessor is the number of handlers, for each processor, that may be started and not running yet. The other requests of
// a burst stay in the queue, where hosts take turns, because Go's scheduler knows no hosts: it would run the handler of a request
// that follows a thousand of another host's after all of these.
const burstPerProcessor = 4

// turnTime is the length of a turn of handlers: for so long handlers start one another directly. Then the next handler yields to
// other goroutines first, such as readers of connections.
const turnTime = 500 * time.Microsecond

// Name returns the pool's name.
func (p *Pool) Name() string { return p.cfg.Name }

// PoolStats are the counters of a pool.
type PoolStats struct {
	Running int    // handlers that run now
	Waiting int    // handlers that wait for a call or transfer of theirs now
	Queued  int    // requests that wait for a handler now
	Most    int    // the largest number of handlers at once so far
	Served  uint64 // handlers begun
	Refused uint64 // requests answered HG_AGAIN
}

// Stats returns the pool's counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PoolStats{
		Running: p.running, Waiting: p.alive - p.running, Queued: p.queue.queued,
		Most: p.most, Served: p.served, Refused: p.refused,
	}
}

// Work is the request of a [Job].
type Work interface {
	// Serve runs the handler and returns when it has. It may block.
	Serve()
	// Overloaded answers the request without running the handler. It must not block.
	Overloaded()
	// Peer names the peer that the request is from, all requests of one peer alike; Own, if it is the process's own and may
	// not be refused. It is called with the pool's lock held.
	Peer() string
	// Host returns the host of the peer; the zero Host, if it is this process. It is called with the pool's lock held.
	Host() hostquota.Host
	// Yield lets other goroutines run, also those that wait for messages that have just come.
	Yield()
	// About returns the description of the request for a [JobInfo]. The description may be used at any time, also after Ended. The pool calls
	// About with its lock held.
	About() any
	// Ended says that the pool does not use the Job and the Work any more, so the Job may be used again. The pool calls it once after Serve has
	// returned, or has ended its goroutine, and does not call it after Overloaded.
	Ended()
}

// Own is the peer of a request that the process itself puts into a pool. It waits in a lane as others do, but there is
// always room for it in the queue. Its host is the zero Host.
const Own = "the process itself"

// Job is one request on its way through a Pool. It is part of a structure of the caller's. It may be used again after Work.Ended, and then
// begins as a zero Job.
type Job struct {
	work Work
	pool *Pool
	pace *LatencyEstimator
	ref  *Ref

	// The pool's lock guards the following.
	prev, next *Job          // in the lane or, when live, in the list of the pool's live jobs
	arrived    time.Duration // when it was admitted, by the pool's clock
	began      time.Duration // when the handler did
	from       *tenant       // the host of the request
	arrival    uint64        // counts the requests that have waited
	waits      int32         // operations that the handler waits for
	moves      int32         // transfers with the handler's caller that are under way
	moveBegan  time.Duration // when moves was last 0, by the pool's clock
	moving     time.Duration // time for which moves was not 0, up to moveBegan
	priority   int16         // set before Admit
	live       bool          // the handler has begun and not returned

	leaves bool // Leave was called; only the handler's goroutine uses it
}

// Init prepares j for Admit, and makes r, a zero Ref that only the caller has, refer to j until the handler has returned or j is refused.
func (j *Job) Init(w Work, p *Pool, pace *LatencyEstimator, r *Ref) {
	j.work, j.pool, j.pace, j.ref = w, p, pace, r
	r.pool, r.job = p, j
}

// Prefer sets the priority that j has in pools of kind Priority, before Admit. Higher is earlier; others are 0.
func (j *Job) Prefer(priority int16) { j.priority = priority }

// aloneRunning is the largest number of running handlers, with the one that begins, for that one to count as alone. It is 2, because a
// caller that has just got its answer may send its next request before the handler that answered it is counted as ended.
const aloneRunning = 2

// Admit starts the handler of the request: at once on a goroutine of its own; or by the task that is returned, if the RPC is quick;
// or later, when there is a worker. If there are too many requests, one of them is refused. Admit does not block.
func (j *Job) Admit() na.Task {
	p := j.pool
	now := p.clock.Now()
	p.mu.Lock()
	j.arrived = now
	j.from = p.tenants.of(j.work.Host())
	if p.startLocked(j) {
		quick := j.pace.Quick(p.companyLocked())
		if !quick {
			p.starting++
		}
		p.mu.Unlock()
		if quick {
			return j
		}
		j.spawn(false)
		return nil
	}
	victim := p.waitLocked(j)
	if victim != nil {
		victim.ref.job = nil // or the memory around the Ref, which a program may keep, would keep the request
	}
	p.mu.Unlock()
	if victim != nil {
		victim.work.Overloaded()
	}
	p.startWaiting() // those that wait may all be of hosts that have their share, and j of another
	return nil
}

// companyLocked returns the company of a handler that startLocked has just counted.
//
// +checklocks:p.mu
func (p *Pool) companyLocked() Company {
	switch {
	case p.running > aloneRunning:
		return BesideRunning
	case p.alive > aloneRunning:
		return BesideWaiting
	}
	return Alone
}

// startWaiting starts handlers for requests that wait, as long as there is room for them.
func (p *Pool) startWaiting() {
	for {
		p.mu.Lock()
		j, behind := p.spawnLocked()
		p.mu.Unlock()
		if j == nil {
			return
		}
		j.spawn(behind)
	}
}

// spawnLocked is nextLocked for a request with a handler that the caller starts on its own goroutine. It returns nil while burst handlers
// are started and not running yet; each of these calls started, which starts the next one. behind reports that the turn of the
// handlers is over, so that the handler yields to other goroutines first.
//
// +checklocks:p.mu
func (p *Pool) spawnLocked() (j *Job, behind bool) {
	if p.starting >= p.burst {
		return nil, false
	}
	if j = p.nextLocked(); j == nil {
		return nil, false
	}
	p.starting++
	return j, p.clock.Exact()-p.turn > turnTime
}

// started records that a started handler runs, and starts the next one. turn is true if a new turn of the handlers begins.
func (p *Pool) started(turn bool) {
	p.mu.Lock()
	p.starting--
	if turn {
		p.turn = p.clock.Exact()
	}
	j, behind := p.spawnLocked()
	p.mu.Unlock()
	if j != nil {
		j.spawn(behind)
	}
}

// Run serves the request, and leaves a request that waits for its worker to another goroutine. It implements [na.Task].
func (j *Job) Run() {
	p, work := j.pool, j.work
	defer func() { // also when the handler ends its goroutine
		next, behind := p.finish(j)
		work.Ended()
		if next != nil {
			next.spawn(behind)
			p.startWaiting()
		}
	}()
	work.Serve()
}

// run serves the request and then the requests that wait for its worker. If behind is true it yields to other goroutines first,
// because the scheduler runs a goroutine that was just started before all others: a chain of handlers of which each starts the
// next would delay other goroutines until the queue is empty.
func (j *Job) run(behind bool) {
	na.GrowStack(0)
	for j != nil {
		if behind {
			j.work.Yield()
		}
		j.pool.started(behind)
		j, behind = j.serve()
	}
}

// spawn calls run on a goroutine of its own.
func (j *Job) spawn(behind bool) { go j.run(behind) }

// serve serves one request and returns the one that gets its worker, as spawnLocked does.
func (j *Job) serve() (next *Job, behind bool) {
	p, work := j.pool, j.work
	returned := false
	defer func() {
		next, behind = p.finish(j)
		work.Ended()
		if next == nil {
			return
		}
		if !returned { // the handler has ended this goroutine
			next.spawn(behind)
		}
		p.startWaiting()
	}()
	work.Serve()
	returned = true
	return
}

// Ran records that the handler took d. It is called after the run if [LatencyEstimator.Measure] has returned true before it.
func (j *Job) Ran(d time.Duration) {
	j.pool.mu.Lock()
	moving := j.moving
	if j.moves > 0 { // goroutines of the handler still transfer, although it has returned
		moving += j.pool.clock.Exact() - j.moveBegan
	}
	j.pool.mu.Unlock()
	j.pace.Record(d, moving)
}

// Leave records that the handler is about to send its response and will then return without waiting. If the pool has no queue, a request
// that comes before the return waits for the worker of the handler and is not refused, because a caller that has its response expects that
// the server is free again. Leave is called on the goroutine of Work.Serve, at most once.
func (j *Job) Leave() {
	if j.pool.cfg.Queue <= 0 {
		j.leaves = true
		j.pool.leaving.Add(1)
		j.from.leaving.Add(1)
	}
}

// startLocked gives j a worker if there is one and no request has waited longer.
//
// +checklocks:p.mu
func (p *Pool) startLocked(j *Job) bool {
	if !p.roomLocked() || p.queue.queued > 0 || p.starting >= p.burst || !p.mayLocked(j.from, nil) || !p.mayLocked(j.from, j) {
		return false
	}
	p.beginLocked(j, j.arrived)
	return true
}

// +checklocks:p.mu
func (p *Pool) roomLocked() bool { return p.running < p.cfg.Workers && p.alive < p.cfg.Alive }

// mayLocked reports whether a host may have another handler, or with j not nil whether the peer of j may, if its host may.
//
// +checklocksignore: the queue calls it while the lock is held
func (p *Pool) mayLocked(t *tenant, j *Job) bool {
	switch {
	case t.host.IsZero():
		return true
	case j == nil:
		return hostquota.Grants(int64(p.cfg.Alive), int64(p.alive+1), int64(t.alive+1))
	case t.peers == nil:
		return true
	}
	left := int(hostquota.Most(int64(p.cfg.Alive), int64(p.alive-t.alive))) - t.alive - 1
	return left <= 1 || t.peers[j.work.Peer()]+1 <= peerShare*left
}

const (
	// peerShare is how many handlers a peer may have for each one that its host leaves unused. One peer alone has seven
	// eighths of its host's handlers, so that other processes of the host, or behind the same address, get some.
	peerShare = 7
	// watchPeers is the part of the pool's handlers, one in so many, from which on those of a host's peers are counted.
	watchPeers = 8
)

// countPeersLocked counts the handlers of each peer of a host that has come to hold many, so that calls of hosts that hold
// few pay nothing for it.
//
// +checklocks:p.mu
func (p *Pool) countPeersLocked(t *tenant) {
	if p.cfg.Alive < hostquota.Undivided || t.host.IsZero() || t.alive < p.cfg.Alive/watchPeers {
		return
	}
	t.peers = map[string]int{}
	for j := p.live; j != nil; j = j.next {
		if j.from == t {
			t.peers[j.work.Peer()]++
		}
	}
}

// +checklocks:p.mu
func (p *Pool) beginLocked(j *Job, now time.Duration) {
	j.live, j.began = true, now
	j.prev, j.next = nil, p.live
	if p.live != nil {
		p.live.prev = j
	}
	p.live = j
	p.watchLocked()
	p.running++
	p.alive++
	j.from.alive++
	if t := j.from; t.peers != nil {
		t.peers[j.work.Peer()]++
	} else {
		p.countPeersLocked(t)
	}
	p.served++
	p.most = max(p.most, p.alive)
}

// waitLocked queues j. If the queue is full, or the host of j has its share of it, waitLocked returns the request that is
// refused for it, which may be j.
//
// +checklocks:p.mu
func (p *Pool) waitLocked(j *Job) (victim *Job) {
	peer, t := j.work.Peer(), j.from
	if peer != Own && !p.mayWaitLocked(t) {
		p.refused++
		hasShare := p.cfg.Queue >= hostquota.Undivided && !t.host.IsZero() && int64(t.queued) >= hostquota.FirstOf(int64(p.cfg.Queue))
		if victim = p.queue.evict(t, peer, j, hasShare); victim == nil {
			return j
		}
	}
	p.queue.push(t, peer, j)
	return victim
}

// mayWaitLocked reports whether there is room in the queue for one more request of a host. It does not count as many requests as
// there are free places for handlers, or handlers that have called Leave, because these wait only until the scheduler has run others.
//
// +checklocks:p.mu
func (p *Pool) mayWaitLocked(t *tenant) bool {
	ownLeaving := int(t.leaving.Load()) // loaded before p.leaving, which Leave changes first, so that leaving is not below ownLeaving
	leaving := int(p.leaving.Load())
	free := min(p.cfg.Workers-p.running, p.cfg.Alive-p.alive) + leaving
	total := p.queue.queued + 1 - max(0, free)
	if t.host.IsZero() {
		return total <= max(0, p.cfg.Queue)
	}
	stay := t.alive - ownLeaving
	others := p.alive - leaving - stay
	free = min(free, int(hostquota.Most(int64(p.cfg.Alive), int64(others)))-stay)
	own := t.queued + 1 - max(0, free)
	return own <= 0 && total <= 0 || p.cfg.Queue > 0 && hostquota.Grants(int64(p.cfg.Queue), int64(max(total, own)), int64(own))
}

// nextLocked gives a free worker to the next request, and returns it.
//
// +checklocks:p.mu
func (p *Pool) nextLocked() *Job {
	if p.queue.queued == 0 || !p.roomLocked() {
		return nil
	}
	j := p.queue.pop(p.may)
	if j != nil {
		p.beginLocked(j, p.clock.Now())
	}
	return j
}

// finish takes j's worker away, and gives it to the request that it returns, as spawnLocked does.
func (p *Pool) finish(j *Job) (next *Job, behind bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.leaves {
		p.leaving.Add(-1)
		j.from.leaving.Add(-1)
	}
	p.endLocked(j)
	p.alive--
	j.from.alive--
	j.from.left(j.work.Peer, p.cfg.Alive/watchPeers/2)
	if j.waits == 0 {
		p.running--
	}
	return p.spawnLocked()
}

// endLocked takes j off the list of live jobs, and ends its Ref.
//
// +checklocks:p.mu
func (p *Pool) endLocked(j *Job) {
	j.live = false
	j.ref.job = nil
	delete(p.watch.told, j) // because j may be used again
	if j.prev == nil {
		p.live = j.next
	} else {
		j.prev.next = j.next
	}
	if j.next != nil {
		j.next.prev = j.prev
	}
	j.prev, j.next = nil, nil
}
