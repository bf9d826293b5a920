package ofitcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
)

// choice is where an endpoint listens.
type choice struct {
	bind   netip.AddrPort // may be unspecified, and the port 0
	self   netip.Addr     // the address that peers get
	reason string
	level  slog.Level // of the log line about it: a warning if the program did not ask for an address that other hosts may not reach
}

// Choose returns the address that an endpoint opened with the address string address and the subnet would have, and the reason. The
// port is 0 if the system is to choose it. Host names are looked up.
//
// A host or interface that is named is taken. Otherwise the order is: addresses in the subnet only, if it is valid; the
// loopback, if the endpoint is to listen and neither a subnet nor 0.0.0.0 or [::] says that other hosts are to reach it;
// IPv4 before IPv6; interfaces that lead to other hosts, then bridges and tunnels of containers and virtual machines, because
// other hosts often cannot reach their addresses, then the loopback. Link-local IPv6 addresses are never taken, since they say
// nothing without the name of an interface.
//
// An endpoint that does not listen is not kept to the loopback, because its own connections begin at its address, and from
// the loopback they do not reach other hosts.
func Choose(ctx context.Context, address string, subnet netip.Prefix, listen bool) (addr netip.AddrPort, reason string, err error) {
	c, err := chooseOn(ctx, address, subnet, listen)
	if err != nil {
		return netip.AddrPort{}, "", err
	}
	return netip.AddrPortFrom(c.self, c.bind.Port()), c.reason, nil
}

// OnInterface returns the address string with the interface name put in where it names neither an interface nor a host,
// as FI_TCP_IFACE does in C. An empty name, or an address that is malformed, changes nothing.
func OnInterface(address, name string) string {
	if address == "" {
		address = "ofi+tcp"
	}
	sp, err := parseSpec(address)
	if err != nil || name == "" || sp.domain != "" || sp.host != "" || sp.ip.IsValid() {
		return address
	}
	return fmt.Sprintf("%s%s/:%d", schemeOf(address), name, sp.port)
}

func chooseOn(ctx context.Context, address string, subnet netip.Prefix, listen bool) (choice, error) {
	if address == "" {
		address = "ofi+tcp"
	}
	sp, err := parseSpec(address)
	if err != nil {
		return choice{}, chooseError(address, err)
	}
	ifs, err := interfaces()
	if err != nil {
		return choice{}, chooseError(address, err)
	}
	if err := sp.resolve(ctx, ifs); err != nil {
		return choice{}, chooseError(address, err)
	}
	sp.local = listen && sp.domain == "" && !sp.ip.IsValid() && !subnet.IsValid()
	c, err := choose(ifs, sp, subnet)
	if err != nil {
		return choice{}, chooseError(address, err)
	}
	return c, nil
}

func chooseError(address string, err error) error {
	kind := na.KindOf(err)
	if kind == 0 {
		kind = na.Invalid
	}
	var inner *na.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return &na.Error{Kind: kind, Op: "choose address", Addr: address, Err: err}
}

// spec is a parsed address string of an endpoint.
type spec struct {
	domain string // the name of an interface, or empty
	host   string // a name, or empty
	ip     netip.Addr
	port   uint16
	local  bool // the loopback is preferred
}

// parseSpec reads "ofi+tcp", "ofi+tcp://host", "ofi+tcp://:port", "ofi+tcp://domain/host:port" and the like, and the same
// with "ofi+tcps".
func parseSpec(s string) (spec, error) {
	rest, err := cutScheme(ofiaddr.LastComponent(s), schemeOf(s))
	if err != nil {
		return spec{}, err
	}
	var sp spec
	if d, r, ok := strings.Cut(rest, "/"); ok {
		sp.domain, rest = d, r
	}
	host, port := rest, ""
	switch i := strings.LastIndexByte(rest, ':'); {
	case strings.HasPrefix(rest, "["):
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			return spec{}, fmt.Errorf("no closing bracket in %q", rest)
		}
		host, port = rest[1:end], strings.TrimPrefix(rest[end+1:], ":")
		if r := rest[end+1:]; r != "" && r[0] != ':' {
			return spec{}, fmt.Errorf("%q follows the closing bracket; a port begins with a colon", r)
		}
	case i >= 0 && strings.Count(rest, ":") == 1:
		host, port = rest[:i], rest[i+1:]
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return spec{}, fmt.Errorf("port %q is no number from 0 to 65535", port)
		}
		sp.port = uint16(n)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		sp.ip = ip.Unmap()
	} else {
		sp.host = host
	}
	return sp, nil
}

