package hg

import (
	"log/slog"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// hostOf returns the host that a peer is counted for.
func hostOf(a na.Addr) hostquota.Host { return a.Account().Host() }

// peerAttrs are the attributes of log lines about a peer.
func peerAttrs(a na.Addr, err error) []slog.Attr {
	return []slog.Attr{slog.String("peer", a.String()), slog.Any("error", err)}
}

// refused counts that a peer is refused something, and logs it within the bound for its host. cause is a constant.
func (c *Class) refused(from na.Addr, cause string, err error) {
	c.cfg.Audit.Record(audit.Refused, cause, hostOf(from), peerAttrs(from, err)...)
}

// note logs at level Warn that something is wrong with a peer which is not about security, within the bound for its host.
func (c *Class) note(peer na.Addr, what string, err error) {
	suppressed, ok := audit.Allow(hostOf(peer))
	if ok {
		c.log.Warn(what, "peer", peer.String(), "error", err, "suppressed", suppressed)
	}
}
