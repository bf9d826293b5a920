package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/autosm"
	"cinnabar/internal/na/ofitcp"
	"cinnabar/internal/na/sm"
	"cinnabar/internal/progress"
	"cinnabar/internal/rundown"
)

// Engine is a process's presence on one network: it sends and serves RPCs and exposes memory. Its counterpart in C is a
// margo_instance_id. A process may have several. All methods are safe for concurrent use.
//
// The engine makes progress by itself: its goroutines read the network, and a goroutine that waits for a result helps them for a
// short time before it sleeps ([Config].Progress).
//
// Each handler has a goroutine of its own, or runs on the one that reads the network once its RPC has proved quick; a handler that
// takes long there delays others by a millisecond or two, and its RPC gets goroutines again. Config.MaxHandlers handlers run at
// once. Requests beyond that wait, and the peers take turns; requests beyond Config.MaxQueued are answered codes.Again. A
// [HandlerPool] keeps some RPCs apart from the others.
//
// Messages of up to 4 KiB travel at once. The receiver fetches longer arguments and results from the sender's memory, which takes
// two more messages.
//
// An engine has goroutines and sockets until [Engine.Shutdown] or [Engine.Close].
type Engine struct {
	core *hg.Class
	net  na.Endpoint
	cfg  Config
	log  *slog.Logger
	// group is net as a GroupDriver, or nil if net does not implement it.
	group na.GroupDriver
	// unlogged: the Config has no logger, so panics of handlers are printed on standard error.
	unlogged bool
	self     *Endpoint

	gate     rundown.Guard // counts the operations of the program that have not ended
	handlers handlers
	contexts connContexts
	ending   ending
	timers   timers
	born     time.Time
	ops      opTable
	exposed  exposedTable
	moves    sync.Pool // of *move

	mu invariants.Mutex
	// +checklocks:mu
	providers map[uint16]*Provider
}

// Listen makes an engine that peers may send requests to. addr is one of these:
//
//	ofi+tcp://                    the loopback, which only this host reaches, and a port that is free
//	ofi+tcp://:1234               the loopback and this port
//	ofi+tcp://192.168.1.7:1234    this address and port
//	ofi+tcp://eth0                the address of this interface
//	ofi+tcp://0.0.0.0:1234        all IPv4 addresses of this host; Config.Advertise chooses the one for peers
//	ofi+tcps://192.168.1.7:1234   as ofi+tcp, inside TLS (Config.TLS); ofi+tcps has all forms of addresses of ofi+tcp
//	ofi+verbs://192.168.1.7:1234  this address, of the RDMA device in Config.Device, and this port
//	ofi+verbs://                  the first address of that device and a port that is free
//	na+sm://                      memory shared with processes of this host, under the number of this one
//	na+sm://name                  the same, under a name
//
// "tcp" stands for "ofi+tcp", "tcps" for "ofi+tcps", "verbs" and "ofi+verbs;ofi_rxm" for "ofi+verbs", and "sm" for "na+sm". With Config.Subnet or Config.Interface, an address without a host is
// one of that network or interface instead of the loopback. [Engine.Addr] returns the address that it became. A nil cfg
// is the zero Config.
//
// ctx bounds the opening alone, which resolves a host name in addr; the engine lives until its Shutdown or Close.
func Listen(ctx context.Context, addr string, cfg *Config) (*Engine, error) {
	return open(ctx, addr, true, cfg)
}

// Open makes an engine for calls only: requests that reach it are answered codes.NoEntry. protocol is "ofi+tcp", "na+sm" or anything
// that Listen accepts.
//
// Over ofi+tcp such an engine listens as well, because a peer that has lost the connection connects back to access memory that
// the engine exposes, or to respond. It listens on the source address of its own connections, at a free port. Without a host in
// protocol that address is the first one of an interface that leads to other hosts, not the loopback. A program that calls only
// this host opens "ofi+tcp://127.0.0.1". An engine with Config.Firewalled does not listen.
//
// ctx is as for Listen.
func Open(ctx context.Context, protocol string, cfg *Config) (*Engine, error) {
	return open(ctx, protocol, false, cfg)
}

