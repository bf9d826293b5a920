package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
)

const firewallRemedy = "see the rules by nft list ruleset, or iptables -S and ip6tables -S, and accept the port"

// unreachable explains the error of a connection attempt: its kind in a word or two, the cause, and the remedy.
func unreachable(err error) (kind, cause, remedy string) {
	text := cli.OneLine(err)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "name not resolved", text, "correct the name, or add it to /etc/hosts or to the name server in /etc/resolv.conf"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused", text + ": the host answers, and no process listens at the port, or a firewall rejects it", "start the server, compare the port with the one that the server printed, and " + firewallRemedy
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENETDOWN):
		return "unreachable", text + ": no route leads there, the interface is down, or the host does not answer on its own network", "see ip route get ADDRESS and ip link"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "forbidden", text + ": a firewall rule for outgoing packets or a prohibit route of this host", firewallRemedy + "; see ip route get ADDRESS"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset", text + ": the other side, or a device between, ended the connection", "see the log of the server and of firewalls between"
	case isTimeout(err):
		return "timed out", text + ": packets are dropped, by a firewall (drop rule) or because no host has the address, or the listener's queue is full", "see whether the host is up, and " + firewallRemedy
	}
	return "failed", text, "see ip addr and ip route"
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
}

func probeInterfaces(_ context.Context, x *exam) {
	list, err := x.interfaces()
	if err != nil {
		x.notTried("%s", cli.OneLine(err))
		return
	}
	loopback, reachable := false, []string{}
	for _, i := range list {
		up := i.Flags&net.FlagUp != 0
		switch {
		case i.Flags&net.FlagLoopback != 0:
			loopback = loopback || up && len(i.addrs) > 0
			continue
		case !up || len(i.addrs) == 0:
			continue
		}
		if i.Flags&net.FlagRunning == 0 && x.exists("sys/devices/virtual/net/"+i.Name) {
			x.add(levelNote, fmt.Sprintf("interface %s is up and has an address, and no link", i.Name), "it is virtual: a bridge without members, or a tunnel that is not connected", "none, unless processes there should be reached; ip link show "+i.Name)
			continue
		}
		if i.Flags&net.FlagRunning == 0 {
			x.add(levelWarning, fmt.Sprintf("interface %s is up and has an address, and no link", i.Name), "the cable is not connected, or the other end is down", "see ip link show "+i.Name+"; ethtool "+i.Name)
			continue
		}
		local := !slices.ContainsFunc(i.addrs, func(a netip.Addr) bool { return !a.IsLinkLocalUnicast() }) // such as tunnels of macOS
		if i.MTU > 0 && i.MTU < 1280 && !local {
			x.add(levelWarning, fmt.Sprintf("interface %s has an MTU of %d bytes", i.Name, i.MTU), "IPv6 needs 1280, and small packets cost throughput", "ip link set "+i.Name+" mtu 1500")
		}
		reachable = append(reachable, fmt.Sprintf("%s (MTU %d)", i.Name, i.MTU))
	}
	if !loopback {
		x.add(levelFault, "no loopback interface is up with an address", "ip link shows its state; a new network namespace begins so", "ip link set lo up")
	}
	if len(reachable) == 0 {
		x.add(levelNote, "only processes of this host can reach this one", "no other interface is up with an address and a link", "ip link set INTERFACE up; ip addr add ADDRESS/PREFIX dev INTERFACE")
		return
	}
	x.ok("up with an address: %s", strings.Join(reachable[:min(len(reachable), 8)], ", "))
}

// Flags of routes in /proc/net/route and /proc/net/ipv6_route (route.h, ipv6_route.h).
const (
	routeUp     = 0x1
	routeReject = 0x200
)

// defaultRoute reports whether a table of routes has a default route that is up. Columns are numbered from 0.
func defaultRoute(table string, target, prefix, flags int) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) <= max(target, prefix, flags) || strings.Trim(f[target], "0") != "" || strings.Trim(f[prefix], "0") != "" {
			continue
		}
		if n, err := strconv.ParseUint(f[flags], 16, 32); err == nil && n&routeUp != 0 && n&routeReject == 0 {
			return true
		}
	}
	return false
}

