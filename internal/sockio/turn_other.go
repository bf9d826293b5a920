//go:build !linux

package sockio

import (
	"sync"
	"time"

	"cinnabar/internal/invariants"
)

// turn sleeps in every turnCount-th wait, because an idle processor polls the network.
type turn struct {
	mu invariants.Mutex
	// +checklocks:mu
	n      int
	closed chan struct{}
	once   sync.Once
}

// turnRest is the length of a sleep. Only one wait in turnCount sleeps, because a sleep is expensive on some systems.
const (
	turnCount = 16
	turnRest  = 100 * time.Microsecond
)

func (t *turn) open() error {
	t.closed = make(chan struct{})
	return nil
}

func (t *turn) wait(limit time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n++; t.n%turnCount != 0 {
		return
	}
	rest := time.NewTimer(min(limit, turnRest))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-t.closed:
	}
}

func (t *turn) close() error {
	t.once.Do(func() { close(t.closed) })
	return nil
}
