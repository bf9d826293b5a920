package memdev

import (
	"slices"
	"time"

	"cinnabar/verbs"
)

// armed is the kind of completion that a completion queue signals next.
type armed uint8

const (
	armedNot armed = iota
	armedSolicited
	armedAny
)

// cq is a completion queue.
type cq struct {
	dev     *Device
	context any
	event   chan struct{} // capacity 1
	depth   int
	entries []cqe
	armed   armed
	overrun bool
	users   int // queue pairs that use it, counted once per direction
	closed  bool
}

// cqe is a completion and the room that its removal gives back to its work queue.
type cqe struct {
	wc   verbs.WC
	used *int // work requests that are posted and not yet given back
	n    int
}

// CreateCQ makes a completion queue of exactly depth entries.
func (d *Device) CreateCQ(depth int, cqContext any) (verbs.CQDriver, error) {
	if depth < 1 || depth > 1<<20 {
		return nil, verbs.Errorf("create completion queue", verbs.ErrInvalid, "depth %d; the device takes 1 to %d", depth, 1<<20)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs++
	return &cq{dev: d, context: cqContext, event: make(chan struct{}, 1), depth: depth}, nil
}

// Moderate refuses.
func (c *cq) Moderate(int, time.Duration) error {
	return verbs.Unsupported("moderate completion queue", "device mem0 cannot delay events; poll several completions for each event instead")
}

// SetTimestamps refuses.
func (c *cq) SetTimestamps(bool) error {
	return verbs.Unsupported("set time stamps", "the completions of device mem0 carry no time; read the clock after CQ.Poll")
}

// add appends a completion and signals an armed queue. The caller holds mu.
func (c *cq) add(e cqe, solicited bool) {
	c.dev.stats["completions"]++
	if c.overrun {
		return
	}
	if len(c.entries) == c.depth {
		c.overrun = true
		c.dev.raise(verbs.DeviceEvent{Type: verbs.EventCQErr, Context: c.context,
			Err: verbs.Errorf("completion queue", verbs.ErrCQOverrun, "all %d entries are taken; poll more often or make it deeper", c.depth)})
		c.notify()
		return
	}
	c.entries = append(c.entries, e)
	if c.armed == armedAny || c.armed == armedSolicited && (solicited || e.wc.Status != verbs.StatusSuccess) {
		c.notify()
	}
}

func (c *cq) notify() {
	c.armed = armedNot
	select {
	case c.event <- struct{}{}:
	default: // one unread event is enough
	}
}

// Poll takes the oldest completions.
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	n := min(len(wc), len(c.entries))
	for i, e := range c.entries[:n] {
		wc[i] = e.wc
		*e.used -= e.n
	}
	c.entries = c.entries[:copy(c.entries, c.entries[n:])]
	if n == 0 && c.overrun && len(wc) > 0 {
		return 0, verbs.Errorf("poll", verbs.ErrCQOverrun, "completions were lost; the queue has %d entries", c.depth)
	}
	return n, nil
}

// purge removes the completions of a queue pair that starts anew. The caller
// holds mu.
func (c *cq) purge(q *qp) {
	c.entries = slices.DeleteFunc(c.entries, func(e cqe) bool { return e.wc.QPNum == q.num })
}

// Arm asks for an event.
func (c *cq) Arm(solicitedOnly bool) error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	switch {
	case c.overrun:
		c.notify()
	case !solicitedOnly:
		c.armed = armedAny
	case c.armed == armedNot:
		c.armed = armedSolicited
	}
	return nil
}

func (c *cq) Event() <-chan struct{} { return c.event }

// Resize changes the depth; it refuses to go below the number of queued completions.
func (c *cq) Resize(depth int) error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if depth < max(1, len(c.entries)) {
		return verbs.Errorf("resize completion queue", verbs.ErrInvalid, "depth %d; %d completions are queued", depth, len(c.entries))
	}
	c.depth = depth
	return nil
}

func (c *cq) Depth() int {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	return c.depth
}

// Close releases the queue.
func (c *cq) Close() error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.users > 0 {
		return verbs.Errorf("close completion queue", verbs.ErrBusy, "queue pairs use it")
	}
	if !c.closed {
		c.closed = true
		c.dev.cqs--
	}
	return nil
}
