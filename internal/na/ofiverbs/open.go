package ofiverbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/progress"
	"cinnabar/verbs"
)

// Config says how an endpoint is opened. The zero value of each field but Device is its default.
type Config struct {
	// Device is the device that the endpoint uses. Its owner closes it after the endpoint.
	Device *verbs.Device
	// Address is the address to listen on: "ofi+verbs", "ofi+verbs://host", "ofi+verbs://:port", "ofi+verbs://device/host:port", and the
	// same with "verbs", "verbs;ofi_rxm" or "ofi+verbs;ofi_rxm". host is an address of the device, the name of an interface, or the name
	// of the device. Without a host the endpoint listens on the first address of the device: IPv4 before IPv6, and the loopback first if
	// Listen is set and the device has it, otherwise last. Empty is "ofi+verbs".
	Address string
	// Subnet is the network in which the endpoint's address lies; the zero value: any.
	Subnet netip.Prefix
	// Firewalled makes an endpoint that refuses the connection requests of peers. Peers reach it over the connections that it has made. Its
	// own connection requests cannot announce this, because the protocol has no field for it. A peer without a connection therefore dials
	// the endpoint, and is refused.
	Firewalled bool
	// Listen says that peers may send requests. They can reach the endpoint either way, for its memory.
	Listen bool
	// Handler takes the requests. Without Listen it is to refuse them, or may be nil: then they are dropped unanswered.
	Handler na.Handler
	// Logger logs peers that break the protocol and, at Debug, connections. Nil discards.
	Logger *slog.Logger
	// Progress decides how long goroutines poll the device before they park; nil: a Policy of mode Balanced.
	Progress *progress.Policy
	// MaxRequest and MaxResponse are the sizes of whole messages in bytes, the sender's address of a request included: 0 stands for
	// 4096, and 16384 is the most. Mercury's peers must be configured alike, because a longer message ends the connection.
	MaxRequest, MaxResponse int
	// DialTimeout bounds an attempt to connect, and the repetition of attempts that the peer refuses because it is connecting itself:
	// 0 stands for 10 s.
	DialTimeout time.Duration
	// DialRetry is the time for which the endpoint redials a host that refuses connections; 0: no redial.
	DialRetry time.Duration
	// KeepAlive is the time after which a silent host counts as dead; 0: 15 s; negative: no limit. After three eighths of that time without a
	// packet of the peer the endpoint posts a read of no bytes, which the peer's device answers.
	KeepAlive time.Duration
	// SendTimeout is the time after which a connection counts as lost because the peer posts no receives for messages that wait; 0: 15 s;
	// negative: no limit.
	SendTimeout time.Duration
	// LateAccess is the time for which the endpoint keeps closed memory for the servers of given-up calls (late.go); 0: 60 s; negative: the
	// endpoint keeps none.
	LateAccess time.Duration
	// Resolver resolves the names of peers' hosts; nil: net.DefaultResolver.
	Resolver *net.Resolver
	// Admit accepts or refuses the peers that connect; nil: it accepts all.
	Admit *admission.Gate
	// Quota counts the resources that each remote host holds; nil: a Book without limits.
	Quota *hostquota.Book
	// RegCacheBytes is the number of bytes of slices that stay registered, and pinned, for further transfers; 0: 64 MiB; negative: none.
	RegCacheBytes int64
	// OwnQueues is the number of connections that have receive queues of their own. While there are more, a connection that a peer makes gets a
	// shared one, if the device has such queues and lets a packet wait for a receive; 0: 64; negative: each connection that a peer makes gets one.
	OwnQueues int
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}

// Defaults and limits of Config.
const (
	defaultMessage  = 4096
	defaultDial     = 10 * time.Second
	defaultRegCache = 64 << 20
	defaultSilence  = 15 * time.Second
	defaultLate     = time.Minute
	defaultOwn      = 64
	smallestMessage = 64
)

