package ofitcp

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// initNames prepares e for peers with names of hosts.
func (e *Endpoint) initNames() {
	e.names = ofiaddr.Names{
		Scheme: e.scheme, Resolver: e.cfg.Resolver, Self: e.self.Addr(), DialTimeout: e.cfg.DialTimeout, DialRetry: e.cfg.DialRetry,
		Local: e.cfg.Quota.Account(hostquota.Host{}), Ended: e.ended, Spawn: e.spawn,
		Peer:    func(host string, a netip.AddrPort) ofiaddr.Peer { return e.peerNamed(a, host) },
		Refused: func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
	}
}

// joins reports whether the item belongs to a Join, which waits for a connection and sends nothing.
func (it *item) joins() bool { return it.msg == nil && it.t == nil }

// Connected implements [ofiaddr.Peer].
func (p *peer) Connected() bool { return p == p.ep.own || p.conn.Load() != nil }

// Join implements [ofiaddr.Peer].
func (p *peer) Join(ctx context.Context) error {
	return ofiaddr.Join(ctx, func(op *na.Op) (connected bool, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.Connected() {
			return true, nil
		}
		op.Begin()
		return false, p.awaitLocked(item{op: op, what: "connect"})
	}, func(op *na.Op) { p.cancel(op) })
}

// onlyJoins reports whether all items that wait for a connection are those of Joins. A Join tries another address when this one refuses,
// so the dial need not be repeated.
func (p *peer) onlyJoins() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0 && !slices.ContainsFunc(p.waiting, func(it item) bool { return !it.joins() })
}
