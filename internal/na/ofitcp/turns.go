package ofitcp

import (
	"container/heap"
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

// turns limits the number of goroutines that do the same kind of work for connections at a time, such as setting up connections
// or reading requests. The others wait in a queue that serves hosts by the processor time that they have used. Without the queue
// Go's scheduler, which knows no hosts, would run them in the order in which they became runnable: work for one host would wait
// for that of all connections of another host.
//
// The next place goes to the host that has used the least time, and of several such hosts to the one that has waited for longest. A
// host that comes back after a while counts as if it had used turnCredit less than turns.now, so that it comes before busy hosts, but
// cannot save up more than that.
type turns struct {
	most int // limit of busy

	full    atomic.Bool // busy equals most; written with mu held
	crowded atomic.Bool // waiting is not empty; written with mu held

	mu invariants.Mutex
	// +checklocks:mu
	busy int
	// waiting holds the hosts with waiting goroutines. It is empty while busy is less than most.
	// +checklocks:mu
	waiting turnHeap
	// byHost holds the hosts in waiting, and those that have used time since waiting was last empty.
	// +checklocks:mu
	byHost map[*hostquota.Account]*turnHost
	// sweepAt is the number of hosts in byHost at which leave looks for hosts to forget.
	// +checklocks:mu
	sweepAt int
	// now is a virtual time, the time used by a host that waits permanently. It is at least turnHost.used of the host that got the
	// last place. It also advances while all places go to new hosts, because these would otherwise come before the others for ever.
	// +checklocks:mu
	now time.Duration
	// waits is the number of times that a host has begun to wait for a place.
	// +checklocks:mu
	waits uint64
	// passed is the time of the last call of yield in leave, see turnPass.
	// +checklocks:mu
	passed time.Time
}

const (
	turnCredit = 10 * time.Millisecond
	// turnPass is the interval at which leave calls yield before it hands a place over. Go's scheduler runs a goroutine that was just
	// woken before all others, so goroutines that only wake each other would delay the others for 10 ms.
	turnPass = 200 * time.Microsecond
	// turnMost bounds the time that is counted for one turn, because the measured time includes that of other processes.
	turnMost = 500 * time.Microsecond
	// A reader's turn counts at most turnBase, and turnByte for each byte that it read.
	turnBase = 5 * time.Microsecond
	turnByte = 15 * time.Nanosecond
	// turnHosts is the least value of turns.sweepAt.
	turnHosts = 64
)

// turnHost holds the waiting goroutines of one host, and the processor time that the host has used. A goroutine waits until
// leave closes its channel.
type turnHost struct {
	used    time.Duration
	since   uint64 // value of turns.waits when it began to wait for the next place
	waiting ring[chan struct{}]
	index   int // position in turns.waiting, valid while goroutines wait
}

// turnHeap implements [heap.Interface]. Its first host has used the least time and, of several such hosts, waits for longest.
type turnHeap []*turnHost

func (h turnHeap) Len() int { return len(h) }

func (h turnHeap) Less(i, j int) bool {
	return h[i].used < h[j].used || h[i].used == h[j].used && h[i].since < h[j].since
}

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

// newTurns returns turns with one place for each processor.
func newTurns() *turns {
	t := &turns{most: runtime.GOMAXPROCS(0)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepAt = turnHosts
	t.byHost = map[*hostquota.Account]*turnHost{}
	return t
}

// enter waits until the calling goroutine, which works for host a, has a place. The caller must not wait for the network before
// it calls leave, because goroutines that wait in enter cannot be cancelled.
func (t *turns) enter(a *hostquota.Account) {
	if turn := t.join(a); turn != nil {
		<-turn
	}
}

// join takes a free place and returns nil, or returns a channel that leave closes when it gives the caller a place.
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
		h.since = t.nextWaitLocked()
		heap.Push(&t.waiting, h)
		t.crowded.Store(true)
	}
	turn = make(chan struct{})
	h.waiting.push(turn)
	return turn
}

// nextWaitLocked counts a wait and returns its number.
//
// +checklocks:t.mu
func (t *turns) nextWaitLocked() uint64 {
	t.waits++
	return t.waits
}

