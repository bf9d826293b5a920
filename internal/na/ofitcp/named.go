package ofitcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

const (
	// maxTried limits the addresses of a host that one Resolve tries, because a resolver's answer may have thousands.
	maxTried = 16
	// leastTry is the least time for an attempt to connect to one address, unless the context ends earlier.
	leastTry = 2 * time.Second
)

// named is the address of a peer with the name of its host. It implements [na.Named]. Operations use the peer of one of the host's
// addresses, so a program that has a peer by name and by address uses one connection for both.
type named struct {
	ep   *Endpoint
	host string
	port uint16
	str  string

	turn  chan struct{}        // of capacity 1, a lock: holds an element while a Resolve is under way
	found atomic.Pointer[peer] // the result of the latest Resolve; nil: none has succeeded
}

var _ na.Named = (*named)(nil)

func newNamed(e *Endpoint, host string, port uint16) *named {
	return &named{ep: e, host: host, port: port, str: scheme + net.JoinHostPort(host, strconv.Itoa(int(port))), turn: make(chan struct{}, 1)}
}

// String implements [na.Addr].
func (n *named) String() string { return n.str }

// Equal implements [na.Addr].
func (n *named) Equal(other na.Addr) bool {
	if o, ok := other.(*named); ok {
		return n.ep == o.ep && n.str == o.str
	}
	p := n.reached()
	return p != nil && p.Equal(other)
}

// Done implements [na.Addr].
func (n *named) Done() <-chan struct{} {
	if p := n.found.Load(); p != nil {
		return p.Done()
	}
	return nil
}

// Account implements [na.Addr]. Before the first Resolve it returns the account of the zero Host.
func (n *named) Account() *hostquota.Account {
	if p := n.found.Load(); p != nil {
		return p.account
	}
	return n.ep.cfg.Quota.Account(hostquota.Host{})
}

// Reached implements [na.Named].
func (n *named) Reached() na.Addr {
	if p := n.reached(); p != nil {
		return p
	}
	return nil
}

func (n *named) reached() *peer {
	if p := n.found.Load(); p != nil && (p == n.ep.own || p.conn.Load() != nil) {
		return p
	}
	return nil
}

// Resolve implements [na.Named]. For Config.DialRetry it resolves the host again and tries its addresses again while one of them
// refuses the connection.
func (n *named) Resolve(ctx context.Context) (na.Addr, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := func() {
		select {
		case <-n.ep.ended:
			cancel()
		case <-ctx.Done():
		}
	}
	if !n.ep.spawn(watch) {
		return nil, n.closed()
	}
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return nil, n.failed(ctx, nil)
	}
	begin := time.Now()
	for wait := retryFirst; ; wait = min(2*wait, retryMax) {
		if p := n.reached(); p != nil {
			return p, nil
		}
		p, failure := n.try(ctx)
		switch {
		case failure == nil:
			n.found.Store(p)
			return p, nil
		case !failure.refused || ctx.Err() != nil || time.Since(begin)+wait > n.ep.cfg.DialRetry:
			return nil, n.failed(ctx, failure)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, n.failed(ctx, failure)
		}
	}
}

// unreached is the reason why no address of a host accepted a connection.
type unreached struct {
	text    string
	refused bool // an address refused the connection
}

// failed returns the error of a Resolve. If ctx has ended, the error wraps ctx's, and its text says how far Resolve came.
func (n *named) failed(ctx context.Context, u *unreached) error {
	text := "host " + strconv.Quote(n.host) + " is being resolved"
	if u != nil {
		text = u.text
	}
	switch err := ctx.Err(); {
	case n.ep.closed.Load():
		return n.closed()
	case err != nil:
		return fmt.Errorf("%s: %w", text, err)
	}
	return &na.Error{Kind: na.Unreachable, Op: "connect", Addr: n.str, Err: errors.New(text)}
}

func (n *named) closed() error { return &na.Error{Kind: na.Closed, Op: "connect", Addr: n.str} }

