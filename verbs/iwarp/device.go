package iwarp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tokenproof"
	"cinnabar/verbs"
	"cinnabar/verbs/internal/eventqueue"
)

// Open makes a software device. It uses no resource until connections are made.
// Several devices may be open at once; their objects do not mix.
func Open(cfg Config) (*verbs.Device, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	d := &device{cfg: cfg, caps: cfg.caps(), trail: audit.New(cfg.Logger), book: hostquota.NewBook(cfg.limits()), brake: brake{limit: cfg.DeniedLimit}, policy: progress.New(progress.Balanced), sharedStall: sharedStall, leastIdle: leastIdle, handshakes: handshakes{leastStay: leastStay},
		qps: make(map[uint32]*qp), conns: make(map[*conn]struct{}), requests: make(map[*connRequest]struct{})}
	d.own = d.book.Account(hostquota.Host{})
	d.keys.init()
	d.events.Init()
	d.guid = machineGUID(cfg.Name)
	return verbs.NewDevice(d), nil
}

func (c Config) caps() verbs.Caps {
	caps := verbs.CapSendInvalidate | verbs.CapSRQ | verbs.CapRNRWait | verbs.CapActiveFirst |
		verbs.CapPassiveSend | verbs.CapMultiSGERead | verbs.CapMW2
	if !c.NoImmediates {
		caps |= verbs.CapWriteImm | verbs.CapSendImm
	}
	if !c.NoAtomics {
		caps |= verbs.CapAtomics
	}
	if c.ConfirmWrites {
		caps |= verbs.CapExactStatus
	}
	if sockio.HasTypeOfService {
		caps |= verbs.CapTypeOfService
	}
	return caps
}

// device implements verbs.DeviceDriver.
type device struct {
	cfg    Config
	caps   verbs.Caps
	guid   verbs.GUID
	keys   keyTable
	events eventqueue.Queue
	watch  progress.Watcher
	stats  stats
	trail  *audit.Trail
	book   *hostquota.Book
	own    *hostquota.Account // of connections that this side has dialled
	brake  brake
	pace   pace
	nonces tokenproof.Nonces
	policy *progress.Policy // decides how long background readers and goroutines in Park spin

	sharedStall time.Duration // a constant, but for tests
	leastIdle   time.Duration // likewise

	handshakes handshakes
	scan       scan

	pds       atomic.Int64
	cqs       atomic.Int64
	listeners atomic.Int64
	given     atomic.Bool    // a listener of the device has Config.Listener
	wg        sync.WaitGroup // every goroutine of the device

	mu sync.Mutex
	// +checklocks:mu
	qps map[uint32]*qp
	// +checklocks:mu
	lastQP uint32
	// also those that linger after their queue pair has gone
	// +checklocks:mu
	conns map[*conn]struct{}
	// addresses of the listeners
	// +checklocks:mu
	listening []netip.AddrPort
	// requests that a program has not answered
	// +checklocks:mu
	requests map[*connRequest]struct{}
	// +checklocks:mu
	closed bool
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	if d.isClosed() {
		return nil, verbs.Errorf("allocate protection domain", verbs.ErrClosed, "the device is closed")
	}
	d.pds.Add(1)
	return &pd{dev: d}, nil
}

func (d *device) CreateCQ(depth int, context any) (verbs.CQDriver, error) {
	const op = "create completion queue"
	if d.isClosed() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the device is closed")
	}
	if err := checkDepth(op, "depth", depth, 1, maxCQE); err != nil {
		return nil, err
	}
	d.cqs.Add(1)
	return newCQ(d, depth, context), nil
}

func (d *device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Close releases the device. Connections that are over but have a last message on
// its way to their peer are waited for, two seconds at most.
func (d *device) Close() error {
	const op = "close device"
	if p, c, l := d.pds.Load(), d.cqs.Load(), d.listeners.Load(); p+c+l > 0 {
		return verbs.Errorf(op, verbs.ErrBusy, "%d protection domains, %d completion queues and %d listeners of it are open; close them first", p, c, l)
	}
	d.mu.Lock()
	d.closed = true
	for r := range d.requests {
		_ = r.tc.Close() // its holder has forgotten it
	}
	d.mu.Unlock()
	d.events.Close()
	d.watch.Close()
	d.wg.Wait()
	return nil
}

func (d *device) addQP(q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		d.lastQP = (d.lastQP + 1) & 0xffffff // queue pair numbers have 24 bits
		if _, taken := d.qps[d.lastQP]; d.lastQP > 1 && !taken {
			break
		}
	}
	q.num = d.lastQP
	d.qps[q.num] = q
}

func (d *device) dropQP(q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.qps, q.num)
}

// addConn registers c and starts its background reader, unless the device is closed.
func (d *device) addConn(c *conn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return verbs.Errorf("connect", verbs.ErrClosed, "the device is closed")
	}
	d.conns[c] = struct{}{}
	d.stats.connections.Add(1)
	d.wg.Go(c.readLoop)
	return nil
}