func open(ctx context.Context, addr string, listen bool, cfg *Config) (e *Engine, err error) {
	scheme, _, _ := strings.Cut(addr, ":")
	listener, where, err := cfg.listener(addr, listen)
	defer func() {
		if err != nil && cfg != nil && cfg.Listener != nil {
			_ = cfg.Listener.Close() // the caller receives the earlier error, and the engine may have closed it
		}
	}()
	if err != nil {
		return nil, err
	}
	switch scheme {
	case "ofi+tcp", "tcp", "ofi+tcps", "tcps":
		return newEngine(cfg, func(c *Config, h na.Handler) (na.Endpoint, error) {
			t := c.tcp()
			t.Address, t.Listen, t.Handler, t.Listener = ofitcp.OnInterface(where, c.Interface), listen, h, listener
			return c.besideSharedMemory(ctx, addr, listen, h, func() (na.Endpoint, error) { return ofitcp.Open(ctx, t) })
		})
	case "ofi+verbs", "verbs", "ofi+verbs;ofi_rxm", "verbs;ofi_rxm":
		if err := cfg.checkDevice(addr); err != nil {
			return nil, err
		}
		c := *cfg
		c.onDevice = true
		return newEngine(&c, func(c *Config, h na.Handler) (na.Endpoint, error) {
			d := c.device()
			d.Address, d.Listen, d.Handler = addr, listen, h
			return c.besideSharedMemory(ctx, addr, listen, h, func() (na.Endpoint, error) { return c.Device.OpenEndpoint(ctx, d) })
		})
	case "na+sm", "sm":
		cfg, err := cfg.onSharedMemory()
		if err != nil {
			return nil, err
		}
		cfg.AutoSM = false // the network is shared memory already
		return newEngine(cfg, func(c *Config, h na.Handler) (na.Endpoint, error) {
			t, err := c.sm()
			if err != nil {
				return nil, err
			}
			t.Address, t.Listen, t.Handler = addr, listen, h
			ep, err := sm.Open(ctx, t)
			if err != nil {
				return nil, errorFrom("open engine", "", addr, err)
			}
			return ep, nil
		})
	}
	return nil, unknownProtocol("open engine", addr, scheme)
}

// besideSharedMemory opens the network of an engine, with an endpoint in shared memory beside it if AutoSM is set.
func (cfg *Config) besideSharedMemory(ctx context.Context, addr string, listen bool, h na.Handler, network func() (na.Endpoint, error)) (ep na.Endpoint, err error) {
	if cfg.AutoSM {
		var t sm.Config
		if t, err = cfg.sm(); err != nil {
			return nil, err
		}
		t.Listen, t.Handler = listen && !cfg.Firewalled, h
		ep, err = autosm.Open(ctx, t, network)
	} else {
		ep, err = network()
	}
	if err != nil {
		return nil, errorFrom("open engine", "", addr, err)
	}
	return ep, nil
}

// unknownProtocol is the error of an operation on an address of a protocol that has no transport.
func unknownProtocol(op, addr, scheme string) error {
	return &Error{Op: op, Addr: addr, Code: codes.ProtoNoSupport, Err: fmt.Errorf("protocol %q is not known; use ofi+tcp, ofi+tcps, ofi+verbs or na+sm", scheme)}
}

// newEngine makes an engine on the endpoint that connect opens.
func newEngine(cfg *Config, connect func(*Config, na.Handler) (na.Endpoint, error)) (*Engine, error) {
	e := &Engine{cfg: cfg.filled(), providers: map[uint16]*Provider{}, born: time.Now()}
	if err := e.cfg.check(); err != nil {
		return nil, err
	}
	if p := e.cfg.Parent; p != nil && p.gate.Closed() {
		return nil, errorFrom("open engine", "", p.Addr(), fmt.Errorf("its parent: %w", ErrClosed))
	}
	e.log = e.cfg.Logger
	e.cfg.quota, e.cfg.trail = hostquota.NewBook(e.cfg.limits()), audit.New(e.log)
	e.cfg.gate = admission.New(e.cfg.Admit, func(value any, stack []byte) { e.panicked("Config.Admit panics", "none", nil, value, stack) })
	e.ops.init()
	e.cfg.clock, e.cfg.waits = e.ops.clock, progress.New(progress.Mode(e.cfg.Progress.Mode))
	e.unlogged = cfg == nil || cfg.Logger == nil
	e.ops.watch.init(e)
	e.contexts.init()
	e.ending.init()
	if err := e.handlers.init(e); err != nil {
		return nil, err
	}
	e.core = hg.New(e.cfg.class(&e.handlers))
	ep, err := connect(&e.cfg, e.core)
	if err != nil {
		e.handlers.pools.leave(e)
		return nil, err
	}
	e.net = ep
	e.group, _ = ep.(na.GroupDriver)
	e.core.Attach(ep)
	e.self = &Endpoint{e: e, addr: ep.Addr()}
	if ep.Listening() {
		e.serveInternal()
	}
	if e.cfg.Setup != nil {
		if err := e.cfg.Setup(e); err != nil {
			return nil, errorFrom("set up engine", "", e.Addr(), errors.Join(err, e.Close()))
		}
	}
	e.core.Serve()
	return e, nil
}

