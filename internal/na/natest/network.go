package natest

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// Config describes a network. The zero value has no delays and no faults.
type Config struct {
	Seed uint64
	// Delay is the longest time of a step. The time is drawn from the seed.
	Delay time.Duration
	// Direct makes every operation complete within the call that starts it.
	Direct bool
	// Chunk is the number of bytes of a transfer that one step moves; 0 stands for 64 KiB.
	Chunk int
	// Fault, if not nil, is called before each step. It must not call the network.
	Fault func(s *Step) Action
	// MaxRequest and MaxResponse are the limits of messages; 0 stands for Mercury's, 4080 and 4096.
	MaxRequest, MaxResponse int
	// Quota counts the resources that each endpoint's peers hold; nil: a Book without limits.
	Quota *hostquota.Book
}

// Kind is the kind of operation that a step belongs to.
type Kind uint8

const (
	kindReceive  Kind = iota // posted by RecvExpected; never a step
	KindRequest              // a request is taken from its sender, or arrives
	KindResponse             // an expected message
	KindGet                  // a part of a transfer
	KindPut
)

func (k Kind) String() string {
	return [...]string{"receive", "request", "response", "get", "put"}[k]
}

// Step is one thing that happens: a message is taken from its sender, a message arrives, a part of a transfer moves.
type Step struct {
	N        int // from 1 on
	Kind     Kind
	From, To *Endpoint // the endpoint that has started the operation, and its peer
	Tag      uint32
	Arrives  bool   // a message that was taken before; Data may be changed
	Data     []byte // of a message
	Offset   int64  // of a transfer: how many bytes have moved
}

// Action is the effect of a fault.
type Action uint8

const (
	Proceed  Action = iota
	Lose            // the message vanishes; a transfer stops for ever
	CutLink         // the connection is lost before the step
	KillFrom        // the process vanishes before the step
	KillTo
)

// Room that the network asks for before messages: any number does, the network leaves it alone.
const (
	requestRoom  = 40
	responseRoom = 24
)

// Network is a set of endpoints that reach each other.
type Network struct {
	cfg Config

	mu sync.Mutex
	// +checklocks:mu
	rng *rand.Rand
	// +checklocks:mu
	endpoints map[uint16]*Endpoint
	// +checklocks:mu
	port uint16
	// +checklocks:mu
	flights map[*na.Op]*flight
	// +checklocks:mu
	idle []*flight // for reuse
	// +checklocks:mu
	seq uint64
	// +checklocks:mu
	steps int
	// +checklocks:mu
	queue queue
	// due is the event whose step the pump does, or did last.
	// +checklocks:mu
	due event
	// +checklocks:mu
	pumping bool
	wake    chan struct{} // capacity 1: an earlier event has come
}

// New makes a network.
func New(cfg Config) *Network {
	if cfg.Chunk <= 0 {
		cfg.Chunk = 64 << 10
	}
	if cfg.Quota == nil {
		cfg.Quota = hostquota.NewBook(hostquota.Limits{})
	}
	if cfg.MaxRequest <= 0 {
		cfg.MaxRequest = 4080
	}
	if cfg.MaxResponse <= 0 {
		cfg.MaxResponse = 4096
	}
	return &Network{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), endpoints: map[uint16]*Endpoint{},
		flights: map[*na.Op]*flight{}, wake: make(chan struct{}, 1), port: 40000,
	}
}

// Steps returns how many steps there have been.
func (n *Network) Steps() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.steps
}

// InFlight returns how many operations have not completed.
func (n *Network) InFlight() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.flights)
}

// Cut loses the connection between two endpoints. A later operation connects anew.
func (n *Network) Cut(a, b *Endpoint) {
	n.mu.Lock()
	ended := n.cutLocked(a, b)
	n.mu.Unlock()
	finishAll(ended)
}

// Kill removes an endpoint as if its process had died: connections are lost, and new ones refused.
func (n *Network) Kill(ep *Endpoint) {
	n.mu.Lock()
	ended := n.killLocked(ep)
	n.mu.Unlock()
	finishAll(ended)
}

