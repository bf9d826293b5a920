package cinnabar

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofitcp"
	"cinnabar/internal/na/sm"
	"cinnabar/internal/progress"
	"cinnabar/stats"
)

// Config has the settings of an engine. The zero value, and a nil *Config, are good defaults; the comment of each field names the value
// that its zero stands for. Sizes are in bytes. [Listen] and [Open] copy the Config and its slices, so
// later changes have no effect on the engine.
type Config struct {
	// Logger receives the lines of the engine and of the layers below it; nil: they are discarded, and panics of handlers are printed
	// on standard error. Lines of the RPC core have the attribute subsys=rpc, those of the network
	// have subsys=na. The program may log with the same logger.
	Logger *slog.Logger `json:"-"`

	// MaxHandlers limits the number of handlers at the same time, in each pool and outside pools; 0: 4096. Handlers that wait for a
	// call or transfer of theirs count too, so the limit must exceed the depth of calls that come back to this engine.
	// From a limit of 8 on, one host may have nine sixteenths of it; its further requests wait, and those of other hosts go on.
	MaxHandlers int
	// MaxQueued limits the number of requests that wait for a handler outside pools; those beyond it are answered codes.Again; 0: 65536,
	// negative: none wait. From a limit of 8 on, one host may have nine sixteenths of it.
	MaxQueued int
	Pools     []PoolConfig // the pools at the beginning; [Engine.AddPool] makes further ones
	// RPCPool is the pool of handlers that are registered without WithPool; empty: outside pools. RPCs by which peers administer the
	// engine, with names that begin with two underscores, are outside pools always.
	RPCPool string
	// Parent is an engine of this process; the new engine uses the pools of Parent instead of having its own (parent_mid).
	// MaxHandlers, MaxQueued and Pools must be 0 then, and HandlerWarning is the parent's. The two may end in any order.
	Parent *Engine `json:"-"`
	// HandlerWarning is the age of a handler at which Logger gets a warning with its RPC and its caller, and another one whenever
	// the age has doubled; 0: no warnings. The time of calls that the handler waits for counts.
	HandlerWarning time.Duration
	// MaxHandlerTime bounds the time in which the handler of an RPC of package native may respond, from the arrival of the request: the handler's
	// context has no later deadline, even if the caller allows more time; 0: the caller's deadline alone counts.
	MaxHandlerTime time.Duration

	// Setup registers RPCs and providers. [Listen] and [Open] call it with the new engine before the engine serves its first request;
	// nil: none. Requests that peers send while Setup runs wait until it has returned. Without Setup, a request that comes after
	// Listen and before the call of Handle is answered codes.NoEntry. Setup must not wait for the network, because the engine may
	// receive nothing meanwhile. If Setup returns an error, Listen or Open closes the engine and returns the error.
	Setup func(*Engine) error `json:"-"`

	Interceptors []Interceptor `json:"-"` // outermost first, around calls and around handlers
	Monitor      stats.Monitor `json:"-"` // nil: none, which costs nothing
	Progress     Progress

	// AllowRemoteShutdown lets every peer shut down the engine ([Endpoint.Shutdown],
	// margo_shutdown_remote_instance). Otherwise the engine refuses such requests, and the peer's
	// Endpoint.Shutdown returns codes.Permission.
	AllowRemoteShutdown bool

	Checksums Checksums // of messages; 0: ChecksumsAuto
	// MaxMemory limits the bytes that the engine holds for its peers, all together: requests that wait, responses that
	// leave, connections, arguments and results that are fetched or lent. The other limits have their parts of it: on a
	// small machine the default of such a limit is smaller than its comment names, and a value of the program must fit, or Listen
	// and Open fail. At least 32 MiB; 0: half of the machine's memory, or of the limit of its control groups.
	MaxMemory int64
	// MaxConnections limits the connections of peers, two descriptors each; 0: as many as RLIMIT_NOFILE allows beside 1,024
	// descriptors, or a quarter of them, for the program, and as an eighth of MaxMemory holds. Over na+sm there are at
	// most 255.
	MaxConnections int
	// MaxOverflow limits an argument or result that is too long for a message and that this process is asked to fetch, in
	// bytes; 0: 1 GiB, or half of the rest of MaxMemory where that is less, because one host has a share of it.
	// OverflowBudget limits all of them together, from the fetching until the handler is done, or the caller has the
	// result; 0: 4 GiB. Both are parts of MaxMemory. A request beyond the budget is answered codes.Again. A []byte that the program keeps longer
	// does not count, even if it is a part of the fetched message (see RPC.Call).
	MaxOverflow    int64
	OverflowBudget int64
	// TransferStall is the time without a moved byte after which a transfer fails with codes.Timeout, if a handler has started it,
	// or if its context has no deadline; 0: 30 s; negative: no limit.
	TransferStall time.Duration

	NoEager    bool // never embed small read-only memory in its handle (no_bulk_eager)
	NoOverflow bool // refuse arguments and results that are too long for one message (no_overflow)
	NoLoopback bool // refuse calls to oneself (no_loopback)

	Subnet netip.Prefix // the network from which the engine chooses its address; zero: any
	// Interface is the name of a network interface. The engine listens on an address of it if the address given to Listen or Open has
	// no host; empty: any. FI_TCP_IFACE is its counterpart in libfabric.
	Interface string
	// Advertise is the address that the engine gives to peers over ofi+tcp in place of the one that it listens on. It is an IP
	// address, followed by a port if the port differs too: "192.0.2.7", "192.0.2.7:1234", "[2001:db8::7]:1234". [Engine.Addr]
	// returns it, and handles and connection requests carry it. An engine behind an address translator that forwards a port,
	// such as that of a container, needs it. Empty: the address that the engine has chosen, which for 0.0.0.0 and [::] is the
	// one that ChooseAddr of package margo returns; peers reach such an engine by its other addresses as well.
	//
	// A peer in C responds to the advertised address. If the engine calls peers in C, they must see its connections come from
	// that address.
	Advertise string
	// Listener is a listener of TCP at which the engine of [Listen] accepts connections over ofi+tcp and ofi+tcps, such as a socket that
	// systemd has opened (package systemd); nil: the engine opens one. The address that is given to Listen has neither host nor port then, or exactly those of the
	// Listener. The engine closes the Listener, also if Listen fails. A Listener at [::] must take IPv6 alone, because an engine has peers of one family.
	Listener net.Listener `json:"-"`
	// Firewalled makes an engine that does not listen and accepts no connection, and its connection requests say that peers
	// must not dial it. Peers send requests and responses over the connections that the engine has made, so its handlers
	// serve the processes that it has called. Over ofi+verbs a connection request cannot say that peers must not dial, so an engine there
	// listens all the same, and refuses each peer that dials it.
	Firewalled bool
	// AutoSM makes an engine on ofi+tcp or ofi+verbs reach the processes of its own host over shared memory, as na+sm does, and lets them
	// reach it so, if they have the option too (auto_sm of Mercury). [Engine.Addr] then has the form
	// "uid://HOST#na+sm://PID-ID#ofi+tcp://IP:PORT". Peers of the same user, with the same HOST, on a host with that IP address, use the
	// part in the middle while they find the process in shared memory; all others use the last part. MaxRequest and MaxResponse must be
	// 0 or 4096 then. With Firewalled no process connects to the engine in shared memory either. AutoSM needs Linux.
	//
	// It is off by default because na+sm opens the memory of the process to the other processes of its user: see SECURITY.md.
	AutoSM bool
	// TLS is the configuration of an engine on ofi+tcps, which cannot be opened without one. Its connections are inside TLS 1.3. It must be nil
	// on ofi+tcp, ofi+verbs and na+sm, which have no encryption, and with AutoSM, because shared memory checks no certificates. [Listen] needs a
	// certificate in it. A server whose ClientAuth is
	// tls.RequireAndVerifyClientCert accepts only peers with a certificate of its ClientCAs. A dialed server must prove TLS.ServerName or,
	// if that is empty, the host name or IP address by which it was looked up. Earlier versions of TLS and the resumption of sessions are
	// turned off. An engine of [Open] without a certificate is Firewalled. The program must not change TLS afterwards; its functions,
	// such as GetCertificate, may return new certificates for new connections. They must return soon and not wait for the network, because the
	// engine makes handshakes for one connection of each processor at a time.
	TLS *tls.Config `json:"-"`
	// DialTLS returns the TLS configuration for a connection that the engine makes. It may differ from TLS only in the certificates and authorities;
	// if DialTLS is nil, the engine uses TLS. The method Dial of identity.Certificates returns a configuration with the authorities that were read
	// last. The engine calls DialTLS on many goroutines at once, and each call must return soon.
	DialTLS func() (*tls.Config, error) `json:"-"`
	// Token is a secret of at least 128 random bits that both ends of each connection prove to each other, on ofi+tcp and ofi+tcps; zero: none. An engine
	// with a token refuses peers that have another one or none, those in C included, and connects to no others. Over ofi+tcp a token keeps strangers out and does
	// not stop a man in the middle, who can read and change the bytes that pass; over ofi+tcps it does. It must be zero on other networks, and
	// with AutoSM, because these do not prove it. Engine.Config returns it.
	Token identity.Token `json:"-"`
	// Admit accepts or refuses a peer that connects, before the engine accepts the connection and reads a request of it; nil: all are accepted. The engine
	// calls it once for a connection, when the peer's connection request has come; the TLS handshake and the proof of the token come before. An
	// error refuses the peer; the engine logs and counts it, and the peer is not sent the text of the error. Admit has 5 s; then its ctx ends, and
	// the engine refuses the peer. At most 64 calls, and 16 for peers of one host, run at the same time, and one that goes on
	// after its ctx has ended counts among them. Hosts take turns, and the last quarter of the calls is for hosts with one or two. The engine does not call Admit for peers that it connects to itself, nor for its own process,
	// although these may send requests too; package authz can refuse those. Over na+sm a process in C that never sleeps (NA_NO_BLOCK) is not served by an engine with
	// Admit, because such a process sends no credentials.
	Admit func(ctx context.Context, p identity.Peer) error `json:"-"`
	// Device is the RDMA device of an engine on ofi+verbs, which cannot be opened without one. Functions of package verbs/auto return
	// it. The program closes it after the engine. Engines on other networks do not use it. On ofi+verbs the fields Interface and Advertise
	// must be empty.
	//
	// Programs of this module call each other over ofi+verbs on the software device (package verbs/iwarp). The messages have the layout
	// of Mercury's programs in C; docs/wire-ofiverbs.md names the C programs that the tests use as peers.
	Device na.Device `json:"-"`
	// RegCacheBytes limits the bytes of the program's slices that an engine on ofi+verbs keeps registered with its device after a
	// transfer, so that the next transfer of the same slice need not register it; 0: 64 MiB; negative: none. The collector does not
	// free these slices, because the device knows their addresses. If a further slice would exceed the limit, the engine deregisters the
	// least recently used ones. Memory of Alloc and of buffer pools does not count, because it stays registered until it is freed.
	RegCacheBytes int64
	MaxRequest    int           // bytes of a request message, at least 512, the same as the peers'; 0: 4096, as Mercury's default
	MaxResponse   int           // bytes of a response message, at least 512, the same as the peers'; 0: 4096
	Resolver      *net.Resolver `json:"-"` // resolves host names in addresses of peers; nil: net.DefaultResolver
	DialTimeout   time.Duration // bounds one attempt to connect to an address, and one resolution of a host name; 0: 10 s
	DialRetry     time.Duration // the time for which the engine redials a peer that refuses connections, and resolves its host name again; 0: no redial
	// KeepAlive is the time of silence after which a host counts as dead; 0: 15 s; negative: no limit. It is also the period at which
	// the engine probes a peer from which a call without a deadline awaits the response, by a request that no peer serves.
	// A peer that has answered none of these for 20 times KeepAlive, 5 minutes by default, counts as frozen, and the calls
	// fail with codes.HostUnreach. A program of C that makes no progress while a handler computes does not answer meanwhile:
	// if its handlers compute longer than that, KeepAlive must be longer, or negative.
	KeepAlive   time.Duration
	SendTimeout time.Duration // the limit for a host to acknowledge sent bytes; 0: 15 s; negative: no limit

	// LateAccess is the time for which the engine keeps the closed memory of an abandoned call for that call's server, unless the
	// response comes earlier ([Bulk.Close]); 0: 60 s; negative: none. Kept memory counts towards MaxMemory.
	LateAccess time.Duration

	quota *hostquota.Book  // of the engine that has this configuration; nil: it is no engine's
	trail *audit.Trail     // likewise
	clock hg.Clock         // likewise
	waits *progress.Policy // likewise
	gate  *admission.Gate  // likewise

	onDevice bool // the engine is on the network of an RDMA device
}