// withDefaults returns cfg with the defaults in place of zeros.
func (cfg Config) withDefaults() (Config, error) {
	setDefault(&cfg.Address, "ofi+verbs")
	setDefault(&cfg.MaxRequest, defaultMessage)
	setDefault(&cfg.MaxResponse, defaultMessage)
	setDefault(&cfg.DialTimeout, defaultDial)
	setDefault(&cfg.RegCacheBytes, defaultRegCache)
	setDefault(&cfg.KeepAlive, defaultSilence)
	setDefault(&cfg.SendTimeout, defaultSilence)
	setDefault(&cfg.LateAccess, defaultLate)
	setDefault(&cfg.OwnQueues, defaultOwn)
	if cfg.Progress == nil {
		cfg.Progress = progress.New(progress.Balanced)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	if cfg.Quota == nil {
		cfg.Quota = hostquota.NewBook(hostquota.Limits{})
	}
	if cfg.Audit == nil {
		cfg.Audit = audit.New(cfg.Logger)
	}
	switch {
	case cfg.Device == nil:
		return cfg, errors.New("Config.Device is nil; open an RDMA device before")
	case cfg.Listen && cfg.Handler == nil:
		return cfg, errors.New("Config.Listen needs a Config.Handler")
	case cfg.MaxRequest < smallestMessage || cfg.MaxRequest > eagerLimit:
		return cfg, fmt.Errorf("Config.MaxRequest is %d; it must be from %d to %d", cfg.MaxRequest, smallestMessage, eagerLimit)
	case cfg.MaxResponse < smallestMessage || cfg.MaxResponse > eagerLimit:
		return cfg, fmt.Errorf("Config.MaxResponse is %d; it must be from %d to %d", cfg.MaxResponse, smallestMessage, eagerLimit)
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

// Open opens an endpoint, which lives until Close. The end of ctx does not end Open or the endpoint, because Open resolves no name and waits for
// nothing.
func Open(ctx context.Context, cfg Config) (*Endpoint, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "open", Err: err}
	}
	attr, err := cfg.Device.Query()
	if err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Err: err}
	}
	at, err := choose(cfg.Address, &attr, cfg.Subnet, cfg.Listen)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		cfg: cfg, attr: attr, askTime: askTime, finished: make(chan struct{}),
		book: peerbook.NewBook[netip.AddrPort, peer](), conns: make(map[*conn]struct{}), memory: make(map[*memory]struct{}),
	}
	e.readers = hostquota.NewReaders(cfg.Quota, runtime.Gosched)
	if e.shape, err = shapeOf(&cfg, &attr); err != nil {
		return nil, &na.Error{Kind: na.Unsupported, Op: "open", Addr: attr.Name, Err: err}
	}
	e.sharedShape = e.shape.ofShared(&attr)
	if e.pd, err = cfg.Device.AllocPD(); err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: attr.Name, Err: err}
	}
	if e.byteMR, err = e.pd.RegMR(make([]byte, 1), verbs.RemoteRead); err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: attr.Name, Err: errors.Join(err, e.pd.Close())}
	}
	e.locals.init(e)
	if err = e.tryMemory(); err == nil {
		err = e.locals.bounce.measure(e.pd)
	}
	if err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: attr.Name, Err: errors.Join(err, e.byteMR.Close(), e.pd.Close())}
	}
	if e.ln, err = verbs.Listen(cfg.Device, at.bind); err != nil {
		kind := na.NotAvailable
		if errors.Is(err, syscall.EADDRINUSE) {
			kind = na.InUse
		}
		return nil, &na.Error{Kind: kind, Op: "listen", Addr: formatAddr(at.bind), Err: errors.Join(err, e.byteMR.Close(), e.pd.Close())}
	}
	e.self = netip.AddrPortFrom(at.self, e.ln.Addr().Port())
	e.anyAddr = at.bind.Addr().IsUnspecified()
	e.prefix = ofiaddr.Append(nil, e.self)
	e.process, e.ownProcess = randomProcess(), randomProcess()
	processes.add(e.process)
	e.ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.own = e.peer(e.self)
	e.initNames()
	cfg.Logger.Debug("endpoint opened", "address", e.own.str, "device", attr.Name)
	e.wg.Go(e.acceptLoop)
	if w := newWatch(e.cfg.KeepAlive, e.cfg.SendTimeout); w.interval > 0 {
		e.wg.Go(func() { e.watch(&w) })
	}
	return e, nil
}

// tryMemory registers as much memory as the buffers of one connection have, and deregisters it. If the limit on locked memory is lower, Open
// fails with the device's error, which names the limit and the remedy. Otherwise the program would get that error only from its first call.
func (e *Endpoint) tryMemory() error {
	n := (e.shape.receives + e.shape.slots) * e.shape.receive
	mr, err := e.pd.RegMR(make([]byte, n), verbs.LocalWrite)
	if err != nil {
		return fmt.Errorf("the buffers of one connection need %d bytes of registered memory with the present Config.MaxRequest and MaxResponse, and the device registers less: %w", n, err)
	}
	return mr.Close()
}

