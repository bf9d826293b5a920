package ofitcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	proven "cinnabar/identity"
	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/progress"
	"cinnabar/internal/tlsio"
)

// Config says how an endpoint is opened. The zero value of each field is its default.
type Config struct {
	// Address is the address to listen on: "ofi+tcp", "ofi+tcp://host", "ofi+tcp://:port", "ofi+tcp://interface/host:port", and
	// the same with "tcp" in place of "ofi+tcp"; host may be an address, an interface or a name. Empty is "ofi+tcp".
	// [Choose] describes how the rest is chosen. A port that is taken is an error, never replaced by another.
	Address string
	// Listen says that peers may send requests. They can reach the endpoint either way, for its memory.
	Listen bool
	// Handler takes the requests. Without Listen it is to refuse them, or may be nil: then they are dropped unanswered.
	// (Upstream stops reading a connection over which a process gets a request that does not listen.)
	Handler na.Handler
	// Logger logs peers that break the protocol and, at Debug, connections. Nil discards.
	Logger *slog.Logger
	// Progress decides for how long a goroutine reads the socket without result before it parks. Nil stands for a policy of mode
	// Balanced or, if Spin is not 0, for one that always spins for that time; a negative Spin stands for no time.
	Progress *progress.Policy
	Spin     time.Duration
	// Subnet, if valid, is the only one from which an address is chosen.
	Subnet netip.Prefix
	// Advertise, if valid, is the address that the endpoint gives to its peers; port 0 stands for the port that it listens on.
	// An endpoint behind an address translator needs it. Its family must be that of the chosen address.
	Advertise netip.AddrPort
	// Firewalled makes an endpoint that does not listen: its connection requests ask peers not to dial it, and messages reach it
	// over the connections that it has made. It reserves its port, because peers identify it by address and port.
	Firewalled bool
	// MaxRequest and MaxResponse are the sizes of whole messages in bytes, the sender's address of a request included: 0
	// stands for 4096. Mercury's peers must be configured alike.
	MaxRequest, MaxResponse int
	// Resolver resolves the names of peers' hosts; nil: net.DefaultResolver.
	Resolver *net.Resolver
	// DialTimeout bounds the resolution of a name, an attempt to connect, and the repetition of attempts that the peer refuses
	// because it is connecting itself: 0 stands for 10 s.
	DialTimeout time.Duration
	// DialRetry is for how long a host that refuses connections is dialed again: 0 stands for not at all. Mercury's own
	// plugin does so for 120 s, silently.
	DialRetry time.Duration
	// KeepAlive is after how long a silent host counts as dead: 0 stands for 15 s, negative for never.
	KeepAlive time.Duration
	// SendTimeout is for how long a peer may leave sent bytes unacknowledged, or take none, before the connection counts
	// as lost: 0 stands for 15 s, negative for ever.
	SendTimeout time.Duration
	// LateAccess is for how long the endpoint keeps closed memory for the servers of given-up calls (late.go): 0 stands for
	// 60 s, negative for not at all.
	LateAccess time.Duration
	// TLS is the configuration of an endpoint on "ofi+tcps", with which the connections are inside TLS 1.3. It must be nil on "ofi+tcp". Dialed
	// servers must prove TLS.ServerName or, if that is empty, the name or address of their host. An endpoint that does not listen and
	// whose TLS has no certificate is Firewalled.
	TLS *tls.Config
	// DialTLS returns the configuration for a connection that the endpoint makes; nil: it is TLS.
	DialTLS func() (*tls.Config, error)
	// Token, if it is not zero, is proven by both ends of each connection (package tokenproof). Peers that do not prove it are refused.
	Token proven.Token
	// Admit accepts or refuses the peers that connect; nil: it accepts all.
	Admit *admission.Gate
	// Listener is the listener to use, which has Address; nil: Open makes one. The endpoint closes it.
	Listener *net.TCPListener
	// Quota counts the resources that each remote host holds; nil: a Book without limits.
	Quota *hostquota.Book
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}