// Progress has the settings of goroutines that wait for the network.
type Progress struct {
	// Mode is the choice between the latency of waits and the processor time that they use. One goroutine of a process polls at a
	// time, so that waits use no more than one processor, or two while both ends of a connection are in the process.
	//
	//   - "balanced", the default, makes a waiting goroutine poll for twice the time that it takes to wake a sleeping thread on this
	//     machine, between 50 and 500 µs, and then sleep. The first engine of a process measures that time, and the engines correct it
	//     while they run. An engine without traffic uses no processor time. A process that may use one processor only
	//     yields it to other programs between two looks. If one of them keeps it for more than 2 ms, goroutines sleep at once for the next 50 to
	//     800 ms. On systems other than Linux the goroutines of such a process always sleep at once.
	//   - "latency" makes a waiting goroutine poll for 10 ms; an engine on na+sm polls for as long as an operation waits for its peer.
	//     It is for programs with a processor to spare, and with peers that take longer to answer than the mode "balanced" polls.
	//     Listen and Open refuse it in a process that may use one processor only.
	//   - "economy" makes a waiting goroutine sleep at once. Each wait then costs a wake-up, 5 to 80 µs, and no processor time.
	//
	// Over ofi+tcp goroutines poll on Linux only, and sleep at once on other systems. The software device of an engine on ofi+verbs polls its
	// sockets by the mode of the engine.
	Mode string
}

