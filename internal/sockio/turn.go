package sockio

import "time"

// A Turn delays work for new connections until the connections that are established have had theirs. Go's scheduler looks
// at the network only when nothing else can run, or every 10 ms. The set-up of many new connections always finds
// something to run, and would make every other connection of the process wait for those 10 ms, at each of its messages.
//
// A Turn is safe for concurrent use: of the goroutines that wait, one goes on for each look at the network.
type Turn struct {
	limit time.Duration // of one wait
	turn
}

// turnLimit bounds one wait, because a process whose processors are all busy does not look at the network for 10 ms.
const turnLimit = time.Millisecond

// NewTurn returns a Turn, to be closed by the caller.
func NewTurn() (*Turn, error) {
	t := &Turn{limit: turnLimit}
	if err := t.open(); err != nil {
		return nil, err
	}
	return t, nil
}

// Wait returns when the scheduler has looked at the network after the call has begun, and the goroutines that it found
// ready have run; at the latest after 1 ms for each goroutine that waits before this one. After Close it returns at once.
func (t *Turn) Wait() { t.wait(t.limit) }

// Close ends all waits and frees the Turn's descriptor.
func (t *Turn) Close() error { return t.close() }
