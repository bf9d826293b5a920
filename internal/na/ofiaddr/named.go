package ofiaddr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

const (
	// RetryFirst and RetryMax bound the time between two attempts to connect.
	RetryFirst = 2 * time.Millisecond
	RetryMax   = 250 * time.Millisecond
	// MaxTried limits the addresses of a host that one Resolve tries, because a resolver's answer may have thousands.
	MaxTried = 16
	// leastTry is the least time for an attempt to connect to one address, unless the context ends earlier.
	leastTry = 2 * time.Second
)

// Peer is the peer of an address of a host, as [Named.Resolve] uses it.
type Peer interface {
	na.Addr
	// Connected reports whether there is a connection with the peer. It returns true for the peer that is the endpoint itself, because the
	// endpoint needs no connection with itself.
	Connected() bool
	// Join waits for a connection with the peer, and starts an attempt to connect if none is under way. The attempt goes on after ctx
	// has ended. An error of the attempt is a [na.Error].
	Join(ctx context.Context) error
}

// Names are the parts of an endpoint that its [Named] addresses use. They are constant.
type Names struct {
	Scheme      string                                   // begin of address strings, such as "ofi+tcp://"
	Resolver    *net.Resolver                            // resolves the names
	Self        netip.Addr                               // the endpoint's address, which determines the family of its peers' addresses
	DialTimeout time.Duration                            // the most time for the resolver's answer, and for an attempt to connect
	DialRetry   time.Duration                            // time for which Resolve tries a host again that refuses connections
	Local       *hostquota.Account                       // account of the zero Host, for names that were not resolved yet
	Ended       <-chan struct{}                          // closed when the endpoint begins to close
	Spawn       func(func()) bool                        // starts a goroutine of the endpoint, or reports false because that is closed
	Peer        func(host string, a netip.AddrPort) Peer // returns the one peer of an address that the host with that name has
	Refused     func(error) bool                         // reports whether an error of Join says that the host refuses the connection
}

// Named is the address of a peer with the name of its host. It implements [na.Named]. Operations use the peer of one of the host's
// addresses, so a program that has a peer by name and by address uses one connection for both.
type Named struct {
	names *Names
	host  string
	port  uint16
	str   string

	turn  chan struct{}        // of capacity 1, a lock: holds an element while a Resolve is under way
	found atomic.Pointer[Peer] // the result of the latest Resolve; nil: none has succeeded
}

var _ na.Named = (*Named)(nil)

// New returns the address of the peer at a port of a host. It does not ask the resolver.
func (n *Names) New(host string, port uint16) *Named {
	return &Named{names: n, host: host, port: port, str: n.Scheme + net.JoinHostPort(host, strconv.Itoa(int(port))), turn: make(chan struct{}, 1)}
}

// String implements [na.Addr].
func (n *Named) String() string { return n.str }

// Equal implements [na.Addr].
func (n *Named) Equal(other na.Addr) bool {
	if o, ok := other.(*Named); ok {
		return n.names == o.names && n.str == o.str
	}
	p := n.Reached()
	return p != nil && p.Equal(other)
}

// Done implements [na.Addr].
func (n *Named) Done() <-chan struct{} {
	if p := n.found.Load(); p != nil {
		return (*p).Done()
	}
	return nil
}

// Account implements [na.Addr]. Before the first Resolve it returns the account of the zero Host.
func (n *Named) Account() *hostquota.Account {
	if p := n.found.Load(); p != nil {
		return (*p).Account()
	}
	return n.names.Local
}

// Reached implements [na.Named].
func (n *Named) Reached() na.Addr {
	if p := n.found.Load(); p != nil && (*p).Connected() {
		return *p
	}
	return nil
}

// Resolve implements [na.Named]. For DialRetry it resolves the host again and tries its addresses again while one of them
// refuses the connection.
func (n *Named) Resolve(ctx context.Context) (na.Addr, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := func() {
		select {
		case <-n.names.Ended:
			cancel()
		case <-ctx.Done():
		}
	}
	if !n.names.Spawn(watch) {
		return nil, n.closed()
	}
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return nil, n.failed(ctx, nil)
	}
	begin := time.Now()
	for wait := RetryFirst; ; wait = min(2*wait, RetryMax) {
		if p := n.Reached(); p != nil {
			return p, nil
		}
		p, failure := n.try(ctx)
		switch {
		case failure == nil:
			n.found.Store(&p)
			return p, nil
		case !failure.refused || ctx.Err() != nil || time.Since(begin)+wait > n.names.DialRetry:
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
func (n *Named) failed(ctx context.Context, u *unreached) error {
	text := "host " + strconv.Quote(n.host) + " is being resolved"
	if u != nil {
		text = u.text
	}
	select {
	case <-n.names.Ended:
		return n.closed()
	default:
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return &na.Error{Kind: na.Unreachable, Op: "connect", Addr: n.str, Err: errors.New(text)}
}

func (n *Named) closed() error { return &na.Error{Kind: na.Closed, Op: "connect", Addr: n.str} }

// try resolves the host and connects to its addresses in turn, until one answers.
func (n *Named) try(ctx context.Context) (Peer, *unreached) {
	ips, err := n.lookup(ctx)
	if err != nil {
		return nil, &unreached{text: err.Error()}
	}
	tried := ips[:min(len(ips), MaxTried)]
	var u unreached
	var causes []string
	for i, ip := range tried {
		p := n.names.Peer(n.host, netip.AddrPortFrom(ip, n.port))
		err := n.attempt(ctx, p, len(tried)-i)
		if err == nil {
			return p, nil
		}
		u.refused = u.refused || n.names.Refused(err)
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
func (n *Named) lookup(ctx context.Context) ([]netip.Addr, error) {
	family, name := "ip4", "IPv4"
	if n.names.Self.Is6() {
		family, name = "ip6", "IPv6"
	}
	limit := n.names.DialTimeout
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := n.names.Resolver.LookupNetIP(ctx, family, n.host)
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
func (n *Named) attempt(ctx context.Context, p Peer, left int) error {
	d := n.names.DialTimeout
	if end, ok := ctx.Deadline(); ok {
		rest := time.Until(end)
		d = min(d, max(rest/time.Duration(left), min(leastTry, rest)))
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := p.Join(ctx)
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

// Join waits for an operation that completes when there is a connection with a peer, for implementations of [Peer.Join]. queue starts
// the operation. It returns true instead if there is a connection already, or an error. Join calls cancel when ctx ends; cancel completes
// the operation unless the operation is complete.
func Join(ctx context.Context, queue func(*na.Op) (connected bool, err error), cancel func(*na.Op)) error {
	j := joining{done: make(chan struct{})}
	j.op.Done = &j
	if connected, err := queue(&j.op); connected || err != nil {
		return err
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		cancel(&j.op)
		<-j.done // complete, by cancel or before it
	}
	return j.op.Err
}