// Hold stops everything that an endpoint sends, as a full socket does, until Release.
func (n *Network) Hold(ep *Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ep.held = true
}

// Release sends the messages that Hold has stopped.
func (n *Network) Release(ep *Endpoint) {
	n.mu.Lock()
	ep.held = false
	stopped := ep.stopped
	ep.stopped = nil
	for _, e := range stopped {
		if !e.f.over && e.f.start == e.start {
			n.scheduleLocked(e.f)
		}
	}
	n.mu.Unlock()
	if n.cfg.Direct {
		for _, e := range stopped {
			n.runDirect(e.f, e.start)
		}
	}
}

// +checklocks:n.mu
func (n *Network) killLocked(ep *Endpoint) []ending {
	ep.dead = true
	var ended []ending
	for _, other := range n.sortedLocked() {
		if other != ep {
			ended = append(ended, n.cutLocked(ep, other)...)
		}
	}
	return append(ended, n.endLocked(na.Unreachable, func(f *flight) bool { return f.ep == ep })...)
}

// cutLocked loses the connection between a and b, if there is one, and everything that depends on it.
//
// +checklocks:n.mu
func (n *Network) cutLocked(a, b *Endpoint) []ending {
	l := a.links[b.port]
	if l == nil {
		return nil
	}
	delete(a.links, b.port)
	delete(b.links, a.port)
	close(l)
	return n.endLocked(na.Unreachable, func(f *flight) bool {
		return f.ep == a && f.peer == b.port || f.ep == b && f.peer == a.port
	})
}

// endLocked ends flights, in the order in which they were started.
//
// +checklocks:n.mu
func (n *Network) endLocked(kind na.Kind, which func(*flight) bool) []ending {
	var ended []*flight
	for _, f := range n.flights {
		if which(f) && !f.delivering {
			ended = append(ended, f)
		}
	}
	slices.SortFunc(ended, func(a, b *flight) int { return int(int64(a.seq - b.seq)) })
	list := make([]ending, len(ended))
	for i, f := range ended {
		list[i] = n.landLocked(f, f.moved, f.errorOf(kind))
	}
	return list
}

// +checklocks:n.mu
func (n *Network) sortedLocked() []*Endpoint {
	list := make([]*Endpoint, 0, len(n.endpoints))
	for _, ep := range n.endpoints {
		list = append(list, ep)
	}
	slices.SortFunc(list, func(a, b *Endpoint) int { return int(a.port) - int(b.port) })
	return list
}

// scheduleLocked queues the next step of f.
//
// +checklocks:n.mu
func (n *Network) scheduleLocked(f *flight) {
	if n.cfg.Direct {
		return
	}
	if f.ep.held {
		f.ep.stopped = append(f.ep.stopped, event{f: f, start: f.start})
		return
	}
	due := time.Now()
	if n.cfg.Delay > 0 {
		due = due.Add(time.Duration(n.rng.Int64N(int64(n.cfg.Delay) + 1)))
	}
	if last := f.ep.lastDue[f.peer]; last.After(due) { // a connection keeps its order
		due = last
	}
	f.ep.lastDue[f.peer] = due
	n.seq++
	heap.Push(&n.queue, event{due, n.seq, f, f.start})
	if !n.pumping {
		n.pumping = true
		go n.pump()
	} else if n.queue[0].seq == n.seq {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
}

// pump does the steps that are due, and ends when none is left.
func (n *Network) pump() {
	for {
		n.mu.Lock()
		if len(n.queue) == 0 {
			n.pumping = false
			n.mu.Unlock()
			return
		}
		if wait := time.Until(n.queue[0].due); wait > 0 {
			n.mu.Unlock()
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-n.wake:
				timer.Stop()
			}
			continue
		}
		e := heap.Pop(&n.queue).(event)
		n.due = e
		n.mu.Unlock()
		n.step(e.f, e.start)
	}
}

// event is a step in the future. The flight may be over by then, and even in use for another operation.
type event struct {
	due   time.Time
	seq   uint64
	f     *flight
	start uint64 // of the flight that is meant
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].due.Equal(q[j].due) {
		return q[i].seq < q[j].seq
	}
	return q[i].due.Before(q[j].due)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}