// randomProcess returns a number for this endpoint. Peers recognize a restarted process by another number, and a pid would not do,
// because the first process of each container has the same.
func randomProcess() uint32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if n := binary.LittleEndian.Uint32(b[:]); n != 0 {
			return n
		}
	}
}

// shape has the numbers of queue entries and the sizes of buffers of each connection.
type shape struct {
	receives int // that one connection can use at a time, and completions of which its completion queue has room for
	window   int // receives that a new connection has
	receive  int // bytes of the buffer of a receive
	slots    int // of packets that are being sent
	signal   int // packets of which one is signaled
	oneSided int // reads and writes that are posted at a time
	chunk    uint64
}

const (
	// mostPinned bounds the memory of a connection's buffers, in bytes.
	mostPinned   = 512 << 10
	mostReceives = 64
	leastRecvs   = 8
	mostSlots    = 32
	leastSlots   = 4
	mostOneSided = 16
	mostChunk    = 1 << 20 // bytes of one read or write
	fewestSend   = leastSlots + 1 + probes
	probes       = 1 // reads of no bytes that are posted at a time, see conn.probeLocked
)

// shapeOf returns the shape for a device, or an error that names the limit of the device that is too low.
func shapeOf(cfg *Config, attr *verbs.DeviceAttr) (shape, error) {
	size := headerLen + max(cfg.MaxRequest, cfg.MaxResponse)
	s := shape{receive: size, chunk: mostChunk}
	s.receives = max(leastRecvs, min(mostReceives, mostPinned*2/3/size))
	s.slots = max(leastSlots, min(mostSlots, mostPinned/3/size))
	s.oneSided = mostOneSided
	if limit := attr.MaxQPWR; limit > 0 {
		if limit < max(leastRecvs, fewestSend) {
			return s, fmt.Errorf("queues of device %s hold %d work requests (DeviceAttr.MaxQPWR); a connection needs %d", attr.Name, limit, max(leastRecvs, fewestSend))
		}
		s.receives = min(s.receives, limit)
		s.slots = min(s.slots, limit-1-probes)
		s.oneSided = min(s.oneSided, limit-probes-s.slots)
	}
	if limit := attr.MaxCQE; limit > 0 && s.depth() > limit {
		return s, fmt.Errorf("completion queues of device %s hold %d entries (DeviceAttr.MaxCQE); a connection needs %d", attr.Name, limit, s.depth())
	}
	if limit := attr.MaxPrivateData; limit < 1+requestLen+extensionLen {
		return s, fmt.Errorf("connections of device %s carry %d bytes of private data (DeviceAttr.MaxPrivateData); %d are needed", attr.Name, limit, 1+requestLen+extensionLen)
	}
	s.window = s.receives
	s.signal = signalOf(attr, s.slots)
	for i := range attr.Ports {
		if m := attr.Ports[i].MaxMsgSize; m > 0 {
			s.chunk = min(s.chunk, m)
		}
	}
	return s, nil
}

// ofShared returns the shape of connections with a shared receive queue on a device where connections with a queue of their own have the shape
// s. Its receives are 0 if there are no such connections, because the device has no such queues, or ends a connection when a packet finds no
// receive: a peer that sends without credits could then end the connections of others.
func (s shape) ofShared(attr *verbs.DeviceAttr) shape {
	if !attr.Caps.Has(verbs.CapSRQ | verbs.CapRNRWait) {
		return shape{}
	}
	s.receives, s.window, s.slots = sharedMost, sharedWindow, min(s.slots, sharedSlots)
	s.signal = signalOf(attr, s.slots)
	if attr.MaxSRQWR > 0 && attr.MaxSRQWR < sharedMost || attr.MaxCQE > 0 && attr.MaxCQE < s.depth() {
		return shape{}
	}
	return s
}

// quietPart is the part of the slots, 1 of quietPart, that may hold packets of which no completion will come before further packets are sent.
const quietPart = 4

// signalOf returns the number of packets of which one is signaled, for a connection with that many slots. On a device with exact statuses each batch
// has a signaled packet, because the completion shows that the peer's device lives. On the others it shows only that TCP of this host has the bytes.
func signalOf(attr *verbs.DeviceAttr, slots int) int {
	if attr.Caps.Has(verbs.CapExactStatus) {
		return 1
	}
	return max(1, slots/quietPart)
}

// depth returns the number of completions that can wait at a time.
func (s *shape) depth() int { return s.receives + s.sends() }

// sends returns the number of entries of the send queue.
func (s *shape) sends() int { return s.slots + s.oneSided + probes }
