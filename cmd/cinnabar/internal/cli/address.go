package cli

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cinnabar"
	"cinnabar/verbs"
)

// ResolveHost turns a name or an address into one address. Of several it
// prefers IPv4, which a kernel's iWARP serves on any interface.
func ResolveHost(ctx context.Context, host string) (netip.Addr, error) {
	addrs, err := verbs.Resolve(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if ip := a.Addr().Unmap(); ip.Is4() {
			return ip, nil
		}
	}
	return addrs[0].Addr(), nil // Resolve fails rather than returning none
}

// Servers listen here by default: peers are not authenticated, so those of other machines are let in by
// an address that the user names.
const (
	ListenHost  = "127.0.0.1"
	ListenForms = "without HOST " + ListenHost + ", 0.0.0.0 is every IPv4 address, [::] every address, port 0 is a free one"
)

// LocalFor returns the address to open for talking to address: the protocol, with the address of this host from which the
// system would go there, so that the server can reach for this process's memory on the way that the calls take. It returns
// the protocol alone if the system finds no route; Lookup or the first call then returns the reason. Of a combined address, "uid://...", it
// returns that of the network, beside which the engine needs shared memory: see [Combined].
func LocalFor(ctx context.Context, address string) string {
	address = address[strings.LastIndexByte(address, '#')+1:]
	protocol, peer, _ := strings.Cut(address, "://")
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", peer) // resolves the name and finds a route; a UDP dial sends nothing to the peer
	if err != nil {
		return protocol
	}
	defer Shut(c)
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return protocol
	}
	return protocol + "://" + netip.AddrPortFrom(from.Addr().Unmap(), 0).String()
}

// Combined reports whether address is one of a process that is reached over shared memory and over a network. An engine that talks to it
// has AutoSM, because the user has given it an address in shared memory.
func Combined(address string) bool { return strings.HasPrefix(address, "uid://") }

// AutoSMFlag adds the option --auto-sm of a server to f. use is its effect.
func AutoSMFlag(f *pflag.FlagSet, autoSM *bool, use string) { f.BoolVar(autoSM, "auto-sm", false, use) }

// AutoSMServer is the effect of --auto-sm on a server.
const AutoSMServer = "serve clients of this host and user over shared memory too; they need the printed address, which has both"

// Transport returns the network in an address as the commands print it: "tcp" of "ofi+tcp://...", "sm", or "verbs".
func Transport(address string) string {
	protocol, _, _ := strings.Cut(address, "://")
	if _, plain, ok := strings.Cut(protocol, "+"); ok {
		protocol = plain
	}
	return strings.TrimSuffix(protocol, ";ofi_rxm")
}

// Carried returns the network that has carried the calls of an engine, as the commands print it, if all of them went to the process at
// address.
func Carried(e *cinnabar.Engine, address string) string {
	network := Transport(address[strings.LastIndexByte(address, '#')+1:])
	switch s := e.Stats(); {
	case s.RequestsShared == 0:
		return network
	case s.RequestsShared < s.RequestsSent:
		return "sm and " + network
	}
	return "sm"
}

// maxDescription bounds the description of another process, in bytes: a thousand pools and some ten thousand RPCs.
const maxDescription = 4 << 20

// Caller has the options of a command that calls another process: --timeout and --device.
type Caller struct {
	timeout time.Duration
	device  RPCDevice
}

// Register adds the options to a command. value is the default of --timeout, and meaning its help text.
func (c *Caller) Register(f *pflag.FlagSet, s Streams, value time.Duration, meaning string) {
	TimeoutFlag(f, &c.timeout, value, meaning)
	c.device.Register(f, s)
}

// Timeout returns the value of --timeout.
func (c *Caller) Timeout() time.Duration { return c.timeout }

// Engine calls f with an engine for calls to the process at an address. It sets DialTimeout of cfg. The context of f ends after --timeout.
func (c *Caller) Engine(ctx context.Context, address string, cfg cinnabar.Config, f func(context.Context, *cinnabar.Engine) error) (err error) {
	if c.timeout <= 0 {
		return Usagef("--timeout is %v; want a time above 0, such as 10s", c.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	local := LocalFor(ctx, address)
	cfg.DialTimeout, cfg.AutoSM = c.timeout, Combined(address)
	release, err := c.device.Open(ctx, local, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	e, err := cinnabar.Open(ctx, local, Logged(ctx, &cfg))
	if err != nil {
		return err
	}
	defer Shut(e)
	return f(ctx, e)
}

// Ask calls f with an engine that Ask opens and closes, and an Endpoint of the process at an address. The context of f ends after --timeout.
func (c *Caller) Ask(ctx context.Context, address string, f func(context.Context, *cinnabar.Engine, *cinnabar.Endpoint) error) error {
	return c.Engine(ctx, address, cinnabar.Config{MaxOverflow: maxDescription}, func(ctx context.Context, e *cinnabar.Engine) error {
		ep, err := e.Lookup(address)
		if err != nil {
			return err
		}
		return f(ctx, e, ep)
	})
}
