//go:build invariants

package invariants

import (
	"sync"
	"sync/atomic"
)

// Enabled reports whether invariant checks are compiled in.
const Enabled = true

var (
	counting atomic.Bool
	locks    atomic.Uint64
)

// CountLocks starts to count acquisitions of a [Mutex] or an [RWMutex], for the rest of the process. A process that has not called it
// writes no common variable when it locks, because the race detector would see that as synchronization between all goroutines that lock.
func CountLocks() { counting.Store(true) }

// Locks returns the number of acquisitions since CountLocks, on all goroutines of the process. A TryLock that fails is not
// counted.
func Locks() uint64 { return locks.Load() }

func count() {
	if counting.Load() {
		locks.Add(1)
	}
}

// Mutex is a [sync.Mutex] that counts its acquisitions.
type Mutex struct{ mu sync.Mutex }

// Lock locks m.
func (m *Mutex) Lock() {
	m.mu.Lock()
	count()
}

// TryLock tries to lock m and reports whether it succeeded.
func (m *Mutex) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	count()
	return true
}

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }

// RWMutex is a [sync.RWMutex] that counts its acquisitions, for reading and for writing.
type RWMutex struct{ mu sync.RWMutex }

// Lock locks m for writing.
func (m *RWMutex) Lock() {
	m.mu.Lock()
	count()
}

// Unlock ends a Lock.
func (m *RWMutex) Unlock() { m.mu.Unlock() }

// RLock locks m for reading.
func (m *RWMutex) RLock() {
	m.mu.RLock()
	count()
}

// RUnlock ends an RLock.
func (m *RWMutex) RUnlock() { m.mu.RUnlock() }