func probeRoutes(_ context.Context, x *exam) {
	table, err := x.read("proc/net/route")
	if err != nil {
		x.notTried("%s", cli.OneLine(err))
		return
	}
	four := defaultRoute(table, 1, 7, 3)
	six := defaultRoute(x.word("proc/net/ipv6_route"), 0, 1, 8)
	switch {
	case four && six:
		x.ok("default routes for IPv4 and IPv6")
	case four:
		x.ok("a default route for IPv4, none for IPv6")
	case six:
		x.ok("a default route for IPv6, none for IPv4")
	default:
		x.add(levelNote, "there is no default route", "only hosts of the networks of this one's interfaces can be reached", "ip route add default via GATEWAY, unless that is intended")
	}
}

// converse listens at an address of this host, connects to it, and sends a byte each way.
func (x *exam) converse(ctx context.Context, host string) error {
	l, err := x.listen(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer cli.Shut(l)
	answered := make(chan struct{})
	go func() { // ends with the listener
		defer close(answered)
		c, err := l.Accept()
		if err != nil {
			return
		}
		stop := cli.Interrupt(ctx, c)
		_, _ = io.CopyN(c, c, 1) // the other end of the connection sees an error
		stop()
		cli.Shut(c)
	}()
	defer func() {
		cli.Shut(l)
		<-answered
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	c, err := x.dial(ctx, net.JoinHostPort(host, port)) // the listener's address lacks the zone of host
	if err != nil {
		return err
	}
	defer cli.Shut(c)
	defer cli.Interrupt(ctx, c)()
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// share returns a context with an equal part of the time that ctx has left, for the first of n attempts that follow each other.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(n))
}

func probeLoopback(ctx context.Context, x *exam) {
	hosts := []string{"127.0.0.1", "::1"}
	for n, host := range hosts {
		one, cancel := share(ctx, len(hosts)-n)
		err := x.converse(one, host)
		cancel()
		if err == nil {
			x.ok("a connection to %s carried data both ways", host)
			continue
		}
		if host == "::1" && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			x.add(levelNote, "this host has no IPv6 loopback address", cli.OneLine(err), "sysctl net.ipv6.conf.lo.disable_ipv6=0, if programs use IPv6")
			continue
		}
		kind, cause, remedy := unreachable(err)
		x.add(levelFault, fmt.Sprintf("a connection to %s: %s", host, kind), cause, remedy+"; ip link set lo up")
	}
}

// maxOwn bounds the addresses of this host that are tried.
const maxOwn = 16

func probeOwnAddresses(ctx context.Context, x *exam) {
	list, err := x.interfaces()
	if err != nil {
		x.notTried("%s", cli.OneLine(err))
		return
	}
	var addrs []netip.Addr
	for _, i := range list {
		const up = net.FlagUp | net.FlagRunning // without a link the kernel does not enable the addresses of IPv6
		if i.Flags&up == up && i.Flags&net.FlagLoopback == 0 {
			addrs = append(addrs, i.addrs...)
		}
	}
	if len(addrs) == 0 {
		x.notTried("this host has no address with a link but loopback")
		return
	}
	addrs = addrs[:min(len(addrs), maxOwn)]
	good := 0
	for n, a := range addrs {
		one, cancel := share(ctx, len(addrs)-n)
		err := x.converse(one, a.String())
		cancel()
		if err == nil {
			good++
			continue
		}
		if a.Is6() && errors.Is(err, syscall.EADDRNOTAVAIL) {
			x.add(levelNote, fmt.Sprintf("%s, an address of this host, cannot be used now", a), cli.OneLine(err)+": the kernel still asks its network whether another host has the address (tentative), or another host has it (dadfailed)", "see ip -6 addr, and try again")
			continue
		}
		kind, cause, remedy := unreachable(err)
		x.add(levelWarning, fmt.Sprintf("a connection to %s, an address of this host: %s", a, kind), cause, remedy)
	}
	if good > 0 {
		x.ok("connections to %d of this host's addresses carried data", good)
	}
}

// slowResolution is the time above which resolving a name gets a warning, because users notice it.
const slowResolution = time.Second

func probeHostname(ctx context.Context, x *exam) {
	name, err := x.hostname()
	if err != nil || name == "" {
		x.notTried("this host has no name: %v", err)
		return
	}
	began := x.now()
	addrs, err := x.resolve(ctx, name)
	took := x.now().Sub(began)
	const remedy = "add a line with an address of this host and the name to /etc/hosts"
	if err != nil || len(addrs) == 0 {
		cause := "no address was returned"
		if err != nil {
			cause = cli.OneLine(err)
		}
		x.add(levelWarning, fmt.Sprintf("the name of this host, %s, cannot be resolved", name), cause, remedy)
		return
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap().WithZone("")
	}
	if took > slowResolution {
		x.add(levelWarning, fmt.Sprintf("it took %v to resolve the name of this host, %s", took.Round(time.Millisecond), name), "a name server does not answer, or answers late", "see /etc/resolv.conf, and "+remedy)
	}
	own := []netip.Addr{}
	if list, err := x.interfaces(); err == nil {
		for _, i := range list {
			for _, a := range i.addrs {
				own = append(own, a.WithZone(""))
			}
		}
	}
	public := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.IsLoopback)
	foreign := slices.DeleteFunc(slices.Clone(public), func(a netip.Addr) bool { return slices.Contains(own, a) })
	switch {
	case len(foreign) > 0:
		x.add(levelWarning, fmt.Sprintf("the name of this host, %s, resolves to %v, which is no address of this host", name, foreign[0]), "another host has the name, or the address has changed", remedy)
	case len(public) == 0:
		x.add(levelNote, fmt.Sprintf("the name of this host, %s, resolves to loopback addresses only", name), fmt.Sprintf("it resolves to %v", addrs[0]), "none, unless servers listen by this name: other hosts would not reach them; "+remedy)
	default:
		x.ok("the name of this host, %s, resolves to %v", name, public[0])
	}
}

