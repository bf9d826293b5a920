package peerbook

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"weak"

	"cinnabar/internal/na"
)

// peer is a peer of a transport in small: its operations, and its part of the set of active peers.
type peer struct {
	of       *endpoint
	name     string
	member   Member
	expected Expected
}

// endpoint is a transport in small. Its own peer is in its book, as those of transports are.
type endpoint struct {
	own    *peer
	peers  *Book[string, peer]
	active Active[*peer]
}

func newEndpoint() *endpoint {
	e := &endpoint{peers: NewBook[string, peer]()}
	e.own = e.at("own")
	return e
}

func (e *endpoint) at(name string) *peer {
	return e.peers.Get(name, nil, func() *peer { return &peer{of: e, name: name} })
}

// collected runs the collector until done reports true.
func collected(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if done() {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("the collector does not free %s", what)
}

func TestBookHasOnePeerOfEachKey(t *testing.T) {
	e := newEndpoint()
	a, b := e.at("a"), e.at("b")
	if a == b || e.at("a") != a || e.peers.Find("a") != a || e.peers.Find("c") != nil {
		t.Error("the book mixes up its peers")
	}
	reject := func(p *peer) bool { return p != a }
	if n := e.peers.Get("a", reject, func() *peer { return &peer{of: e, name: "a"} }); n == a || e.peers.Find("a") != n {
		t.Error("a peer that does not fit was not replaced")
	}
	runtime.KeepAlive(b)
}

func TestBookForgetsPeers(t *testing.T) {
	e := newEndpoint()
	for _, name := range []string{"a", "b", "c"} {
		e.at(name)
	}
	collected(t, "peers without references", func() bool { return e.peers.Len() == 1 })
	if e.peers.Find("own") != e.own {
		t.Error("the book has forgotten a peer that is referred to")
	}
	first := weak.Make(e.at("a"))
	collected(t, "a peer", func() bool { return first.Value() == nil })
	second := e.at("a")
	collected(t, "nothing", func() bool { return true }) // lets the cleanup of the first run
	if e.at("a") != second {
		t.Error("the end of a peer has removed its successor")
	}
}

// TestBookKeepsNoEndpoint frees an endpoint whose own peer is in its book and refers to the endpoint.
func TestBookKeepsNoEndpoint(t *testing.T) {
	w := weak.Make(newEndpoint())
	collected(t, "the endpoint", func() bool { return w.Value() == nil })
}

func TestExpected(t *testing.T) {
	var x Expected
	var ops [4]na.Op
	begun := 0
	begin := func() { begun++ }
	for tag := range uint32(4) {
		if !x.Add(tag, Waiter{Op: &ops[tag]}, begin) {
			t.Fatalf("tag %d was refused", tag)
		}
	}
	if x.Add(2, Waiter{Op: new(na.Op)}, begin) {
		t.Error("two operations wait for one tag")
	}
	if begun != 4 || x.Len() != 4 || !x.Has(3) || x.Has(4) {
		t.Errorf("%d operations began, %d wait; want 4 and 4", begun, x.Len())
	}
	if w, ok := x.Take(1); !ok || w.Op != &ops[1] {
		t.Error("Take returned another operation than the one with the tag")
	}
	if _, ok := x.Take(1); ok {
		t.Error("one operation was taken twice")
	}
	if !x.Remove(&ops[3]) || x.Remove(&ops[3]) {
		t.Error("Remove does not remove an operation once")
	}
	x.IfEmpty(func() { t.Error("an Expected with two operations is called empty") })
	if rest := x.TakeAll(map[uint32]bool{0: true}); len(rest) != 1 || rest[0].Op != &ops[2] || x.Len() != 1 {
		t.Errorf("TakeAll returned %d operations and left %d; want 1 and 1", len(rest), x.Len())
	}
	x.TakeAll(nil)
	empty := false
	x.IfEmpty(func() { empty = true })
	if !empty || x.Len() != 0 {
		t.Error("operations are left after TakeAll")
	}
}

// TestActive begins and ends operations of a few peers at once. A peer with an operation must be in the set at all times, because Close
// of an endpoint would not end that operation otherwise.
func TestActive(t *testing.T) {
	e := newEndpoint()
	var wg sync.WaitGroup
	peers := []*peer{e.at("a"), e.at("b"), e.own}
	for g := range uint32(4) {
		wg.Go(func() {
			var op na.Op
			for i := range 2000 {
				p := peers[(int(g)+i)%len(peers)]
				p.expected.Add(g, Waiter{Op: &op}, func() { e.active.Add(p, &p.member) })
				if !slices.Contains(e.active.List(), p) {
					t.Errorf("peer %s has an operation and is not active", p.name)
				}
				p.expected.Take(g)
				p.expected.IfEmpty(func() { e.active.Remove(p, &p.member) })
			}
		})
	}
	wg.Wait()
	if n := len(e.active.List()); n != 0 {
		t.Errorf("%d peers are active without operations", n)
	}
}
