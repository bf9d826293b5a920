package cinnabar

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"cinnabar/internal/hg"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
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
		Net:      netStats(e.core.Stats(), e.cfg.waits.Counters()),
		Handlers: stats.Pool(e.handlers.pools.other.Stats()),
		Pools:    map[string]stats.Pool{},
		Security: e.security(),
	}
	if m, ok := e.net.(na.Mover); ok {
		s.BytesRDMA, s.BytesBounced = m.Moved()
	}
	for _, p := range e.handlers.pools.all() {
		s.Pools[p.cfg.Name] = p.stats()
	}
	return s
}

func netStats(h hg.Stats, w progress.Counters) stats.Net {
	return stats.Net{
		RequestsSent: h.RequestsSent, RequestsShared: h.RequestsShared, ResponsesRecvd: h.ResponsesRecvd, RequestsRecvd: h.RequestsRecvd, ResponsesSent: h.ResponsesSent,
		RequestsExtra: h.RequestsExtra, ResponsesExtra: h.ResponsesExtra, Bulks: h.Bulks, SelfCalls: h.SelfCalls,
		RequestsDropped: h.RequestsDropped, RequestsRefused: h.RequestsRefused, ResponsesFailed: h.ResponsesFailed,
		RequestsUnheard: h.RequestsUnheard, AcksMissing: h.AcksMissing,
		Reads: h.Reads, Writes: h.Writes, BytesRead: h.BytesRead, BytesWritten: h.BytesWritten,
		EagerCopies: h.EagerCopies, LocalCopies: h.LocalCopies,
		CallsActive: h.CallsActive, RequestsActive: h.RequestsActive, TransfersActive: h.TransfersActive,
		ResponsesUnsent: h.ResponsesUnsent, OverflowBytes: h.OverflowBytes,
		Spins: w.Spins, Parks: w.Parks, Yields: w.Yields, HandOvers: w.HandOvers,
	}
}

// observe passes ev to the monitor, if there is one.
func (e *Engine) observe(ctx context.Context, ev stats.Event) {
	if m := e.cfg.Monitor; m != nil {
		m.Event(ctx, ev)
	}
}

// Inventory returns lists of the RPCs, providers, requests, exposed memory and operations in flight of the engine. It takes time in
// proportion to their number, so it is for people and for tests; [Engine.Stats] is for a collector of metrics.
func (e *Engine) Inventory() stats.Inventory {
	limits, headers := e.net.Limits(), messageHeaders
	if e.cfg.Checksums == WithChecksums {
		headers += checksumHeaders
	}
	inv := stats.Inventory{
		Addr: e.Addr(), Listening: e.net.Listening(), MaxRequest: limits.MaxRequest - headers, MaxResponse: limits.MaxResponse - headers,
		Age: time.Since(e.born), Requests: e.requests(), Delayed: e.timers.count(), Providers: e.providerList(), RPCs: e.rpcs(),
	}
	inv.Calls, inv.Transfers = e.operations()
	for _, x := range e.exposed.all() {
		inv.Memory = append(inv.Memory, stats.Memory{Kind: x.kind.String(), Count: x.count, Bytes: x.bytes, Place: place(x.made)})
	}
	return inv
}

// Bytes of the headers of Mercury's core and of HG in a message: mercury_core_header.h, mercury_header.h.
const (
	messageHeaders  = 16
	checksumHeaders = 4
)

// operations returns the calls and the transfers that the program has started and that have not ended, the oldest first.
func (e *Engine) operations() (calls, transfers []stats.Operation) {
	list := e.ops.all()
	slices.SortFunc(list, func(a, b opRecord) int { return cmp.Compare(a.began, b.began) })
	now := e.ops.clock.Exact()
	for _, x := range list {
		op := stats.Operation{Op: x.op, RPC: x.label(), Peer: x.ep.String(), Bytes: x.bytes, Age: now - x.began}
		if x.within != nil {
			op.Within = x.within.label()
		}
		if x.proc != nil {
			calls = append(calls, op)
		} else {
			transfers = append(transfers, op)
		}
	}
	return calls, transfers
}

// requests returns the requests of peers, and the functions of the program, that are in the engine's pools, and those that the
// program holds.
func (e *Engine) requests() (list []stats.Request) {
	for _, p := range e.handlers.pools.cores() {
		for _, job := range p.Jobs() {
			of, label, peer := job.About.(described).describe()
			if of == e { // not another engine that shares the pools
				list = append(list, stats.Request{State: job.State.String(), RPC: label, Peer: peer, Pool: p.Name(), Age: job.Age})
			}
		}
	}
	for _, o := range e.handlers.unanswered.all() {
		list = append(list, stats.Request{State: "held", RPC: o.svc.label(), Peer: o.from, Age: time.Since(o.since)})
	}
	return list
}

func (e *Engine) providerList() (list []stats.Provider) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(e.providers)) {
		list = append(list, stats.Provider{ID: id, Identity: e.providers[id].identity})
	}
	return list
}

func (e *Engine) rpcs() (list []stats.RPC) {
	for _, entry := range e.handlers.table.Entries() {
		svc := entry.Value
		r := stats.RPC{Name: entry.Name, ID: entry.ID, Flavor: svc.proc.flavor.name(), Pool: svc.pool.Name()}
		if f := svc.proc.flavor; f.overMargo() && svc.provider != f.defaultProvider() {
			r.Provider = &svc.provider
		}
		list = append(list, r)
	}
	return list
}
