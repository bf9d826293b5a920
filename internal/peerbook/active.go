package peerbook

import (
	"sync"
	"sync/atomic"
)

// Active is the set of the peers with something under way: a connection, an attempt to connect, or an operation. An endpoint goes
// through it to cancel an operation, and to end all of them, and the set keeps its peers from the collector. The zero Active is
// empty. All methods are safe for concurrent use.
type Active[P comparable] struct {
	mu sync.Mutex
	// +checklocks:mu
	peers map[P]struct{}
}

// Member is the part of a peer that says whether the peer is in the set. The zero Member is not.
type Member struct{ in atomic.Bool }

// Add adds p, of which m is the Member. The caller holds the lock that guards what it has begun, and a caller of Remove holds it too,
// so that Remove does not undo Add. A peer that is in the set already costs one atomic load.
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

// Remove removes p. The caller holds the locks that guard what the peer has under way, and has seen that there is nothing.
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
