package cinnabar

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"cinnabar/internal/invariants"
)

// memories is the list of the memory that an engine exposes.
type memories struct {
	mu invariants.Mutex
	// +checklocks:mu
	first *memory // linked by next, the newest first
}

func (ms *memories) add(m *memory) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m.prev, m.next = nil, ms.first
	if ms.first != nil {
		ms.first.prev = m
	}
	ms.first = m
}

func (ms *memories) remove(m *memory) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	switch {
	case m.prev != nil:
		m.prev.next = m.next
	case ms.first == m:
		ms.first = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}

// exposure is a number of memories that are alike.
type exposure struct {
	what  string
	made  uintptr
	count int
	bytes int64
}

// all returns the exposed memory, the oldest first. It counts alike memory, such as the buffers of one pool, in one exposure.
func (ms *memories) all() (list []exposure) {
	type key struct {
		made uintptr
		what string
	}
	index := map[key]int{}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for m := ms.first; m != nil; m = m.next {
		k := key{m.made.Load(), m.String()}
		i, known := index[k]
		if !known {
			i = len(list)
			index[k] = i
			list = append(list, exposure{what: k.what, made: k.made})
		}
		list[i].count++
		list[i].bytes += m.size
	}
	slices.Reverse(list)
	return list
}

// unansweredCalls are the requests that programs hold without an answer although their handlers have returned.
type unansweredCalls struct {
	mu invariants.Mutex
	// +checklocks:mu
	set map[*unansweredCall]struct{}
	// over is closed when Shutdown has ended; nil until it begins.
	// +checklocks:mu
	over <-chan struct{}
}

func (h *unansweredCalls) init() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set = map[*unansweredCall]struct{}{}
}

func (h *unansweredCalls) add(o *unansweredCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set[o] = struct{}{}
	if h.over != nil {
		go o.leaveWhenAlone(h.over)
	}
}

// drain makes Shutdown go on without requests of callers that have lost their connection. It applies to later requests too, until over is
// closed.
func (h *unansweredCalls) drain(over <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = over
	for o := range h.set {
		go o.leaveWhenAlone(over)
	}
}

// leaveWhenAlone waits until the caller is gone, the request is answered, or over is closed.
func (o *unansweredCall) leaveWhenAlone(over <-chan struct{}) {
	select {
	case <-o.gone:
		o.leave()
	case <-o.done:
	case <-over:
	}
}

func (h *unansweredCalls) remove(o *unansweredCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.set, o)
}

// all returns the requests, the oldest first.
func (h *unansweredCalls) all() (list []*unansweredCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for o := range h.set {
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b *unansweredCall) int { return a.since.Compare(b.since) })
	return list
}

// maxWarnings is the largest number of leaks of each kind that are logged by name.
const maxWarnings = 16

// warnLeaks logs memory that is still exposed when its engine ends, calls that the program has not answered, and operations in flight
// without a waiter.
func (e *Engine) warnLeaks() {
	if !e.log.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	exposed := e.exposed.all()
	for _, x := range some(e, "exposures", exposed) {
		e.log.Warn("exposed memory is not closed before its engine", "what", x.what, "count", x.count, logMade, x.place())
	}
	for _, o := range some(e, "calls", e.handlers.unanswered.all()) {
		e.log.Warn("call is not answered before its engine ends", logRPC, o.svc.label(), logPeer, o.from, logAge, time.Since(o.since))
	}
	var left []opRecord
	for _, d := range e.ops.all() {
		if d.pending != nil && d.pending.ignored() {
			left = append(left, d)
		}
	}
	now := e.ops.clock.Exact()
	for _, d := range some(e, "operations", left) {
		e.log.Warn("operation is under way when its engine ends, and nothing waits for it",
			"op", d.op, logRPC, d.label(), logPeer, d.ep.String(), logAge, now-d.began)
	}
}

// place says where the program has made it.
func (x *exposure) place() string {
	if x.made == 0 {
		return "at a place that is not known"
	}
	return place(x.made)
}

// some returns the first maxWarnings of list, and reports how many there are besides.
func some[T any](e *Engine, what string, list []T) []T {
	if more := len(list) - maxWarnings; more > 0 {
		e.log.Warn("more is left behind than is reported", "what", what, "more", more)
		return list[:maxWarnings]
	}
	return list
}
