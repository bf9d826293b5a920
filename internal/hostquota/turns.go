package hostquota

import (
	"container/heap"
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
)

// Turns limits the number of goroutines that do the same kind of work for connections at a time, such as setting up connections
// or reading messages. The others wait in a queue that serves hosts by the processor time that they have used. Without the queue
// Go's scheduler, which knows no hosts, would run them in the order in which they became runnable: work for one host would wait
// for that of all connections of another host.
//
// The next place goes to the host that has used the least time, and of several such hosts to the one that has waited for longest. A
// host that comes back after a while counts as if it had used turnCredit less than Turns.now, so that it comes before busy hosts, but
// cannot save up more than that.
type Turns struct {
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
	byHost map[*Account]*turnHost
	// sweepAt is the number of hosts in byHost at which Leave looks for hosts to forget.
	// +checklocks:mu
	sweepAt int
	// now is a virtual time, the time used by a host that waits permanently. It is at least turnHost.used of the host that got the
	// last place. It also advances while all places go to new hosts, because these would otherwise come before the others for ever.
	// +checklocks:mu
	now time.Duration
	// waits is the number of times that a host has begun to wait for a place.
	// +checklocks:mu
	waits uint64
	// passed is the time of the last call of yield in Leave, see turnPass.
	// +checklocks:mu
	passed time.Time
}

const (
	turnCredit = 10 * time.Millisecond
	// turnPass is the interval at which Leave calls yield before it hands a place over. Go's scheduler runs a goroutine that was just
	// woken before all others, so goroutines that only wake each other would delay the others for 10 ms.
	turnPass = 200 * time.Microsecond
	// turnMost bounds the time that is counted for one turn, because the measured time includes that of other processes.
	turnMost = 500 * time.Microsecond
	// turnHosts is the least value of Turns.sweepAt.
	turnHosts = 64
)

// turnHost holds the waiting goroutines of one host, and the processor time that the host has used. A goroutine waits until
// Leave closes its channel.
type turnHost struct {
	used    time.Duration
	since   uint64 // value of Turns.waits when it began to wait for the next place
	waiting []chan struct{}
	index   int // position in Turns.waiting, valid while goroutines wait
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

// NewTurns returns Turns with one place for each processor.
func NewTurns() *Turns {
	t := &Turns{most: runtime.GOMAXPROCS(0)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepAt = turnHosts
	t.byHost = map[*Account]*turnHost{}
	return t
}

// Enter waits until the calling goroutine, which works for host a, has a place. The caller must not wait for the network before
// it calls Leave, because goroutines that wait in Enter cannot be cancelled.
func (t *Turns) Enter(a *Account) {
	if turn := t.join(a); turn != nil {
		<-turn
	}
}

// join takes a free place and returns nil, or returns a channel that Leave closes when it gives the caller a place.
func (t *Turns) join(a *Account) (turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy < t.most {
		t.busy++
		t.full.Store(t.busy == t.most)
		return nil
	}
	h := t.hostLocked(a)
	if len(h.waiting) == 0 {
		h.since = t.nextWaitLocked()
		heap.Push(&t.waiting, h)
		t.crowded.Store(true)
	}
	turn = make(chan struct{})
	h.waiting = append(h.waiting, turn)
	return turn
}

// nextWaitLocked counts a wait and returns its number.
//
// +checklocks:t.mu
func (t *Turns) nextWaitLocked() uint64 {
	t.waits++
	return t.waits
}

// sweepLocked deletes the hosts without waiting goroutines that would get the same turnHost.used if they came back as new hosts.
// Otherwise byHost would grow for as long as goroutines wait, if a new host came in every turn.
//
// +checklocks:t.mu
func (t *Turns) sweepLocked() {
	if len(t.byHost) < t.sweepAt {
		return
	}
	for a, h := range t.byHost {
		if len(h.waiting) == 0 && h.used <= max(0, t.now-turnCredit) {
			delete(t.byHost, a)
		}
	}
	t.sweepAt = max(turnHosts, 2*len(t.byHost))
}

// hostLocked returns the turnHost of a host.
//
// +checklocks:t.mu
func (t *Turns) hostLocked(a *Account) *turnHost {
	h := t.byHost[a]
	if h == nil {
		h = &turnHost{}
		t.byHost[a] = h
	}
	if len(h.waiting) == 0 {
		h.used = max(h.used, t.now-turnCredit)
	}
	return h
}

// Leave gives up the place of the caller, which has worked for host a for the time took. If goroutines wait, Leave gives the place to
// one of the host that has used the least time, and calls yield before that if its last such call was more than turnPass ago.
func (t *Turns) Leave(a *Account, took time.Duration, yield func()) {
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
	if h.used += took; len(h.waiting) > 0 {
		heap.Fix(&t.waiting, h.index)
	}
	next := t.waiting[0]
	t.now = max(t.now+took/time.Duration(len(t.waiting)+t.most), next.used)
	close(next.waiting[0])
	next.waiting = next.waiting[1:]
	if len(next.waiting) > 0 {
		next.since = t.nextWaitLocked()
		heap.Fix(&t.waiting, next.index)
	} else {
		heap.Pop(&t.waiting)
		t.crowded.Store(len(t.waiting) > 0)
	}
	t.sweepLocked()
}

// Full reports whether all places are taken, and Crowded whether goroutines wait for one. Hosts returns the number of hosts for which they wait, Busy
// that of the places that are taken, and Most that of all places.
func (t *Turns) Full() bool    { return t.full.Load() }
func (t *Turns) Crowded() bool { return t.crowded.Load() }
func (t *Turns) Most() int     { return t.most }

// Hosts is described at Full.
func (t *Turns) Hosts() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}

// Busy is described at Full.
func (t *Turns) Busy() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.busy
}

// pass reports whether Leave must call yield at the time now, and then sets passed.
func (t *Turns) pass(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.passed) <= turnPass {
		return false
	}
	t.passed = now
	return true
}