// sweepLocked deletes the hosts without waiting goroutines that would get the same turnHost.used if they came back as new hosts.
// Otherwise byHost would grow for as long as goroutines wait, if a new host came in every turn.
//
// +checklocks:t.mu
func (t *turns) sweepLocked() {
	if len(t.byHost) < t.sweepAt {
		return
	}
	for a, h := range t.byHost {
		if h.waiting.len() == 0 && h.used <= max(0, t.now-turnCredit) {
			delete(t.byHost, a)
		}
	}
	t.sweepAt = max(turnHosts, 2*len(t.byHost))
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

// leave gives up the place of the caller, which has worked for host a for the time took. If goroutines wait, leave gives the place to
// one of the host that has used the least time, and calls yield before that if its last such call was more than turnPass ago.
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
	took = min(took, turnMost)
	if h.used += took; h.waiting.len() > 0 {
		heap.Fix(&t.waiting, h.index)
	}
	next := t.waiting[0]
	t.now = max(t.now+took/time.Duration(len(t.waiting)+t.most), next.used)
	close(next.waiting.pop())
	if next.waiting.len() > 0 {
		next.since = t.nextWaitLocked()
		heap.Fix(&t.waiting, next.index)
	} else {
		heap.Pop(&t.waiting)
		t.crowded.Store(len(t.waiting) > 0)
	}
	t.sweepLocked()
}

// pass reports whether leave must call yield at the time now, and then sets passed.
func (t *turns) pass(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.passed) <= turnPass {
		return false
	}
	t.passed = now
	return true
}

// lightUse records the processor time that hosts have used lately. A host is light while it uses less than half of an equal share of
// the processors, except in bursts of up to lightBurst. Goroutines that work for a light host need no place.
type lightUse struct {
	rate float64 // number of processors

	mu invariants.Mutex
	// +checklocks:mu
	hosts map[*hostquota.Account]*hostUse
	// +checklocks:mu
	swept time.Time
}

// hostUse is the debt of a host at the time at: the processor time that it had used beyond half of its share.
type hostUse struct {
	debt time.Duration
	at   time.Time
}

const (
	// lightBurst is the debt from which on a host is not light. One call with its transfers costs less.
	lightBurst = 2 * time.Millisecond
	// lightRequests is the number of requests in handlers above which a connection needs a place even if its host is light.
	lightRequests = 64
	// lightSweep is the interval at which add deletes the hosts without debt.
	lightSweep = time.Second
)

func newLightUse() *lightUse {
	u := &lightUse{rate: float64(runtime.GOMAXPROCS(0))}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hosts = map[*hostquota.Account]*hostUse{}
	return u
}

// add adds took to the debt of host a and reports whether the host is light. sharers is the number of hosts that have connections.
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

// readPlace states whether a background goroutine is in a turn, and whether it has a place in Endpoint.readers.
type readPlace uint8

const (
	placeNone  readPlace = iota // not in a turn, or the only host needs no turns
	placeLight                  // in a turn without a place, because the host is light
	placeTaken                  // in a turn with a place in Endpoint.readers
)

// enterTurn begins a turn of the background goroutine, a time in which it reads the connection, unless only one host has connections.
// The goroutine waits for a place in Endpoint.readers, because the goroutines of a busy host would otherwise delay those of other
// hosts. Only the goroutine of a light host, see lightUse, needs no place. The caller must not have the read role, because callers
// that read the connection themselves would wait for the role meanwhile.
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

// turnCost returns the time since the turn began, or the time that its bytes need at most if that is less, because the operating
// system may have run another process meanwhile.
func (c *conn) turnCost(now time.Time) time.Duration {
	r := &c.role
	return min(now.Sub(r.began), turnBase+time.Duration(c.rxBytes.Load()-r.read)*turnByte)
}

// nextTurn ends the turn of the background goroutine and begins the next one. The caller must not have the read role. Between the two
// turns other goroutines run, except if the host is light, because they would delay it by much more than it delays them.
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

// leaveTurn ends the turn of the background goroutine, if it is in one. The goroutine calls it, without the read role, before it waits
// or runs a task.
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

// setup is the place in Endpoint.setups of a goroutine that sets up a connection.
type setup struct {
	e       *Endpoint
	account *hostquota.Account
	begun   time.Time
	over    bool
}

// beginSetup waits until the caller has a place in Endpoint.setups, to set up a connection of host a.
func (e *Endpoint) beginSetup(a *hostquota.Account) *setup {
	e.setups.enter(a)
	return &setup{e: e, account: a, begun: time.Now()}
}

// end gives the place back. While the endpoint is crowded, end first pauses for setupSpan after each setupSpan of work, so that a
// processor that sets up a thousand connections has half of its time for other work. Further calls do nothing.
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

// crowded reports whether at least crowd connections are in the handshake.
func (e *Endpoint) crowded() bool { return e.cfg.Quota.Used(hostquota.Handshakes) >= crowd }
