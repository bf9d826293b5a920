package peerbook

import (
	"sync"
	"sync/atomic"
)

// Active is the set of the peers with a connection, an attempt to connect, or an operation. An endpoint searches it for an operation to
// cancel, and ends all operations of its peers when it closes. The set also keeps its peers from the garbage collector, because [Book]
// does not. The zero Active is empty. All methods are safe for concurrent use.
type Active[P comparable] struct {
	mu sync.Mutex
	// +checklocks:mu
	peers map[P]struct{}
}

// Member is the field of a peer that records whether the peer is in the set. The zero Member stands for a peer outside of it.
type Member struct{ in atomic.Bool }

// Add adds p, of which m is the Member. The caller holds the lock that guards the connection, attempt or operation that it has begun.
// A caller of Remove holds the same lock, so it sees that operation and leaves p in the set. For a peer that is in the set already, Add
// is one atomic load.
func (a *Active[P]) Add(p P, m *Member) {
	if m.in.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.peers == nil {
		a.peers = make(map[P]struct{})
	}
	m.in.Store(true)
	a.peers[p] = struct{}{}
}

// Remove removes p, of which m is the Member. The caller holds the locks of all connections, attempts and operations of the peer, and
// has seen that there is none.
func (a *Active[P]) Remove(p P, m *Member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.peers, p)
	m.in.Store(false)
}

// List returns the peers of the set, in no order.
func (a *Active[P]) List() []P {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]P, 0, len(a.peers))
	for p := range a.peers {
		list = append(list, p)
	}
	return list
}
