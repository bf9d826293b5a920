package sockio

import "time"

// A Turn delays work for new connections until established connections have been served. Go's scheduler polls the network only
// when no goroutine is runnable, or every 10 ms. During the setup of many new connections some goroutine is always runnable, so
// each message of every other connection of the process would wait for up to 10 ms.
//
// A Turn is safe for concurrent use: each poll of the network lets one waiting goroutine go on.
type Turn struct {
	limit time.Duration // the longest time of one wait
	turn
}

// turnLimit bounds one wait, because the scheduler of a process with busy processors polls the network only every 10 ms.
const turnLimit = time.Millisecond

// NewTurn returns a Turn, which the caller closes.
func NewTurn() (*Turn, error) {
	t := &Turn{limit: turnLimit}
	if err := t.open(); err != nil {
		return nil, err
	}
	return t, nil
}

// Wait returns when, since the call, the scheduler has polled the network and has run the goroutines that this made runnable. It
// returns at the latest after 1 ms for itself and for each goroutine that waits before it, and after Close at once.
func (t *Turn) Wait() { t.wait(t.limit) }

// Close ends all waits and frees the Turn's descriptor.
func (t *Turn) Close() error { return t.close() }
