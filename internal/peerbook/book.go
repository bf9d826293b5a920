package peerbook

import (
	"runtime"
	"sync"
	"weak"
)

// Book finds the one peer of each key for as long as the program has a reference to that peer, because operations to one address must
// share a connection. The collector frees a peer without references, and the book then forgets its key. All methods are safe for
// concurrent use.
type Book[K comparable, P any] struct {
	mu sync.Mutex
	// +checklocks:mu
	peers map[K]weak.Pointer[P]
}

// NewBook returns an empty book. A book is an object of its own and not a field of the endpoint, because the runtime refers to the book
// for as long as it has peers (runtime.AddCleanup). As a field it would keep the endpoint, and with it the endpoint's own peer, forever.
func NewBook[K comparable, P any]() *Book[K, P] {
	return &Book[K, P]{peers: make(map[K]weak.Pointer[P])}
}

// Find returns the peer of key, nil if there is none.
func (b *Book[K, P]) Find(key K) *P {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peers[key].Value()
}

// Get returns the peer of key. If there is none, or if fits is not nil and rejects it, Get calls create and enters the result in its
// place. Both functions are called with the book locked, and must not use it.
func (b *Book[K, P]) Get(key K, fits func(*P) bool, create func() *P) *P {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.peers[key].Value(); p != nil && (fits == nil || fits(p)) {
		return p
	}
	p := create()
	b.peers[key] = weak.Make(p)
	runtime.AddCleanup(p, b.forget, key)
	return p
}

// Len returns the number of keys. It counts peers that the collector has freed, until the book forgets their keys.
func (b *Book[K, P]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.peers)
}

// forget removes a peer that the collector has freed, unless key has a new one.
func (b *Book[K, P]) forget(key K) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w, ok := b.peers[key]; ok && w.Value() == nil {
		delete(b.peers, key)
	}
}