// resolve makes an address of a host name, or a domain of the name of an interface.
func (sp *spec) resolve(ctx context.Context, ifs []iface) error {
	if sp.host == "" {
		return nil
	}
	if slices.ContainsFunc(ifs, func(i iface) bool { return i.name == sp.host }) {
		if sp.domain != "" && sp.domain != sp.host {
			return fmt.Errorf("two interfaces, %s and %s", sp.domain, sp.host)
		}
		sp.domain, sp.host = sp.host, ""
		return nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", sp.host)
	if err != nil {
		return &na.Error{Kind: na.NotAvailable, Err: fmt.Errorf("%q is no address, no interface (%s) and no host that is known: %w", sp.host, names(ifs), err)}
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() }) // IPv4 first
	own := slices.IndexFunc(ips, func(ip netip.Addr) bool { return owner(ifs, ip) != nil })
	if own < 0 {
		return &na.Error{Kind: na.NotAvailable, Err: fmt.Errorf("host %q is %v, and no interface of this host has that address", sp.host, ips)}
	}
	sp.ip = ips[own]
	return nil
}

// iface is a network interface.
type iface struct {
	name     string
	up       bool
	loopback bool
	addrs    []netip.Addr
}

// interfaces lists those of this host.
func interfaces() ([]iface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list of interfaces: %w", err)
	}
	var ifs []iface
	for _, n := range list {
		i := iface{name: n.Name, up: n.Flags&net.FlagUp != 0, loopback: n.Flags&net.FlagLoopback != 0}
		addrs, err := n.Addrs()
		if err != nil {
			continue // it has gone since
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.addrs = append(i.addrs, p.Addr().Unmap())
			}
		}
		ifs = append(ifs, i)
	}
	return ifs, nil
}

// owner returns the interface that has the address, nil if none has. All of 127.0.0.0/8 is the loopback's.
func owner(ifs []iface, ip netip.Addr) *iface {
	for i := range ifs {
		if slices.Contains(ifs[i].addrs, ip) || ifs[i].loopback && ip.Is4() && ip.IsLoopback() {
			return &ifs[i]
		}
	}
	return nil
}

func names(ifs []iface) string {
	var b []string
	for _, i := range ifs {
		b = append(b, i.name)
	}
	return strings.Join(b, ", ")
}

// virtual are beginnings of the names of interfaces that lead to containers and virtual machines of this host.
var virtual = []string{"docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc", "lxd", "podman", "vmnet", "vboxnet", "kube", "weave", "tap", "tun", "dummy"}

func (i *iface) virtual() bool {
	return slices.ContainsFunc(virtual, func(v string) bool { return strings.HasPrefix(i.name, v) })
}

// choose finds the address for sp.
func choose(ifs []iface, sp spec, subnet netip.Prefix) (choice, error) {
	if sp.ip.IsValid() && !sp.ip.IsUnspecified() {
		return chooseIP(ifs, sp, subnet)
	}
	if sp.domain != "" && !slices.ContainsFunc(ifs, func(i iface) bool { return i.name == sp.domain }) {
		return choice{}, &na.Error{Kind: na.NotAvailable, Err: fmt.Errorf("there is no interface %q; there are %s", sp.domain, names(ifs))}
	}
	best, rank := candidate{}, -1
	var refused []string
	for i := range ifs {
		for _, ip := range ifs[i].addrs {
			c := candidate{&ifs[i], ip}
			if why := c.unfit(sp, subnet); why != "" {
				refused = append(refused, fmt.Sprintf("%v on %s: %s", ip, ifs[i].name, why))
			} else if r := c.rank(sp.local); rank < 0 || r < rank {
				best, rank = c, r
			}
		}
	}
	if rank < 0 {
		if len(refused) == 0 {
			refused = []string{"no interface has an address"}
		}
		return choice{}, &na.Error{Kind: na.NotAvailable, Err: fmt.Errorf("no address fits (%s)", strings.Join(refused, "; "))}
	}
	c := choice{bind: netip.AddrPortFrom(best.ip, sp.port), self: best.ip, reason: best.reason(sp, subnet), level: slog.LevelDebug}
	if best.i.virtual() && sp.domain == "" && !subnet.IsValid() {
		c.level = slog.LevelWarn
	}
	if sp.ip.IsValid() {
		c.bind = netip.AddrPortFrom(sp.ip, sp.port)
		c.reason = fmt.Sprintf("all addresses, and peers get %v, %s", best.ip, c.reason)
	}
	return c, nil
}

