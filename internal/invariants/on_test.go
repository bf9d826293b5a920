//go:build invariants

package invariants

import "testing"

// Each acquisition counts once, and a TryLock only if it succeeds. Before CountLocks none counts.
func TestCountLocks(t *testing.T) {
	var (
		m  Mutex
		rw RWMutex
	)
	m.Lock()
	m.Unlock()
	if n := Locks(); n != 0 {
		t.Fatalf("%d locks before CountLocks", n)
	}
	CountLocks()
	m.Lock()
	if m.TryLock() {
		t.Fatal("TryLock of a locked Mutex succeeds")
	}
	m.Unlock()
	if !m.TryLock() {
		t.Fatal("TryLock of a Mutex that is free fails")
	}
	m.Unlock()
	rw.Lock()
	rw.Unlock()
	rw.RLock()
	rw.RUnlock()
	if n := Locks(); n != 4 {
		t.Errorf("%d locks, want 4", n)
	}
}