// Addr returns the engine's own address, which peers pass to Lookup: Config.Advertise, or the address that the engine has
// chosen. Peers of an engine that [Open] made use the address to access its memory; the engine answers their calls codes.NoEntry.
func (e *Engine) Addr() string { return e.self.String() }

// Self returns the engine's own address. Calls to it are made in the process, without the network.
func (e *Engine) Self() *Endpoint { return e.self }

// Config returns a copy of the configuration in force, with defaults filled in and without the Listener (margo_get_config).
// The configuration of the parent has the pools of an engine with a Config.Parent.
func (e *Engine) Config() *Config {
	c := e.cfg
	c.Interceptors = append([]Interceptor(nil), c.Interceptors...)
	c.quota, c.trail, c.clock, c.waits, c.gate = nil, nil, nil, nil, nil
	c.Listener = nil // it is used up
	if c.Parent == nil {
		c.HandlerWarning = e.handlers.pools.warning()
		c.Pools = nil
		for _, p := range e.handlers.pools.all() {
			c.Pools = append(c.Pools, p.Config())
		}
	}
	return &c
}

// Lookup returns the Endpoint for an address in the form of [Engine.Addr] or of C's margo_addr_to_string. Over ofi+tcp a host name
// may replace the IP address.
//
// Lookup only parses addr and does not block: the first operation resolves a name and connects, so it is the first to fail if no
// such process runs. The error of Lookup names the faulty part of addr.
func (e *Engine) Lookup(addr string) (*Endpoint, error) {
	if err := e.begin(); err != nil {
		return nil, errorFrom("look up", "", addr, err)
	}
	defer e.end()
	a, err := e.net.Lookup(addr)
	if err != nil {
		return nil, errorFrom("look up", "", addr, err)
	}
	return newEndpoint(e, a), nil
}

// begin starts an operation; it fails once the engine is closed. Every begin that returns nil is followed by one end.
func (e *Engine) begin() error {
	if !e.gate.Acquire() {
		return ErrClosed
	}
	return nil
}

func (e *Engine) end() { e.gate.Release() }

// note logs msg about peer at Warn, within the limit on lines for each host (package audit).
func (e *Engine) note(peer na.Addr, msg string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !e.log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	suppressed, ok := audit.Allow(peer.Account().Host())
	if !ok {
		return
	}
	attrs = append([]slog.Attr{slog.String(logPeer, peer.String())}, attrs...)
	if suppressed > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", suppressed))
	}
	e.log.LogAttrs(ctx, slog.LevelWarn, msg, attrs...)
}

// maxLogged limits the text of an error or a panic in bytes, because it may contain arguments of a peer: a handler's error names the
// file that it does not find, and the name has a gigabyte.
const maxLogged = 4096

// logged is an error of the program, or the value of a panic, in a log line.
type logged struct{ value any }

// LogValue implements [slog.LogValuer].
func (l logged) LogValue() slog.Value {
	if text := fmt.Sprint(l.value); len(text) > maxLogged {
		return slog.StringValue(shortened(text))
	}
	return slog.AnyValue(l.value)
}

// shortened returns the first bytes of a text that is longer than maxLogged, with its length.
func shortened(text string) string {
	if len(text) <= maxLogged {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxLogged], ""), len(text))
}

// panics limits the lines about panics for each caller's host. It is a limit of its own, because other lines about the host could
// otherwise suppress the first panic.
var panics = audit.NewLimiter()

// panicked logs a panic in the program's handler or timer. Without a logger it prints the panic on standard error, as package
// net/http does. peer is the caller of the handler, and nil for a timer.
func (e *Engine) panicked(msg, rpc string, peer na.Addr, value any, stack []byte) {
	from, host := "none", hostquota.Host{}
	if peer != nil {
		from, host = peer.String(), peer.Account().Host()
	}
	suppressed, ok := panics.Allow(host)
	if !ok {
		return
	}
	if e.unlogged {
		text := strings.ReplaceAll(shortened(fmt.Sprint(value)), "\n", "\n\t") // indented, so that a line of value cannot pass for a log line
		if suppressed > 0 {
			text += fmt.Sprintf(" (and %d more panics)", suppressed)
		}
		_, _ = fmt.Fprintf(os.Stderr, "cinnabar: %s (rpc %s, peer %s): %s\n%s", msg, rpc, from, text, stack) // there is nowhere else to report a failure
		return
	}
	attrs := []any{logRPC, rpc, logPeer, from, "panic", logged{value}, "stack", string(stack)}
	if suppressed > 0 {
		attrs = append(attrs, "suppressed", suppressed)
	}
	e.log.Error(msg, attrs...)
}
