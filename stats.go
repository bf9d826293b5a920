package cinnabar

import (
	"context"

	"cinnabar/internal/hg"
	"cinnabar/internal/hostquota"
	"cinnabar/stats"
)

// security returns the security counters of the engine.
func (e *Engine) security() (s stats.Security) {
	book := e.cfg.quota
	for _, r := range []hostquota.Resource{hostquota.Connections, hostquota.Handshakes, hostquota.Unsent, hostquota.Pulls, hostquota.Memory} {
		s.Quotas = append(s.Quotas, stats.Quota{Resource: r.String(), Used: book.Used(r), Limit: book.Limit(r), Refused: book.Refused(r)})
	}
	for _, c := range e.cfg.trail.Counts() {
		s.Events = append(s.Events, stats.SecurityEvent{Event: c.Event.String(), Cause: c.Cause, Count: c.N})
	}
	return s
}

// Stats returns the counters of the engine and of its handler pools.
func (e *Engine) Stats() stats.Snapshot {
	s := stats.Snapshot{
		Net:      netStats(e.core.Stats()),
		Handlers: stats.Pool(e.handlers.pools.other.Stats()),
		Pools:    map[string]stats.Pool{},
		Security: e.security(),
	}
	for _, p := range e.Pools() {
		s.Pools[p.Name()] = p.Stats()
	}
	return s
}

func netStats(h hg.Stats) stats.Net {
	return stats.Net{
		RequestsSent: h.RequestsSent, ResponsesRecvd: h.ResponsesRecvd, RequestsRecvd: h.RequestsRecvd, ResponsesSent: h.ResponsesSent,
		RequestsExtra: h.RequestsExtra, ResponsesExtra: h.ResponsesExtra, Bulks: h.Bulks, SelfCalls: h.SelfCalls,
		RequestsDropped: h.RequestsDropped, RequestsRefused: h.RequestsRefused, ResponsesFailed: h.ResponsesFailed,
		RequestsUnheard: h.RequestsUnheard, AcksMissing: h.AcksMissing,
		Reads: h.Reads, Writes: h.Writes, BytesRead: h.BytesRead, BytesWritten: h.BytesWritten,
		EagerCopies: h.EagerCopies, LocalCopies: h.LocalCopies,
		CallsActive: h.CallsActive, RequestsActive: h.RequestsActive, TransfersActive: h.TransfersActive,
		ResponsesUnsent: h.ResponsesUnsent, OverflowBytes: h.OverflowBytes,
	}
}

// observe passes ev to the monitor, if there is one.
func (e *Engine) observe(ctx context.Context, ev stats.Event) {
	if m := e.cfg.Monitor; m != nil {
		m.Event(ctx, ev)
	}
}