// portsLeast is the least number of ports for outgoing connections that is not worth a warning.
const portsLeast = 1000

func probePorts(_ context.Context, x *exam) {
	const file = "proc/sys/net/ipv4/ip_local_port_range"
	f := strings.Fields(x.word(file))
	if len(f) != 2 {
		x.notTried("/%s cannot be read", file)
		return
	}
	low, err := strconv.Atoi(f[0])
	high, highErr := strconv.Atoi(f[1])
	switch n := high - low + 1; {
	case err != nil || highErr != nil:
		x.notTried("/%s has no two numbers", file)
	case n < portsLeast:
		x.add(levelWarning, fmt.Sprintf("only %d ports are available for outgoing connections", n), "net.ipv4.ip_local_port_range is "+f[0]+" "+f[1], "sysctl net.ipv4.ip_local_port_range='32768 60999'")
	default:
		x.ok("%d ports are available for outgoing connections", n)
	}
}

// Bounds of TCP's settings.
const (
	queueLeast  = 128     // connections that wait until a server accepts them
	bufferLeast = 1 << 20 // bytes of a connection's buffer
)

func probeTCP(_ context.Context, x *exam) {
	before := len(x.found)
	if n, ok := x.number("proc/sys/net/core/somaxconn"); ok && n < queueLeast {
		x.add(levelWarning, fmt.Sprintf("only %d connections may wait for a server to accept them", n), "net.core.somaxconn", "sysctl net.core.somaxconn=4096")
	}
	for _, name := range []string{"tcp_rmem", "tcp_wmem"} {
		f := strings.Fields(x.word("proc/sys/net/ipv4/" + name))
		if len(f) != 3 {
			continue
		}
		if n, err := strconv.ParseInt(f[2], 10, 64); err == nil && n < bufferLeast {
			x.add(levelWarning, fmt.Sprintf("a connection's buffer may grow to %s only, which limits the rate over long distances", cli.SizeText(n)), "net.ipv4."+name+" is "+strings.Join(f, " "), fmt.Sprintf("sysctl net.ipv4.%s='%s %s 6291456'", name, f[0], f[1]))
		}
	}
	congestion := x.word("proc/sys/net/ipv4/tcp_congestion_control")
	switch {
	case congestion == "":
		x.notTried("the congestion control of TCP cannot be read")
	case congestion == "reno":
		x.add(levelNote, "the congestion control of TCP is reno, which is slow on fast long networks", "net.ipv4.tcp_congestion_control; there is "+x.word("proc/sys/net/ipv4/tcp_available_congestion_control"), "sysctl net.ipv4.tcp_congestion_control=cubic")
	case len(x.found) == before:
		x.ok("the congestion control of TCP is %s", congestion)
	}
}
