package cinnabar

import (
	"cmp"
	"context"
	"math"
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

// Bytes of the headers of Mercury's core and of HG in a message: mercury_core_header.h, mercury_header.h.
const (
	messageHeaders  = 16
	checksumHeaders = 4
)

// operationsOf sorts records by age, and describes the calls and the transfers among them.
func (e *Engine) operationsOf(list []opRecord) (calls, transfers []stats.Operation) {
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

// State returns a snapshot of the calls, requests, memory and connections of the engine, for people: each list has at most rows rows
// (see [stats.Rows]). State then holds a lock for about a millisecond at most, because it looks at a bounded number of operations. With a negative
// number there is no limit, and State takes time in proportion to the number of operations. State may be called at any time, also after Close.
func (e *Engine) State(rows int) stats.State {
	limit, look := stats.Rows(rows), maxVisited
	if rows < 0 {
		limit, look = math.MaxInt, math.MaxInt
	}
	s := stats.State{
		Inventory: stats.Inventory{Addr: e.Addr(), Listening: e.net.Listening(), Age: time.Since(e.born), Delayed: e.timers.count(), Providers: e.providerList(), RPCs: e.rpcs()},
		Taken:     time.Now(), Net: netStats(e.core.Stats(), e.cfg.waits.Counters()),
		Pools: []stats.NamedPool{{Pool: stats.Pool(e.handlers.pools.other.Stats())}},
	}
	s.MaxRequest, s.MaxResponse = e.messageLimits()
	ops, calls, transfers := e.ops.oldest(limit, look)
	s.Calls, s.Transfers = e.operationsOf(ops)
	s.Requests, s.More.Requests = e.firstRequests(limit, look)
	exposed, count, bytes := e.exposed.newest(look)
	slices.SortStableFunc(exposed, func(a, b exposedGroup) int { return cmp.Compare(b.bytes, a.bytes) })
	s.MemoryCount, s.MemoryBytes, s.More.Memory = count, bytes, count
	for _, x := range exposed {
		s.More.Memory -= x.count
		s.Memory = append(s.Memory, stats.Memory{Kind: x.kind.String(), Count: x.count, Bytes: x.bytes})
	}
	if l, ok := e.net.(na.ConnLister); ok {
		list, total := l.Conns(limit)
		s.More.Connections = total - len(list)
		for _, c := range list {
			s.Connections = append(s.Connections, stats.Connection{Peer: c.Peer, State: string(c.State), Inbound: c.Inbound, Received: c.Received, Sent: c.Sent, Report: c.Report})
		}
	}
	for _, p := range e.handlers.pools.all() {
		s.Pools = append(s.Pools, stats.NamedPool{Name: p.cfg.Name, Pool: p.stats()})
	}
	s.More.Calls, s.More.Transfers = calls-len(s.Calls), transfers-len(s.Transfers)
	if rows >= 0 {
		s.Clip(rows)
	}
	for i := range s.Memory { // after Clip, because to find the line of a program counter takes a microsecond
		s.Memory[i].Place = place(exposed[i].made)
	}
	return s
}

// firstRequests returns the oldest requests of each pool, as sched.Pool.First finds them, and at most limit of those that are held, all sorted by
// age, and the number of the others.
func (e *Engine) firstRequests(limit, look int) (list []stats.Request, more int) {
	for _, p := range e.handlers.pools.cores() {
		jobs, handlers, queued := p.First(limit, look)
		more += handlers + queued - len(jobs)
		for _, job := range jobs {
			of, label, peer := job.About.(described).describe()
			if of == e { // not another engine that shares the pools
				list = append(list, stats.Request{State: job.State.String(), RPC: label, Peer: peer, Pool: p.Name(), Age: job.Age})
			}
		}
	}
	held, count := e.handlers.unanswered.some(limit)
	more += count - len(held)
	for _, o := range held {
		list = append(list, stats.Request{State: "held", RPC: o.svc.label(), Peer: o.from, Age: time.Since(o.since)})
	}
	slices.SortStableFunc(list, func(a, b stats.Request) int { return cmp.Compare(b.Age, a.Age) })
	return list, more
}

// messageLimits returns the bytes of arguments and results that fit one message to a peer without checksums.
func (e *Engine) messageLimits() (request, response int) {
	limits, headers := e.net.Limits(), messageHeaders
	if e.cfg.Checksums == WithChecksums {
		headers += checksumHeaders
	}
	return limits.MaxRequest - headers, limits.MaxResponse - headers
}

func (e *Engine) providerList() (list []stats.Provider) {
	e.mu.Lock()
	for id, p := range e.providers {
		list = append(list, stats.Provider{ID: id, Identity: p.identity})
	}
	e.mu.Unlock()
	slices.SortFunc(list, func(a, b stats.Provider) int { return cmp.Compare(a.ID, b.ID) })
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
