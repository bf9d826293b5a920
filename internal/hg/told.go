package hg

import (
	"sync"
	"time"

	"cinnabar/internal/na"
)

// told remembers which misbehaviour of which peers has been logged, and bounds the log: a hostile host can have as many
// addresses as it has ports.
type told struct {
	mu sync.Mutex
	// +checklocks:mu
	said map[string]struct{}
	// +checklocks:mu
	since time.Time // when said was empty
}

const (
	maxTold  = 256         // lines in
	toldTime = time.Minute // after which all is forgotten if there were so many
)

// tell logs what a peer does wrong, the first time.
func (c *Class) tell(from na.Addr, what string, err error) {
	addr := from.String()
	if c.told.first(addr + " " + what) {
		c.log.Warn(what, "peer", addr, "error", err, "note", "further ones of this peer are counted only")
	}
}

func (t *told) first(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.said[key]; known {
		return false
	}
	if len(t.said) >= maxTold {
		if time.Since(t.since) < toldTime {
			return false
		}
		clear(t.said)
	}
	if len(t.said) == 0 {
		t.since = time.Now()
	}
	t.said[key] = struct{}{}
	return true
}
