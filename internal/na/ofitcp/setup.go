package ofitcp

import (
	"container/list"
	"runtime"
	"sync"

	"cinnabar/internal/hostquota"
)

// setupPerProcessor is how many connections for each processor are set up at a time.
const setupPerProcessor = 2

// setupQueue has connections wait that have sent their request while others are set up. Setting one up takes some 50 µs of a
// processor. If a thousand requests come at once, the scheduler runs their goroutines one after the other, and whatever
// becomes runnable meanwhile comes behind them. In the queue hosts take turns, and goroutines that do other work run in between.
type setupQueue struct {
	most int // that are set up at a time

	mu sync.Mutex
	// +checklocks:mu
	busy int
	// hosts have connections waiting, in the order of their turns. An element is a *setupHost.
	// +checklocks:mu
	hosts list.List
	// +checklocks:mu
	byHost map[*hostquota.Account]*setupHost
}

// setupHost are the connections of one host that wait, each for its channel to be closed.
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

// enter waits for the turn of a connection of a host, and reports whether it had to wait. Each call is followed by one of leave
// soon, because those that wait have no context.
func (q *setupQueue) enter(a *hostquota.Account) (waited bool) {
	turn := q.join(a)
	if turn != nil {
		<-turn
	}
	return turn != nil
}

// join takes a place and returns nil, or returns the channel that is closed when there is one.
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

// leave gives the place to a connection of the host whose turn it is.
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
