package xfer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// namesUnder are the names of the files that a receiver stores now. A transfer that has lost its sender holds its name until this side has noticed, so a sender that tries
// again at once would be refused because of its own transfer before.
type namesUnder struct {
	mu sync.Mutex
	// closed at the end of the transfer of a name
	// +checklocks:mu
	ends map[string]chan struct{}
}

// nameWait is the longest time for which a transfer waits for the end of another one of the same name.
const nameWait = time.Second

// open calls do, which makes the file of a name. If do fails because the file exists, and a transfer of this name is under way, open waits for its end, and calls do again. The
// caller calls end at the end of a transfer for which do has succeeded.
func (n *namesUnder) open(ctx context.Context, name string, do func() (File, error)) (f File, end func(), err error) {
	limit := time.NewTimer(nameWait)
	defer limit.Stop()
	for {
		f, err := do()
		if err == nil {
			return f, n.begin(name), nil
		}
		over := n.over(name)
		if over == nil || !errors.Is(err, CodeExists) {
			return nil, nil, err
		}
		select {
		case <-over:
		case <-limit.C:
			return nil, nil, err
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// begin notes that a transfer of the name is under way, and returns the function that ends that. A further one of the same name, which the receiver's policy may allow, takes its place.
func (n *namesUnder) begin(name string) (end func()) {
	over := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ends == nil {
		n.ends = map[string]chan struct{}{}
	}
	n.ends[name] = over
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.ends[name] == over {
			delete(n.ends, name)
		}
		close(over)
	}
}

// over returns the channel that is closed at the end of the transfer of a name; nil: there is none.
func (n *namesUnder) over(name string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ends[name]
}
