package ofitcp

import (
	"container/list"
	"runtime"
	"sync"

	"cinnabar/internal/hostquota"
)

// setupPerProcessor is the number of connections that are set up at a time, for each processor.
const setupPerProcessor = 2

// setupQueue limits the number of new connections that are set up at a time, because a setup takes some 50 µs of a processor. If a
// thousand connection requests came at once without the queue, Go's scheduler would run all their goroutines before any goroutine
// that becomes runnable later. In the queue hosts take turns, and goroutines with other work run in between.
type setupQueue struct {
	most int // limit of busy

	mu sync.Mutex
	// +checklocks:mu
	busy int
	// hosts lists the hosts with waiting connections in the order of their turns. An element is a *setupHost.
	// +checklocks:mu
	hosts list.List
	// +checklocks:mu
	byHost map[*hostquota.Account]*setupHost
}

// setupHost holds the waiting connections of one host. Each waits until its channel is closed.
type setupHost struct {
	account *hostquota.Account
	waiting ring[chan struct{}]
}

func newSetupQueue() *setupQueue {
	q := &setupQueue{most: setupPerProcessor * runtime.GOMAXPROCS(0)}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.byHost = map[*hostquota.Account]*setupHost{}
	return q
}

// enter waits for the turn of a connection of a host, and reports whether it had to wait. The caller calls leave soon, because
// the waits of others cannot be cancelled.
func (q *setupQueue) enter(a *hostquota.Account) (waited bool) {
	turn := q.join(a)
	if turn != nil {
		<-turn
	}
	return turn != nil
}

// join takes a free place and returns nil, or returns a channel that leave closes to hand a place over.
func (q *setupQueue) join(a *hostquota.Account) (turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy < q.most {
		q.busy++
		return nil
	}
	h := q.byHost[a]
	if h == nil {
		h = &setupHost{account: a}
		q.byHost[a] = h
		q.hosts.PushBack(h)
	}
	turn = make(chan struct{})
	h.waiting.push(turn)
	return turn
}

// leave hands the place to a connection of the host whose turn it is.
func (q *setupQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := q.hosts.Front()
	if first == nil {
		q.busy--
		return
	}
	h, _ := first.Value.(*setupHost)
	close(h.waiting.pop())
	if h.waiting.len() > 0 {
		q.hosts.MoveToBack(first)
		return
	}
	q.hosts.Remove(first)
	delete(q.byHost, h.account)
}
