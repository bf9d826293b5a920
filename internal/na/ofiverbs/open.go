package ofiverbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/internal/peerbook"
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
	// Listen says that peers may send requests. They can reach the endpoint either way, for its memory.
	Listen bool
	// Handler takes the requests. Without Listen it is to refuse them, or may be nil: then they are dropped unanswered.
	Handler na.Handler
	// Logger logs peers that break the protocol and, at Debug, connections. Nil discards.
	Logger *slog.Logger
	// Spin is for how long a goroutine polls the device without result before it parks: 0 stands for 50 µs, negative for no time.
	Spin time.Duration
	// MaxRequest and MaxResponse are the sizes of whole messages in bytes, the sender's address of a request included: 0 stands for
	// 4096, and 16384 is the most. Mercury's peers must be configured alike, because a longer message ends the connection.
	MaxRequest, MaxResponse int
	// DialTimeout bounds an attempt to connect, and the repetition of attempts that the peer refuses because it is connecting itself:
	// 0 stands for 10 s.
	DialTimeout time.Duration
	// DialRetry is for how long a host that refuses connections is dialed again: 0 stands for not at all.
	DialRetry time.Duration
	// Quota counts the resources that each remote host holds; nil: a Book without limits.
	Quota *hostquota.Book
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}

// Defaults and limits of Config.
const (
	defaultSpin     = 50 * time.Microsecond
	defaultMessage  = 4096
	defaultDial     = 10 * time.Second
	smallestMessage = 64
)

// withDefaults returns cfg with the defaults in place of zeros.
func (cfg Config) withDefaults() (Config, error) {
	setDefault(&cfg.Address, "ofi+verbs")
	setDefault(&cfg.Spin, defaultSpin)
	setDefault(&cfg.MaxRequest, defaultMessage)
	setDefault(&cfg.MaxResponse, defaultMessage)
	setDefault(&cfg.DialTimeout, defaultDial)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
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

// Open opens an endpoint, which lives until Close. ctx bounds nothing yet, because no name is resolved.
func Open(ctx context.Context, cfg Config) (*Endpoint, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "open", Err: err}
	}
	attr, err := cfg.Device.Query()
	if err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Err: err}
	}
	at, err := choose(cfg.Address, &attr, cfg.Listen)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		cfg: cfg, attr: attr, maxSpin: int32(max(1, runtime.GOMAXPROCS(0)/2)), finished: make(chan struct{}),
		book: peerbook.NewBook[netip.AddrPort, peer](), conns: make(map[*conn]struct{}), memory: make(map[*memory]struct{}),
	}
	if e.shape, err = shapeOf(&cfg, &attr); err != nil {
		return nil, &na.Error{Kind: na.Unsupported, Op: "open", Addr: attr.Name, Err: err}
	}
	if e.pd, err = cfg.Device.AllocPD(); err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: attr.Name, Err: err}
	}
	if e.byteMR, err = e.pd.RegMR(make([]byte, 1), verbs.RemoteRead); err != nil {
		return nil, &na.Error{Kind: na.NotAvailable, Op: "open", Addr: attr.Name, Err: errors.Join(err, e.pd.Close())}
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
	e.process = randomProcess()
	e.ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.own = e.peer(e.self)
	cfg.Logger.Debug("endpoint opened", "address", e.own.str, "device", attr.Name)
	e.wg.Go(e.acceptLoop)
	return e, nil
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
	receives int // posted
	receive  int // bytes of the buffer of a receive
	slots    int // of packets that are being sent
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
	fewestSend   = leastSlots + 1
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
		s.slots = min(s.slots, limit-1)
		s.oneSided = min(s.oneSided, limit-s.slots)
	}
	if limit := attr.MaxCQE; limit > 0 && s.depth() > limit {
		return s, fmt.Errorf("completion queues of device %s hold %d entries (DeviceAttr.MaxCQE); a connection needs %d", attr.Name, limit, s.depth())
	}
	if limit := attr.MaxPrivateData; limit < 1+requestLen+extensionLen {
		return s, fmt.Errorf("connections of device %s carry %d bytes of private data (DeviceAttr.MaxPrivateData); %d are needed", attr.Name, limit, 1+requestLen+extensionLen)
	}
	for i := range attr.Ports {
		if m := attr.Ports[i].MaxMsgSize; m > 0 {
			s.chunk = min(s.chunk, m)
		}
	}
	return s, nil
}

// depth returns the number of completions that can wait at a time.
func (s *shape) depth() int { return s.receives + s.slots + s.oneSided }