// try resolves the host and connects to its addresses in turn, until one answers.
func (n *named) try(ctx context.Context) (*peer, *unreached) {
	ips, err := n.lookup(ctx)
	if err != nil {
		return nil, &unreached{text: err.Error()}
	}
	tried := ips[:min(len(ips), maxTried)]
	var u unreached
	var causes []string
	for i, ip := range tried {
		p := n.ep.peer(netip.AddrPortFrom(ip, n.port))
		if p == n.ep.own {
			return p, nil
		}
		err := n.attempt(ctx, p, len(tried)-i)
		if err == nil {
			return p, nil
		}
		u.refused = u.refused || errors.Is(err, syscall.ECONNREFUSED)
		causes = append(causes, fmt.Sprintf("%v: %v", ip, err))
		if ctx.Err() != nil {
			break
		}
	}
	u.text = fmt.Sprintf("host %q has %d addresses, and none was reached: %s", n.host, len(ips), strings.Join(causes, "; "))
	if left := len(ips) - len(causes); left > 0 {
		u.text += fmt.Sprintf("; %d more were not tried", left)
	}
	return nil, &u
}

// lookup returns the host's addresses of the endpoint's family, in the resolver's order. It leaves out addresses that no host
// can have: unspecified ones, multicast groups, and those with a zone.
func (n *named) lookup(ctx context.Context) ([]netip.Addr, error) {
	family, name := "ip4", "IPv4"
	if n.ep.self.Addr().Is6() {
		family, name = "ip6", "IPv6"
	}
	limit := n.ep.cfg.DialTimeout
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := n.ep.cfg.Resolver.LookupNetIP(ctx, family, n.host)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("host %q: no answer from the resolver so far, which has up to %v (DialTimeout)", n.host, limit)
		}
		if dns, ok := errors.AsType[*net.DNSError](err); ok && !dns.IsNotFound {
			return nil, fmt.Errorf("host %q could not be resolved: %w", n.host, err)
		}
		return nil, fmt.Errorf("host %q has no %s address that the resolver knows, and this endpoint's address is of that family: %w", n.host, name, err)
	}
	var ips []netip.Addr
	seen := make(map[netip.Addr]bool)
	for _, ip := range answer {
		if ip = ip.Unmap(); !ip.IsUnspecified() && !ip.IsMulticast() && ip.Zone() == "" && !seen[ip] {
			seen[ip] = true
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("host %q: the resolver answers with no %s address of a host", n.host, name)
	}
	return ips, nil
}

// attempt connects to p, the first of left addresses that are still to be tried. It takes an equal part of the time until ctx's
// deadline, at least leastTry.
func (n *named) attempt(ctx context.Context, p *peer, left int) error {
	d := n.ep.cfg.DialTimeout
	if end, ok := ctx.Deadline(); ok {
		rest := time.Until(end)
		d = min(d, max(rest/time.Duration(left), min(leastTry, rest)))
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := p.join(ctx)
	switch e, ok := errors.AsType[*na.Error](err); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("no connection within %v", d.Round(time.Millisecond))
	case ok && e.Err != nil:
		return e.Err
	}
	return err
}

// joining is an operation that only waits for a connection, without a message.
type joining struct {
	op   na.Op
	done chan struct{}
}

// Complete implements [na.Completer].
func (j *joining) Complete(*na.Op) { close(j.done) }

// joins reports whether the item is that of a joining.
func (it *item) joins() bool { return it.msg == nil && it.t == nil }

// join waits for a connection with the peer, and starts an attempt to connect if none is under way. The attempt goes on after
// ctx has ended.
func (p *peer) join(ctx context.Context) error {
	j := joining{done: make(chan struct{})}
	j.op.Done = &j
	it := item{op: &j.op, what: "connect"}
	p.mu.Lock()
	if p.conn.Load() != nil {
		p.mu.Unlock()
		return nil
	}
	j.op.Begin()
	err := p.awaitLocked(it)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		p.cancel(&j.op)
		<-j.done // complete, by cancel or before it
	}
	return j.op.Err
}

// onlyJoins reports whether only joinings wait for a connection. A joining tries another address when this one refuses, so the
// dial need not be repeated.
func (p *peer) onlyJoins() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0 && !slices.ContainsFunc(p.waiting, func(it item) bool { return !it.joins() })
}