// Defaults of Config.
const (
	defaultMessage  = 4096
	defaultDial     = 10 * time.Second
	defaultSilence  = 15 * time.Second
	defaultLate     = time.Minute
	maxMessage      = 1 << 20 // the largest MaxRequest and MaxResponse
	smallestMessage = 64
)

// withDefaults returns cfg with the defaults in place of zeros.
func (cfg Config) withDefaults() (Config, error) {
	switch {
	case cfg.Progress != nil:
	case cfg.Spin != 0:
		cfg.Progress = progress.NewFixed(cfg.Spin)
	default:
		cfg.Progress = progress.New(progress.Balanced)
	}
	secure := schemeOf(cfg.Address) == secureScheme
	switch {
	case secure && cfg.TLS == nil:
		return cfg, errors.New("ofi+tcps needs Config.TLS")
	case !secure && (cfg.TLS != nil || cfg.DialTLS != nil):
		return cfg, errors.New("Config.TLS is set, and ofi+tcp is the protocol without TLS; use ofi+tcps, or leave it nil")
	case secure:
		prepared, err := tlsio.Prepare(cfg.TLS)
		if err != nil {
			return cfg, fmt.Errorf("Config.TLS: %w", err)
		}
		if cfg.TLS = prepared; !tlsio.CanServe(prepared) {
			if cfg.Listen {
				return cfg, errors.New("Config.TLS has no certificate, which an endpoint that listens needs (Certificates, GetCertificate or GetConfigForClient)")
			}
			cfg.Firewalled = true
		}
	}
	setDefault(&cfg.MaxRequest, defaultMessage)
	setDefault(&cfg.MaxResponse, defaultMessage)
	setDefault(&cfg.DialTimeout, defaultDial)
	setDefault(&cfg.KeepAlive, defaultSilence)
	setDefault(&cfg.SendTimeout, defaultSilence)
	setDefault(&cfg.LateAccess, defaultLate)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Quota == nil {
		cfg.Quota = hostquota.NewBook(hostquota.Limits{})
	}
	if cfg.Audit == nil {
		cfg.Audit = audit.New(cfg.Logger)
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	switch {
	case cfg.Listen && cfg.Handler == nil:
		return cfg, errors.New("Config.Listen needs a Config.Handler")
	case cfg.MaxRequest < smallestMessage || cfg.MaxRequest > maxMessage:
		return cfg, fmt.Errorf("Config.MaxRequest is %d; it must be from %d to %d", cfg.MaxRequest, smallestMessage, maxMessage)
	case cfg.MaxResponse < smallestMessage || cfg.MaxResponse > maxMessage:
		return cfg, fmt.Errorf("Config.MaxResponse is %d; it must be from %d to %d", cfg.MaxResponse, smallestMessage, maxMessage)
	case cfg.DialTimeout < 0 || cfg.DialRetry < 0:
		return cfg, errors.New("Config.DialTimeout and Config.DialRetry must not be negative")
	}
	return cfg, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Open opens an endpoint. ctx bounds the looking up of a host name; the endpoint lives until Close.
func Open(ctx context.Context, cfg Config) (*Endpoint, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "open", Err: err}
	}
	c, err := chooseOn(ctx, cfg.Address, cfg.Subnet, cfg.Listen)
	if err != nil {
		return nil, err
	}
	if a := cfg.Advertise.Addr(); a.IsValid() && (a.IsUnspecified() || a.IsMulticast() || a.Is4() != c.self.Is4()) {
		return nil, &na.Error{Kind: na.Invalid, Op: "open", Err: fmt.Errorf("Config.Advertise is %v; it must be the address of a host, of the same family as %v", a, c.self)}
	}
	e := &Endpoint{
		cfg: cfg, tls: cfg.TLS, scheme: schemeOf(cfg.Address), setups: hostquota.NewTurns(),
		shut: make(chan struct{}), ended: make(chan struct{}), finished: make(chan struct{}),
		peers: peerbook.NewBook[peerKey, peer](),
		conns: make(map[*conn]struct{}), claimed: make(map[netip.AddrPort][]*conn), half: newHalves(),
	}
	e.life, e.endLife = context.WithCancel(context.Background())
	e.readers = hostquota.NewReaders(cfg.Quota, e.yield)
	port, err := e.occupy(ctx, c.bind)
	if err != nil {
		return nil, err
	}
	if e.poller, err = shared.acquire(cfg.Progress); err != nil {
		e.release()
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Err: err}
	}
	e.binds = []netip.Addr{c.self}
	if e.all = c.bind.Addr().IsUnspecified(); e.all {
		ifs, err := interfaces()
		if err != nil {
			e.release()
			return nil, chooseError(cfg.Address, err)
		}
		for _, i := range ifs {
			e.binds = append(e.binds, i.addrs...)
		}
	}
	e.local = netip.AddrPortFrom(c.self, port)
	e.self = e.local
	if a := cfg.Advertise; a.IsValid() {
		if a.Port() != 0 {
			port = a.Port()
		}
		e.self = netip.AddrPortFrom(a.Addr(), port)
	}
	e.prefixBytes = ofiaddr.Append(nil, e.self)
	e.prefix = len(e.prefixBytes)
	e.pid, e.id = randomPid(), newIdentity()
	e.own = e.peer(e.self)
	e.initNames()
	cfg.Logger.Log(ctx, c.level, "endpoint opened", "address", e.own.str, "reason", c.reason)
	if e.ln != nil {
		e.spare.open()
		e.spawn(e.acceptLoop)
	}
	return e, nil
}

