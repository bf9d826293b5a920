// Package audit counts the events that matter for security by their cause, and logs them at a bounded rate.
//
// A [Trail] belongs to one engine, device or receiver. All trails of a process share one bound on log lines for each remote
// host, because a host that reaches several services must not multiply its lines: [LinesPerHost] in each [Window], and
// [LinesInAll] for all hosts together. Events beyond the bound are counted, and the next line that is logged for the host
// carries their number. Counters are never bounded.
package audit

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
)

// Event is the kind of an event.
type Event uint8

// The events that are counted.
const (
	Accepted    Event = iota // a connection was accepted
	Replaced                 // a connection gave way to a newer one of the same peer
	Evicted                  // a connection or handshake was closed to make room
	Refused                  // a connection, transfer or request was refused
	Denied                   // an access to memory was refused
	Invalidated              // a peer revoked a key
	Shutdown                 // a peer asked for the end of the service
	Broken                   // a peer broke the protocol
	Failed                   // a transfer that was accepted failed
	Queried                  // a peer asked the service to describe itself
	numEvents
)

var events = [numEvents]string{
	Accepted: "connection accepted", Replaced: "connection replaced", Evicted: "connection evicted", Refused: "refused",
	Denied: "memory access refused", Invalidated: "key invalidated by a peer", Shutdown: "remote shutdown", Broken: "peer breaks the protocol",
	Failed: "transfer failed", Queried: "description read by a peer",
}

// String returns the message of the event's log lines.
func (e Event) String() string {
	if int(e) < len(events) {
		return events[e]
	}
	return fmt.Sprintf("event %d", uint8(e))
}

// level returns the level of the event's log lines. Connections that are accepted, and queries that are allowed, are normal;
// all else deserves a look.
func (e Event) level() slog.Level {
	if e == Accepted || e == Queried {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// Keys of the attributes of log lines.
const (
	keyHost       = "host"
	keyCause      = "cause"
	keySuppressed = "suppressed" // lines about the host that were not logged since the last one
)

// Trail counts the events of one engine, device or receiver, and logs them. It is safe for concurrent use.
type Trail struct {
	log     *slog.Logger
	limiter *Limiter

	mu invariants.Mutex
	// +checklocks:mu
	counts map[kind]uint64
}

type kind struct {
	event Event
	cause string
}

// New returns a Trail that logs to log, nil for none, within the bound that all trails of the process share.
func New(log *slog.Logger) *Trail { return NewWithLimiter(log, process) }

// NewWithLimiter is New with a bound of the caller's.
func NewWithLimiter(log *slog.Logger, l *Limiter) *Trail {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Trail{log: log, limiter: l}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts = map[kind]uint64{}
	return t
}

// Record counts an event and logs it if the host's bound allows. cause is a constant of a few words, never a peer's text,
// because the counters are indexed by it. attrs say more, in the log only.
func (t *Trail) Record(e Event, cause string, h hostquota.Host, attrs ...slog.Attr) {
	t.Count(e, cause)
	ctx := context.Background()
	if !t.log.Enabled(ctx, e.level()) {
		return
	}
	suppressed, ok := t.limiter.Allow(h)
	if !ok {
		return
	}
	line := make([]slog.Attr, 0, len(attrs)+3)
	line = append(line, slog.String(keyHost, h.String()), slog.String(keyCause, cause))
	line = append(line, attrs...)
	if suppressed > 0 {
		line = append(line, slog.Uint64(keySuppressed, suppressed))
	}
	t.log.LogAttrs(ctx, e.level(), e.String(), line...)
}

// Count counts an event without a line in the log.
func (t *Trail) Count(e Event, cause string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[kind{e, cause}]++
}

// Count is how many times an event had one cause.
type Count struct {
	Event Event
	Cause string
	N     uint64
}

// Counts returns all counters in the order of events and causes.
func (t *Trail) Counts() []Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Count, 0, len(t.counts))
	for k, n := range t.counts {
		list = append(list, Count{k.event, k.cause, n})
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Cause, b.Cause))
	})
	return list
}

// ContextKey is the key under which the context of a handler has the [Recorder] of its engine.
type ContextKey struct{}

// Recorder records an event that the caller of a handler has caused.
type Recorder func(e Event, cause string)

// RecordIn records an event that the caller of the handler with this context has caused. It does nothing with other contexts.
func RecordIn(ctx context.Context, e Event, cause string) {
	if r, ok := ctx.Value(ContextKey{}).(Recorder); ok {
		r(e, cause)
	}
}