// Checksums is whether messages carry checksums. It is fixed when Mercury is built: peers of the two kinds use headers
// of different lengths.
type Checksums uint8

// The values of Checksums.
const (
	// ChecksumsAuto makes the engine find the kind of a called process by one small exchange before the first call to
	// it, and uses checksums in a response if the request has them.
	ChecksumsAuto Checksums = iota
	// NoChecksums is for peers with a Mercury that was built without checksums.
	NoChecksums
	// WithChecksums is for peers with a Mercury that was built with MERCURY_USE_CHECKSUMS. The engine writes and verifies the checksums of
	// each message, but over ofi+tcps those of headers only, because TLS authenticates payloads.
	WithChecksums
)

// Values that zeros of Config stand for.
const (
	leastMessage = 512 // room for hg.MinMessage behind the transport's own part
)

// filled returns a copy of cfg, which may be nil, with defaults in the place of zeros.
func (cfg *Config) filled() Config {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Interceptors = slices.Clone(c.Interceptors)
	c.Pools = slices.Clone(c.Pools)
	c.Progress.Mode = cmp.Or(c.Progress.Mode, string(progress.Balanced))
	c.fillLimits()
	return c
}

func defaultTo[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// layer returns the logger of a layer below the engine.
func (cfg *Config) layer(subsystem string) *slog.Logger {
	return cfg.Logger.With(logSubsystem, subsystem)
}

// check returns an error that names the first setting that is out of range or contradicts another.
func (cfg *Config) check() error {
	if _, err := ofitcp.ParseAdvertise(cfg.Advertise); err != nil {
		return argumentError("open engine", "", "", "Advertise is %q; it is an IP address, with or without a port: %w", cfg.Advertise, err)
	}
	if m := min(messageSize(cfg.MaxRequest), messageSize(cfg.MaxResponse)); m < leastMessage {
		return argumentError("open engine", "", "", "MaxRequest or MaxResponse is %d; at least %d bytes, or 0 for 4096", m, leastMessage)
	}
	if err := progress.Mode(cfg.Progress.Mode).Check(runtime.NumCPU()); err != nil {
		return argumentError("open engine", "", "", "Progress.Mode: %w", err)
	}
	if err := cfg.checkLimits(); err != nil {
		return err
	}
	if cfg.Checksums > WithChecksums {
		return argumentError("open engine", "", "", "Checksums is %d; there are ChecksumsAuto, NoChecksums and WithChecksums", cfg.Checksums)
	}
	if cfg.HandlerWarning < 0 {
		return argumentError("open engine", "", "", "HandlerWarning is %v; it is a duration, or 0 for no warnings", cfg.HandlerWarning)
	}
	if cfg.MaxHandlerTime < 0 {
		return argumentError("open engine", "", "", "MaxHandlerTime is %v; it is a duration, or 0 for no limit", cfg.MaxHandlerTime)
	}
	if cfg.Parent != nil && (cfg.MaxHandlers != 0 || cfg.MaxQueued != 0 || len(cfg.Pools) > 0 || cfg.HandlerWarning != 0) {
		return argumentError("open engine", "", "", "MaxHandlers, MaxQueued, Pools and HandlerWarning are those of the Parent; leave them 0, or the Parent nil")
	}
	seen := map[string]bool{}
	for _, p := range cfg.Pools {
		if err := p.check("open engine"); err != nil {
			return err
		}
		if seen[p.Name] {
			return argumentError("open engine", "", "", "two pools are named %q", p.Name)
		}
		seen[p.Name] = true
	}
	return cfg.checkRPCPool()
}

// messageSize is n, or enough if it stands for the default.
func messageSize(n int) int {
	if n == 0 {
		return leastMessage
	}
	return n
}

// class returns the configuration of the RPC core.
func (cfg *Config) class(d hg.Dispatcher) hg.Config {
	mode := map[Checksums]wire.ChecksumMode{ChecksumsAuto: wire.Detect, NoChecksums: wire.NoChecksums, WithChecksums: wire.Checksums}[cfg.Checksums]
	return hg.Config{
		Logger: cfg.layer("rpc"), Dispatch: d, Checksums: mode,
		NoEager: cfg.NoEager, NoOverflow: cfg.NoOverflow, NoLoopback: cfg.NoLoopback,
		MaxOverflow: cfg.MaxOverflow, OverflowBudget: cfg.OverflowBudget, Audit: cfg.trail,
		Clock: cfg.clock, Progress: cfg.waits,
	}
}

// tcp returns the configuration of the transport of ofi+tcp.
func (cfg *Config) tcp() ofitcp.Config {
	return ofitcp.Config{
		Logger: cfg.layer("na"), Progress: cfg.waits, Subnet: cfg.Subnet, Firewalled: cfg.Firewalled, Resolver: cfg.Resolver,
		MaxRequest: cfg.MaxRequest, MaxResponse: cfg.MaxResponse, Advertise: cfg.advertised(),
		DialTimeout: cfg.DialTimeout, DialRetry: cfg.DialRetry, KeepAlive: cfg.KeepAlive, SendTimeout: cfg.SendTimeout,
		LateAccess: cfg.LateAccess, TLS: cfg.TLS, DialTLS: cfg.DialTLS, Token: cfg.Token, Admit: cfg.gate, Quota: cfg.quota, Audit: cfg.trail,
	}
}

// listener returns the Listener, nil if there is none, and the address of the network of an engine at addr: with a Listener it has the host and the
// port of that, without one it is addr.
func (cfg *Config) listener(addr string, listen bool) (ln *net.TCPListener, where string, err error) {
	if cfg == nil || cfg.Listener == nil {
		return nil, addr, nil
	}
	ln, ok := cfg.Listener.(*net.TCPListener)
	if !ok {
		return nil, "", argumentError("open engine", "", addr, "Listener is a %T; it must be a *net.TCPListener", cfg.Listener)
	}
	raw, err := ln.SyscallConn() // fails if ln is nil or the zero value
	if err == nil {
		err = raw.Control(func(uintptr) {}) // fails if ln is closed
	}
	if err != nil {
		return nil, "", argumentError("open engine", "", addr, "Listener is not open: %v; give one of net.Listen that nothing has closed", err)
	}
	scheme, rest, _ := strings.Cut(addr, ":")
	rest = strings.TrimPrefix(rest, "//")
	at := ln.Addr().String()
	switch {
	case !slices.Contains([]string{"ofi+tcp", "tcp", "ofi+tcps", "tcps"}, scheme):
		return nil, "", argumentError("open engine", "", addr, "Listener is set, and it is for ofi+tcp and ofi+tcps; leave it nil")
	case !listen || cfg.Firewalled:
		return nil, "", argumentError("open engine", "", addr, "Listener is set, and the engine does not listen; use Listen without Firewalled, or leave Listener nil")
	case rest != "" && rest != at:
		return nil, "", argumentError("open engine", "", addr, "Listener is at %s; give Listen %s:// or %s://%s", at, scheme, scheme, at)
	}
	return ln, scheme + "://" + at, nil
}

// checkDevice returns an error that names the setting which does not allow an engine on the network of a device.
func (cfg *Config) checkDevice(addr string) error {
	switch {
	case cfg == nil || cfg.Device == nil:
		return argumentError("open engine", "", addr, "Config.Device is nil; open an RDMA device with package verbs/auto")
	case cfg.TLS != nil || cfg.DialTLS != nil:
		return argumentError("open engine", "", addr, "TLS is set, and ofi+verbs has no encryption; use ofi+tcps")
	case !cfg.Token.IsZero():
		return argumentError("open engine", "", addr, "Token is set, and peers on ofi+verbs do not prove it; use ofi+tcp or ofi+tcps")
	case cfg.Interface != "":
		return argumentError("open engine", "", addr, "Interface is %q; over ofi+verbs the address names the interface or the device, as in ofi+verbs://ib0", cfg.Interface)
	case cfg.Advertise != "":
		return argumentError("open engine", "", addr, "Advertise is %q; over ofi+verbs an engine listens on the address that its peers get", cfg.Advertise)
	}
	return nil
}

// device returns the configuration of the network of an RDMA device.
func (cfg *Config) device() na.DeviceConfig {
	return na.DeviceConfig{
		Logger: cfg.layer("na"), Subnet: cfg.Subnet, Firewalled: cfg.Firewalled, Resolver: cfg.Resolver, Progress: cfg.waits, MaxRequest: cfg.MaxRequest, MaxResponse: cfg.MaxResponse,
		DialTimeout: cfg.DialTimeout, DialRetry: cfg.DialRetry, KeepAlive: cfg.KeepAlive, SendTimeout: cfg.SendTimeout,
		LateAccess: cfg.LateAccess, RegCacheBytes: cfg.RegCacheBytes, Admit: cfg.gate, Quota: cfg.quota, Audit: cfg.trail,
	}
}

// advertised returns the address in Advertise, which check has parsed before. It is the zero value if Advertise is empty.
func (cfg *Config) advertised() netip.AddrPort {
	a, _ := ofitcp.ParseAdvertise(cfg.Advertise)
	return a
}

// smMessage is the length of a message over na+sm, in bytes. It is fixed because C's shared region has no room for more.
const smMessage = 4096

// sm returns the configuration of the transport of na+sm.
func (cfg *Config) sm() (sm.Config, error) {
	switch {
	case !cfg.Token.IsZero():
		return sm.Config{}, argumentError("open engine", "", "", "Token is set, and peers in shared memory do not prove it: the kernel names their user; leave it zero, and AutoSM false")
	case (cfg.TLS != nil || cfg.DialTLS != nil) && cfg.AutoSM:
		return sm.Config{}, argumentError("open engine", "", "", "TLS and AutoSM are set, and shared memory has no encryption and asks for no certificates; leave AutoSM false")
	case cfg.TLS != nil || cfg.DialTLS != nil:
		return sm.Config{}, argumentError("open engine", "", "", "TLS is set, and na+sm has no encryption; use ofi+tcps, or leave it nil")
	}
	for _, n := range []int{cfg.MaxRequest, cfg.MaxResponse} {
		if n != 0 && n != smMessage {
			return sm.Config{}, argumentError("open engine", "", "", "MaxRequest or MaxResponse is %d; over na+sm messages have %d bytes, which 0 stands for", n, smMessage)
		}
	}
	if cfg.Advertise != "" && !cfg.AutoSM {
		return sm.Config{}, argumentError("open engine", "", "", "Advertise is %q; over na+sm an engine has one address", cfg.Advertise)
	}
	return sm.Config{
		Logger: cfg.layer("na"), Progress: cfg.waits, ConnectTimeout: cfg.DialTimeout, SendTimeout: cfg.SendTimeout, Quota: cfg.quota, Audit: cfg.trail,
		Admit: cfg.gate,
	}, nil
}
