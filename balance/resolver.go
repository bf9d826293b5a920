package balance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
)

// Resolver lists the servers of a service. A Client calls Resolve from one goroutine at a time. The context ends after ten seconds, or when Client.Close
// is called, which waits for Resolve.
type Resolver interface {
	// Resolve returns the servers in the order of preference. An empty list says that there is none now; with an error the Client keeps the servers that
	// it has. The Client takes the first ones up to Config.MaxServers.
	Resolve(ctx context.Context) ([]Address, error)
}

// Notifier is a Resolver that learns of changes by itself, as one does that watches a registry. A Client that uses one calls Resolve also after a change, at
// most once in Config.MinRefresh.
type Notifier interface {
	Resolver
	// Changed returns a channel that is closed by the next change of what Resolve returns. It does not block, and may be called by several goroutines.
	Changed() <-chan struct{}
}

// Address is a server.
type Address struct {
	Addr     string  // in a form that Engine.Lookup takes
	Provider *uint16 // nil: the calls are addressed to no provider
}

// String returns the address, with the provider behind it.
func (a Address) String() string {
	if a.Provider == nil {
		return a.Addr
	}
	return a.Addr + "@" + strconv.Itoa(int(*a.Provider))
}

// Static is a list of servers that does not change.
type Static []Address

// StaticAddrs returns the servers with these addresses.
func StaticAddrs(addrs ...string) Static {
	s := make(Static, len(addrs))
	for i, a := range addrs {
		s[i].Addr = a
	}
	return s
}

// Resolve implements [Resolver].
func (s Static) Resolve(context.Context) ([]Address, error) { return s, nil }

// Feed is a Notifier whose servers come from the program, such as from a goroutine that watches a registry. The zero value has no servers yet, so Resolve
// waits for the first Set. All methods are safe for concurrent use.
type Feed struct {
	mu invariants.Mutex
	// +checklocks:mu
	set bool // Set was called
	// +checklocks:mu
	list []Address
	// +checklocks:mu
	err error
	// +checklocks:mu
	changed chan struct{} // closed by the next change; nil: nothing waits for it
}

// Set makes Resolve return list and err. With an error a Client keeps the servers that it has. The list must not change afterwards.
func (f *Feed) Set(list []Address, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	same := f.set && fmt.Sprint(f.err) == fmt.Sprint(err) && slices.EqualFunc(f.list, list, func(a, b Address) bool { return a.String() == b.String() })
	f.set, f.list, f.err = true, list, err
	if !same && f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Resolve implements [Resolver].
func (f *Feed) Resolve(ctx context.Context) ([]Address, error) {
	for {
		changed := f.Changed()
		f.mu.Lock()
		set, list, err := f.set, f.list, f.err
		f.mu.Unlock()
		if set {
			return list, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("balance: no servers are known yet: %w", context.Cause(ctx))
		}
	}
}

// Changed implements [Notifier].
func (f *Feed) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

// DNS takes the addresses of a host name (A and AAAA records), each of which is a server at the same port. They are in ascending order.
//
// Over ofi+tcps a client compares the name in the certificate of a server with its address, because it dials the address. So Config.TLS of the engine
// needs a ServerName.
type DNS struct {
	Protocol string // "ofi+tcp"
	Host     string
	Port     uint16
	Resolver *net.Resolver // nil: net.DefaultResolver
}

// Resolve implements [Resolver].
func (d DNS) Resolve(ctx context.Context) ([]Address, error) {
	return lookup(ctx, d.Resolver, d.Protocol, d.Host, d.Port)
}

// lookup returns the addresses of a host.
func lookup(ctx context.Context, r *net.Resolver, protocol, host string, port uint16) ([]Address, error) {
	if protocol == "" || host == "" || port == 0 {
		return nil, fmt.Errorf("balance: %w: protocol %q, host %q and port %d; none of them may be empty or 0", codes.InvalidArg, protocol, host, port)
	}
	ips, err := cmp.Or(r, net.DefaultResolver).LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("balance: the addresses of %q: %w", host, err)
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	var list []Address
	for _, ip := range slices.Compact(ips) {
		list = append(list, Address{Addr: protocol + "://" + netip.AddrPortFrom(ip, port).String()})
	}
	return list, nil
}

// maxTargets is the largest number of SRV records whose hosts are resolved.
const maxTargets = 64

// SRV takes the hosts and ports of a service (SRV records, RFC 2782), and the addresses of each host. Hosts with a lower priority number go before others;
// those with the same one are in a random order by their weights. At most 64 hosts are resolved.
type SRV struct {
	Protocol string // "ofi+tcp"
	// Service and Name make up the name of the records, "_store._tcp.example" for "store" and "example". If Service is empty, Name is the whole name.
	Service, Name string
	Resolver      *net.Resolver // nil: net.DefaultResolver
}

// Resolve implements [Resolver]. It leaves out hosts without addresses, unless there are no others. A Client keeps the addresses that it has of a host
// while the query for them fails, unless the answer is that the host does not exist.
func (s SRV) Resolve(ctx context.Context) ([]Address, error) {
	list, _, err := s.resolve(ctx, nil)
	return list, err
}

// target is a host with a port, in an SRV record.
type target struct {
	host string
	port uint16
}

// resolve returns the servers, and the addresses of each target. The addresses of a target whose query fails are those in last.
func (s SRV) resolve(ctx context.Context, last map[target][]Address) ([]Address, map[target][]Address, error) {
	proto := "tcp"
	if s.Service == "" {
		proto = ""
	}
	_, records, err := cmp.Or(s.Resolver, net.DefaultResolver).LookupSRV(ctx, s.Service, proto, s.Name)
	if err != nil && len(records) == 0 {
		return nil, last, fmt.Errorf("balance: the hosts of service %q of %q: %w", s.Service, s.Name, err)
	}
	var list []Address
	var failed []error
	known := map[target][]Address{}
	for _, rec := range records[:min(len(records), maxTargets)] {
		t := target{strings.TrimSuffix(rec.Target, "."), rec.Port}
		found, err := lookup(ctx, s.Resolver, s.Protocol, t.host, t.port)
		if err != nil {
			failed = append(failed, err)
			if passing(err) {
				found = last[t]
			}
		}
		if len(found) > 0 {
			known[t] = found
		}
		list = append(list, found...)
	}
	if len(list) == 0 {
		return nil, known, errors.Join(failed...)
	}
	return list, known, nil
}

// passing reports whether a query may succeed later: no server has answered that the host does not exist.
func passing(err error) bool {
	d, ok := errors.AsType[*net.DNSError](err)
	return ok && !d.IsNotFound
}
