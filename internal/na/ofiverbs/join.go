package ofiverbs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

// initNames prepares e for peers with names of hosts.
func (e *Endpoint) initNames() {
	e.names = ofiaddr.Names{
		Scheme: scheme, Resolver: e.cfg.Resolver, Self: e.self.Addr(), DialTimeout: e.cfg.DialTimeout, DialRetry: e.cfg.DialRetry,
		Local: e.cfg.Quota.Account(hostquota.Host{}), Ended: e.ctx.Done(), Spawn: e.spawn,
		Peer: func(_ string, a netip.AddrPort) ofiaddr.Peer { return e.peer(a) },
		Refused: func(err error) bool {
			_, rejected := errors.AsType[*verbs.RejectedError](err)
			return rejected || errors.Is(err, errRefused) || errors.Is(err, syscall.ECONNREFUSED)
		},
	}
}

// joins reports whether the item belongs to a Join, which waits for a connection and sends nothing.
func (it *item) joins() bool { return it.msg == nil && it.t == nil }

// Connected implements [ofiaddr.Peer].
func (p *peer) Connected() bool {
	c := p.conn.Load()
	return p == p.ep.own || c != nil && !c.dead.Load() // not c != nil alone, because the peer's Done is closed before p.conn becomes nil
}

// Join implements [ofiaddr.Peer].
func (p *peer) Join(ctx context.Context) error {
	return ofiaddr.Join(ctx, func(op *na.Op) (connected bool, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.Connected() {
			return true, nil
		}
		op.Begin()
		return false, p.awaitLocked(item{op: op, opName: "connect"})
	}, func(op *na.Op) { p.cancel(op) })
}

// onlyJoins reports whether all items that wait for a connection are those of Joins. A Join tries another address when this one refuses,
// so the dial need not be repeated.
func (p *peer) onlyJoins() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0 && !slices.ContainsFunc(p.waiting, func(it item) bool { return !it.joins() })
}