// chooseIP checks an address that was asked for.
func chooseIP(ifs []iface, sp spec, subnet netip.Prefix) (choice, error) {
	i := owner(ifs, sp.ip)
	switch {
	case i == nil:
		return choice{}, &na.Error{Kind: na.NotAvailable, Err: fmt.Errorf("no interface of this host has the address %v; there are %s", sp.ip, describe(ifs))}
	case sp.domain != "" && i.name != sp.domain:
		return choice{}, fmt.Errorf("%v is an address of %s, not of %s", sp.ip, i.name, sp.domain)
	case subnet.IsValid() && !subnet.Contains(sp.ip):
		return choice{}, fmt.Errorf("%v is not %s", sp.ip, inWords(subnet))
	}
	return choice{bind: netip.AddrPortFrom(sp.ip, sp.port), self: sp.ip, reason: "it was asked for", level: slog.LevelDebug}, nil
}

func describe(ifs []iface) string {
	var b []string
	for _, i := range ifs {
		for _, ip := range i.addrs {
			b = append(b, fmt.Sprintf("%v (%s)", ip, i.name))
		}
	}
	return strings.Join(b, ", ")
}

// candidate is an address of an interface.
type candidate struct {
	i  *iface
	ip netip.Addr
}

// unfit says why the candidate cannot be taken at all.
func (c candidate) unfit(sp spec, subnet netip.Prefix) string {
	switch {
	case sp.domain != "" && c.i.name != sp.domain:
		return "not interface " + sp.domain
	case !c.i.up:
		return "interface is down"
	case c.ip.IsLinkLocalUnicast():
		return "link-local"
	case subnet.IsValid() && !subnet.Contains(c.ip):
		return "not " + inWords(subnet)
	case sp.ip.IsValid() && sp.ip.Is4() != c.ip.Is4():
		return "another family than " + sp.ip.String()
	}
	return ""
}

// rank orders candidates, the best first. local says that the loopback is the best.
func (c candidate) rank(local bool) int {
	r := 2
	switch {
	case c.i.loopback && local:
		r = 0
	case c.i.loopback:
		r = 6
	case c.i.virtual():
		r = 4
	}
	if !c.ip.Is4() {
		r++
	}
	return r
}

func (c candidate) reason(sp spec, subnet netip.Prefix) string {
	s := "the first address of an interface that leads to other hosts, " + c.i.name
	switch {
	case sp.domain != "":
		s = "the address of interface " + c.i.name
	case subnet.IsValid():
		s = "the first address " + inWords(subnet) + ", on " + c.i.name
	case c.i.loopback && sp.local:
		s = "the loopback, because no host, interface or subnet is named: other hosts cannot reach it"
	case c.i.loopback:
		s = "the loopback, since no interface leads to other hosts: they cannot reach it"
	case c.i.virtual():
		s = "that of " + c.i.name + ", since only bridges and tunnels have addresses: other hosts may not reach it"
	}
	return s
}

// inWords is a subnet in words; one without a prefix stands for the family of its address.
func inWords(subnet netip.Prefix) string {
	switch {
	case subnet.Bits() > 0:
		return "in " + subnet.String()
	case subnet.Addr().Is4():
		return "of IPv4"
	}
	return "of IPv6"
}
