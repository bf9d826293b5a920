package ofitcp

import (
	"container/heap"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
)

// turns limits the number of goroutines that do the same kind of work for connections at a time, such as setting up connections
// or reading requests. The others wait in a queue that serves hosts by the processor time that they have used. Without the queue
// Go's scheduler, which knows no hosts, would run them in the order in which they became runnable: work for one host would wait
// for that of all connections of another host.
//
// The next place goes to the host that has used least time. A host that comes back after a while counts as if it had used
// turnCredit less than the host that is served at that moment, so that it comes before busy hosts, but cannot save up more.
type turns struct {
	most int // limit of busy

	full    atomic.Bool // busy is most; written with mu held
	crowded atomic.Bool // goroutines wait; written with mu held

	mu sync.Mutex
	// +checklocks:mu
	busy int
	// waiting holds the hosts with waiting goroutines. If there is one, busy is most.
	// +checklocks:mu
	waiting turnHeap
	// byHost holds these hosts, and others that have used time since goroutines began to wait.
	// +checklocks:mu
	byHost map[*hostquota.Account]*turnHost
	// now is the time that the host which got the last place had used by then.
	// +checklocks:mu
	now time.Duration
	// passed is when a goroutine last yielded before it handed its place over.
	// +checklocks:mu
	passed time.Time
}

const (
	turnCredit = 10 * time.Millisecond
	// turnPass is for how long goroutines hand places over directly. Then one of them yields first, because the scheduler runs a
	// goroutine that was just woken before all others: goroutines that wake each other would delay others for 10 ms.
	turnPass = 200 * time.Microsecond
	// turnMost is the most that a place counts, because the time includes that in which the system runs other processes.
	turnMost = 500 * time.Microsecond
	// turnBase and turnByte are the most that a turn of a reader and a byte in it count.
	turnBase = 5 * time.Microsecond
	turnByte = 15 * time.Nanosecond
)

// turnHost holds the waiting goroutines of one host. Each waits until its channel is closed.
type turnHost struct {
	used    time.Duration
	waiting ring[chan struct{}]
	index   int // in the heap, if goroutines wait
}

// turnHeap is a [heap.Interface]. Its first host has used least.
type turnHeap []*turnHost

func (h turnHeap) Len() int           { return len(h) }
func (h turnHeap) Less(i, j int) bool { return h[i].used < h[j].used }

func (h turnHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *turnHeap) Push(x any) {
	host, _ := x.(*turnHost)
	host.index = len(*h)
	*h = append(*h, host)
}

// Pop implements [heap.Interface].
func (h *turnHeap) Pop() any {
	last := len(*h) - 1
	host := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return host
}

// newTurns returns turns for one goroutine on each processor.
func newTurns() *turns {
	t := &turns{most: runtime.GOMAXPROCS(0)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byHost = map[*hostquota.Account]*turnHost{}
	return t
}

// enter waits for the turn of a goroutine that works for a host. The caller calls leave soon and does not wait for the network
// before, because the waits of others cannot be cancelled.
func (t *turns) enter(a *hostquota.Account) {
	if turn := t.join(a); turn != nil {
		<-turn
	}
}

// join takes a free place and returns nil, or returns a channel that leave closes to hand a place over.
func (t *turns) join(a *hostquota.Account) (turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy < t.most {
		t.busy++
		t.full.Store(t.busy == t.most)
		return nil
	}
	h := t.hostLocked(a)
	if h.waiting.len() == 0 {
		heap.Push(&t.waiting, h)
		t.crowded.Store(true)
	}
	turn = make(chan struct{})
	h.waiting.push(turn)
	return turn
}

// hostLocked returns the turnHost of a host.
//
// +checklocks:t.mu
func (t *turns) hostLocked(a *hostquota.Account) *turnHost {
	h := t.byHost[a]
	if h == nil {
		h = &turnHost{}
		t.byHost[a] = h
	}
	if h.waiting.len() == 0 {
		h.used = max(h.used, t.now-turnCredit)
	}
	return h
}

// leave hands the place to a goroutine of the host that has used least, after the caller has worked for took. It calls yield first
// if the last such call was more than turnPass ago.
func (t *turns) leave(a *hostquota.Account, took time.Duration, yield func()) {
	if t.crowded.Load() && t.pass(time.Now()) {
		yield()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		clear(t.byHost)
		t.now = 0
		t.busy--
		t.full.Store(false)
		return
	}
	h := t.hostLocked(a)
	if h.used += min(took, turnMost); h.waiting.len() > 0 {
		heap.Fix(&t.waiting, h.index)
	}
	next := t.waiting[0]
	t.now = max(t.now, next.used)
	close(next.waiting.pop())
	if next.waiting.len() == 0 {
		heap.Pop(&t.waiting)
		t.crowded.Store(len(t.waiting) > 0)
	}
}

// pass reports whether a goroutine must yield before it hands its place over at a time.
func (t *turns) pass(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.passed) <= turnPass {
		return false
	}
	t.passed = now
	return true
}

// lightUse records the time that hosts have used lately. A host that has used less than half of its share is light: it works without
// waiting for a place.
type lightUse struct {
	rate float64 // processors that are divided among hosts

	mu sync.Mutex
	// +checklocks:mu
	hosts map[*hostquota.Account]*hostUse
	// +checklocks:mu
	swept time.Time
}

