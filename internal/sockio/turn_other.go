//go:build !linux

package sockio

import (
	"sync"
	"time"
)

// turn rests after every few waits, which lets an idle processor look at the network.
type turn struct {
	mu sync.Mutex
	// +checklocks:mu
	n      int
	closed chan struct{}
	once   sync.Once
}

// turnRest is for how long every turnCount-th wait rests, because sleeping is dear on some systems.
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