// ask registers a request that waits for its answer; answer takes it off again.
func (d *device) ask(r *connRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests[r] = struct{}{}
}

func (d *device) answer(r *connRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.requests, r)
}

// dropConn is called by the last of c's two goroutines.
func (d *device) dropConn(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
	d.stats.fold(c)
}

// Query describes the device. Its one port is the machine's TCP/IP stack.
func (d *device) Query() (verbs.DeviceAttr, error) {
	atomicCap := verbs.AtomicNone
	if d.caps.Has(verbs.CapAtomics) {
		atomicCap = verbs.AtomicGlob // the processor's own atomic instructions
	}
	return verbs.DeviceAttr{
		Name: d.cfg.Name, Transport: verbs.TransportIWARP, NodeType: verbs.NodeRNIC,
		NodeGUID: d.guid, SysImageGUID: d.guid, FWVersion: "software",
		Caps: d.caps, QPTypes: []verbs.QPType{verbs.RC},
		MaxMRSize: 1<<63 - 1, PageSizeCap: 4096,
		MaxQP: maxObjects, MaxQPWR: maxQueueWR, MaxSGE: maxSGE, MaxSGERead: maxSGE, MaxInline: maxInline,
		MaxCQ: maxObjects, MaxCQE: maxCQE, MaxMR: maxObjects, MaxPD: maxObjects,
		MaxQPRDAtom: maxDepth, MaxQPInitRDAtom: maxDepth,
		MaxSRQ: maxObjects, MaxSRQWR: maxQueueWR, MaxSRQSGE: maxSGE,
		MaxMW: maxObjects, AtomicCap: atomicCap, MaxPrivateData: d.cfg.maxPrivateData(),
		ReadSink: verbs.LocalWrite, // placeResponse stores a response by the read that it answers
		Ports:    []verbs.PortAttr{d.port()},
	}, nil
}

func (d *device) port() verbs.PortAttr {
	p := verbs.PortAttr{Num: 1, State: verbs.PortActive, MaxMTU: 5, ActiveMTU: 5, LinkLayer: "Ethernet",
		MaxMsgSize: maxMessage, PKeys: []uint16{0xffff}}
	for _, a := range hostAddrs() {
		p.Addrs = append(p.Addrs, a)
		p.GIDs = append(p.GIDs, a.As16())
	}
	return p
}

// hostAddrs lists the unicast addresses of the host's interfaces, loopback last.
func hostAddrs() []netip.Addr {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the device works all the same; it only has nothing to show
	}
	var addrs, loopback []netip.Addr
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		if ip = ip.Unmap(); ip.IsLoopback() {
			loopback = append(loopback, ip)
		} else {
			addrs = append(addrs, ip)
		}
	}
	return append(addrs, loopback...)
}

// NextEvent implements verbs.DeviceDriver.
func (d *device) NextEvent(ctx context.Context) (verbs.DeviceEvent, error) { return d.events.Next(ctx) }

func (d *device) raise(ev verbs.DeviceEvent) { d.events.Add(ev) }

// machineGUID returns the GUID of a device of this machine. Like the GUID of an adapter it is the same in each process and after a
// restart. It is a hash of the device's name and of the machine's identity: /etc/machine-id if it is set, otherwise the host's name
// and the hardware address of an interface. The hash hides these from peers.
func machineGUID(name string) verbs.GUID {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || !isMachineID(id) {
		host, _ := os.Hostname()    // without a name the address is the identity
		list, _ := net.Interfaces() // without an address the name is the identity
		id = hostIdentity(host, list)
	}
	sum := sha256.Sum256(append([]byte("cinnabar iwarp device "+name+"\n"), id...))
	return verbs.GUID(binary.BigEndian.Uint64(sum[:])&^(1<<56) | 1<<57) // locally administered
}

// isMachineID reports whether text is an id, 128 bits in hexadecimal, not all zero. Images of systems that have not been started
// yet have an empty file instead, or the word "uninitialized" (machine-id(5)), which is no machine's own.
func isMachineID(text []byte) bool {
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	return err == nil && len(b) == 16 && slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

// hostIdentity returns the host's name and the hardware address of its first interface that has one given by its maker, or
// else of its first with any. Interfaces that come later, such as those of virtual machines and containers, do not change it.
func hostIdentity(host string, list []net.Interface) []byte {
	list = slices.SortedFunc(slices.Values(list), func(a, b net.Interface) int { return cmp.Compare(a.Index, b.Index) })
	var address net.HardwareAddr
	for _, i := range list {
		switch a := i.HardwareAddr; {
		case len(a) == 0 || !slices.ContainsFunc(a, func(x byte) bool { return x != 0 }):
		case a[0]&2 == 0: // the bit of addresses that are locally administered
			return append([]byte(host+"\n"), a...)
		case address == nil:
			address = a
		}
	}
	return append([]byte(host+"\n"), address...)
}