// occupy listens on address a, or only reserves its port if the endpoint is firewalled. It returns the port.
func (e *Endpoint) occupy(ctx context.Context, a netip.AddrPort) (port uint16, err error) {
	if e.cfg.Firewalled {
		if e.reserved, a, err = reserve(a); err != nil {
			return 0, bindError(a, err)
		}
		return a.Port(), nil
	}
	if e.ln = e.cfg.Listener; e.ln == nil {
		e.ln, err = listen(ctx, a)
	} else if err = listens(e.ln); err == nil && a.Addr() == netip.IPv6Unspecified() {
		err = onlyIPv6(e.ln)
	}
	if err != nil {
		return 0, err
	}
	if t, ok := e.ln.Addr().(*net.TCPAddr); ok {
		return uint16(t.Port), nil
	}
	return a.Port(), nil
}

// release closes the listener or the reservation of occupy, and the poller.
func (e *Endpoint) release() {
	e.endLife()
	if e.poller != nil {
		shared.release(e.cfg.Progress)
	}
	if e.ln != nil {
		_ = e.ln.Close() // an error would lose no data
	}
	if e.reserved != nil {
		_ = e.reserved.Close() // an error would lose no data
	}
}

// listen binds the address; a port that is taken is an error.
func listen(ctx context.Context, a netip.AddrPort) (*net.TCPListener, error) {
	network := "tcp4"
	if a.Addr().Is6() {
		network = "tcp6"
	}
	lc := net.ListenConfig{KeepAlive: -1}
	l, err := lc.Listen(ctx, network, a.String())
	if err == nil {
		if ln, ok := l.(*net.TCPListener); ok {
			return ln, nil
		}
		err = fmt.Errorf("the listener is a %T", l)
	}
	return nil, bindError(a, err)
}

// bindError returns the error of an address that cannot be bound.
func bindError(a netip.AddrPort, err error) error {
	kind := na.Invalid
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		kind = na.InUse
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		kind = na.NotAvailable
	}
	return &na.Error{Kind: kind, Op: "listen", Addr: formatAddr(a), Err: err}
}

// randomPid returns the number by which peers distinguish this process from its predecessor on the same port. The true process
// number would not do: in containers it is often 1 at both ends, which upstream takes for a duplicate.
func randomPid() uint32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if n := binary.BigEndian.Uint32(b[:]); n != 0 {
			return n
		}
	}
}