// hostUse is how much more time than its share a host had used at a moment.
type hostUse struct {
	debt time.Duration
	at   time.Time
}

const (
	// lightBurst is the debt with which a host is light. It is more than a call with its transfers needs.
	lightBurst = 2 * time.Millisecond
	// lightRequests is the largest number of requests that are being handled with which a connection is light.
	lightRequests = 64
	// lightSweep is the interval at which hosts without debt are forgotten.
	lightSweep = time.Second
)

func newLightUse() *lightUse {
	u := &lightUse{rate: float64(runtime.GOMAXPROCS(0))}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hosts = map[*hostquota.Account]*hostUse{}
	return u
}

// add counts took for a host at a moment when so many hosts share the processors, and reports whether the host is light.
func (u *lightUse) add(a *hostquota.Account, took time.Duration, now time.Time, sharers int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	h := u.hosts[a]
	if h == nil {
		if took == 0 {
			return true
		}
		h = &hostUse{at: now}
		u.hosts[a] = h
	}
	earned := u.rate / float64(2*(sharers+1))
	h.debt = max(0, h.debt-time.Duration(float64(now.Sub(h.at))*earned)) + min(took, turnMost)
	h.at = now
	light := h.debt < lightBurst
	if now.Sub(u.swept) > lightSweep {
		u.swept = now
		for a, h := range u.hosts {
			if float64(h.debt) <= float64(now.Sub(h.at))*earned {
				delete(u.hosts, a)
			}
		}
	}
	return light
}

// readPlace is the place of a background goroutine among those that read.
type readPlace uint8

const (
	placeNone  readPlace = iota
	placeLight           // none is needed: the host is light
	placeTaken           // in Endpoint.readers
)

// enterTurn has the background goroutine wait for its turn to read, if several hosts have connections and that of this one is not
// light. It must not have the read role, because others would wait for that.
func (c *conn) enterTurn() {
	r, e := &c.role, c.ep
	if r.place != placeNone {
		return
	}
	hosts := e.cfg.Quota.Holders(hostquota.Connections)
	if hosts <= 1 {
		return
	}
	r.began, r.read = time.Now(), c.rxBytes.Load()
	if e.light.add(c.account, 0, r.began, hosts) && c.origin.holds.Load() <= lightRequests {
		r.place = placeLight
		return
	}
	e.readers.enter(c.account)
	r.place, r.began = placeTaken, time.Now()
}

// turnCost returns the time that the turn has taken, but not more than its bytes explain: the system may have run another process
// meanwhile.
func (c *conn) turnCost(now time.Time) time.Duration {
	r := &c.role
	return min(now.Sub(r.began), turnBase+time.Duration(c.rxBytes.Load()-r.read)*turnByte)
}

// nextTurn ends a turn of the background goroutine and begins another. It must not have the read role. Other goroutines run first,
// unless the host is light: then they would delay it by much more than it delays them.
func (c *conn) nextTurn() {
	r, e := &c.role, c.ep
	if r.place == placeLight {
		now := time.Now()
		took := c.turnCost(now)
		r.began, r.read = now, c.rxBytes.Load()
		if e.light.add(c.account, took, now, e.cfg.Quota.Holders(hostquota.Connections)) && c.origin.holds.Load() <= lightRequests {
			return
		}
		r.place = placeNone
	}
	if r.place != placeTaken || !e.readers.crowded.Load() {
		e.yield()
	}
	c.leaveTurn()
	c.enterTurn()
}

// leaveTurn ends the turn of the background goroutine, which calls it before it waits or runs a task. It must not have the read
// role.
func (c *conn) leaveTurn() {
	r, e := &c.role, c.ep
	if r.place == placeNone {
		return
	}
	now := time.Now()
	took := c.turnCost(now)
	e.light.add(c.account, took, now, e.cfg.Quota.Holders(hostquota.Connections))
	if r.place == placeTaken {
		e.readers.leave(c.account, took, e.yield)
	}
	r.place = placeNone
}

// setup is the place of a goroutine that sets up a connection.
type setup struct {
	e       *Endpoint
	account *hostquota.Account
	begun   time.Time
	over    bool
}

// beginSetup waits for the turn of a connection of a host to be set up.
func (e *Endpoint) beginSetup(a *hostquota.Account) *setup {
	e.setups.enter(a)
	return &setup{e: e, account: a, begun: time.Now()}
}

// end gives the place back. Beside many other handshakes it first pauses after setupSpan of work for as long, so that a processor
// that sets up a thousand connections has half of its time for other work. Further calls do nothing.
func (s *setup) end() {
	if s.over {
		return
	}
	s.over = true
	took := time.Since(s.begun)
	if s.e.crowded() && s.e.setupWork.Add(int64(min(took, turnMost))) >= int64(setupSpan) {
		s.e.setupWork.Store(0)
		s.e.pause(setupSpan)
	}
	s.e.setups.leave(s.account, took, s.e.yield)
}

// crowded reports whether many connections are being made.
func (e *Endpoint) crowded() bool { return e.cfg.Quota.Used(hostquota.Handshakes) >= crowd }
