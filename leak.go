package cinnabar

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strconv"
	"time"

	"cinnabar/internal/invariants"
)

// exposedTable lists the memory that an engine exposes.
type exposedTable struct {
	mu invariants.Mutex
	// +checklocks:mu
	first *memory // linked by next, the newest first
	// +checklocks:mu
	count int
	// +checklocks:mu
	bytes int64 // of all of them
}

func (t *exposedTable) add(m *memory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	t.bytes += m.size
	m.prev, m.next = nil, t.first
	if t.first != nil {
		t.first.prev = m
	}
	t.first = m
}

func (t *exposedTable) remove(m *memory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count--
	t.bytes -= m.size
	switch {
	case m.prev != nil:
		m.prev.next = m.next
	case t.first == m:
		t.first = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}

// exposedGroup is a number of memories of one kind that were exposed at one place in the program.
type exposedGroup struct {
	exposedKey
	count int
	bytes int64
}

type exposedKey struct {
	kind memoryKind
	made uintptr // the program counter of the call that exposed it, 0 if not known
}

// all returns the exposed memory in groups, such as the buffers of one pool, the oldest first.
func (t *exposedTable) all() []exposedGroup {
	list, _, _ := t.newest(math.MaxInt)
	slices.Reverse(list)
	return list
}

// newest returns the groups of the limit memories that were exposed last, the newest group first, and the number and the bytes of all
// exposed memory.
func (t *exposedTable) newest(limit int) (list []exposedGroup, count int, bytes int64) {
	type one struct {
		exposedKey
		bytes int64
	}
	t.mu.Lock()
	count, bytes = t.count, t.bytes
	seen := make([]one, 0, min(limit, count))
	for m := t.first; m != nil && len(seen) < limit; m = m.next {
		seen = append(seen, one{exposedKey{m.memoryKind, m.made.Load()}, m.size})
	}
	t.mu.Unlock()
	index := map[exposedKey]int{}
	for _, m := range seen {
		i, known := index[m.exposedKey]
		if !known {
			i = len(list)
			index[m.exposedKey] = i
			list = append(list, exposedGroup{exposedKey: m.exposedKey})
		}
		list[i].count++
		list[i].bytes += m.bytes
	}
	return list, count, bytes
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
func (h *unansweredCalls) all() []*unansweredCall {
	list, _ := h.some(math.MaxInt)
	return list
}

// some returns at most limit of the requests, the oldest of these first, and the number of all.
func (h *unansweredCalls) some(limit int) (list []*unansweredCall, count int) {
	h.mu.Lock()
	count = len(h.set)
	for o := range h.set {
		if len(list) == limit {
			break
		}
		list = append(list, o)
	}
	h.mu.Unlock()
	slices.SortFunc(list, func(a, b *unansweredCall) int { return a.since.Compare(b.since) })
	return list, count
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
	for _, x := range firstLeaks(e, "exposures", exposed) {
		e.log.Warn("exposed memory is not closed before its engine", "what", x.kind.String(), "count", x.count, logMade, place(x.made))
	}
	for _, o := range firstLeaks(e, "calls", e.handlers.unanswered.all()) {
		e.log.Warn("call is not answered before its engine ends", logRPC, o.svc.label(), logPeer, o.from, logAge, time.Since(o.since))
	}
	var left []opRecord
	for _, d := range e.ops.all() {
		if d.pending != nil && d.pending.ignored() {
			left = append(left, d)
		}
	}
	now := e.ops.clock.Exact()
	for _, d := range firstLeaks(e, "operations", left) {
		e.log.Warn("operation is under way when its engine ends, and nothing waits for it",
			"op", d.op, logRPC, d.label(), logPeer, d.ep.String(), logAge, now-d.began)
	}
}

// firstLeaks returns the first maxWarnings elements of list, and logs the number of the others.
func firstLeaks[T any](e *Engine, what string, list []T) []T {
	if more := len(list) - maxWarnings; more > 0 {
		e.log.Warn("more is left behind than is reported", "what", what, "more", more)
		return list[:maxWarnings]
	}
	return list
}

// leakWatch logs a report if it becomes garbage before stop. A Bulk refers to it, and every later Bulk that Recycle makes of the same
// memory, so it becomes garbage when the program has none of them left to close. Their views refer to them.
//
// The memory stays exposed until the engine closes, because a peer may hold a handle of it and the program its slices.
type leakWatch struct{ cleanup runtime.Cleanup }

// leakReport has the attributes of the log line of a leakWatch.
type leakReport struct {
	logger *slog.Logger
	kind   memoryKind
	made   uintptr // the program counter of the call that exposed the memory, 0 if not known
}

// watchLeak returns nil if the logger discards warnings.
func watchLeak(r leakReport) *leakWatch {
	if !r.logger.Enabled(context.Background(), slog.LevelWarn) {
		return nil
	}
	w := new(leakWatch)
	w.cleanup = runtime.AddCleanup(w, leakReport.log, r)
	return w
}

// stop is called when the program has closed the memory.
func (w *leakWatch) stop() {
	if w != nil {
		w.cleanup.Stop()
		runtime.KeepAlive(w)
	}
}

func (r leakReport) log() {
	r.logger.Warn("never closed: its memory stays exposed until the engine closes", "what", r.kind.String(), logMade, place(r.made))
}

// place returns the function, file and line of pc in the program.
func place(pc uintptr) string {
	if pc == 0 {
		return "at a place that is not known"
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return f.Function + " at " + f.File + ":" + strconv.Itoa(f.Line)
}
