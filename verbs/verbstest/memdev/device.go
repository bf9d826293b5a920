package memdev

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"

	"cinnabar/verbs"
)

// Limits of the device. They are small enough for a test to reach.
const (
	maxDepth       = 4096
	maxSGE         = 16
	maxInline      = 256
	maxRead        = 32
	maxMessage     = 1 << 31 // bytes, the limit of a reliable connection
	maxPrivateData = 196     // bytes, InfiniBand's limit of an REQ less the address header
	defaultBacklog = 256
	firstPort      = 49152
)

// Config is how the device differs from the default. The zero value has every
// ability.
type Config struct {
	Without verbs.Caps // abilities that are taken away
}

// caps are all abilities that the device can have.
const caps = verbs.CapWriteImm | verbs.CapSendImm | verbs.CapSendInvalidate | verbs.CapAtomics |
	verbs.CapSRQ | verbs.CapRNRWait | verbs.CapExactStatus | verbs.CapMultiSGERead

// Device is the device. Its fields after mu are guarded by it, and so is
// everything that can be reached from them.
type Device struct {
	caps verbs.Caps

	mu        sync.Mutex
	closed    bool
	pds, cqs  int
	regions   map[uint32]*mr // by key; lkey and rkey are two entries
	qps       map[uint32]*qp
	listeners map[uint16]*listener
	nextQPN   uint32
	nextPort  uint16
	events    []verbs.DeviceEvent
	wake      chan struct{} // replaced and closed at every change of events and closed
	stats     verbs.Stats
	src, dst  [][]byte // the memory of the request that is carried out
}

// Open makes a device.
func Open(cfg Config) *Device {
	return &Device{
		caps:      caps &^ cfg.Without,
		regions:   make(map[uint32]*mr),
		qps:       make(map[uint32]*qp),
		listeners: make(map[uint16]*listener),
		nextQPN:   1,
		nextPort:  firstPort,
		wake:      make(chan struct{}),
		stats:     verbs.Stats{},
	}
}

// Query describes the device.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	atomics := verbs.AtomicGlob
	if !d.caps.Has(verbs.CapAtomics) {
		atomics = verbs.AtomicNone
	}
	return verbs.DeviceAttr{
		Name: "mem0", Transport: verbs.TransportIB, NodeType: verbs.NodeCA, NodeGUID: 1, SysImageGUID: 1,
		FWVersion: "1", Caps: d.caps, QPTypes: []verbs.QPType{verbs.RC},
		MaxMRSize: 1 << 40, PageSizeCap: 4096, MaxQP: 1 << 20, MaxQPWR: maxDepth, MaxSGE: maxSGE, MaxSGERead: maxSGE,
		MaxInline: maxInline, MaxCQ: 1 << 20, MaxCQE: 1 << 20, MaxMR: 1 << 20, MaxPD: 1 << 20,
		MaxQPRDAtom: maxRead, MaxQPInitRDAtom: maxRead, MaxSRQ: 1 << 20, MaxSRQWR: maxDepth, MaxSRQSGE: maxSGE,
		AtomicCap: atomics, MaxPrivateData: maxPrivateData, ReadSink: verbs.LocalWrite,
		Ports: []verbs.PortAttr{{
			Num: 1, State: verbs.PortActive, MaxMTU: 5, ActiveMTU: 5, LinkLayer: "InfiniBand",
			MaxMsgSize: maxMessage, LID: 1, PKeys: []uint16{0xffff}, GIDs: make([][16]byte, 1),
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()},
		}},
	}, nil
}

// Stats returns the counters: work requests posted and completions made.
func (d *Device) Stats() verbs.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := make(verbs.Stats, len(d.stats))
	for k, v := range d.stats {
		s[k] = v
	}
	return s
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (verbs.PDDriver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, verbs.Errorf("allocate protection domain", verbs.ErrClosed, "the device")
	}
	d.pds++
	return &pd{dev: d}, nil
}

// NextEvent waits for an asynchronous event.
func (d *Device) NextEvent(ctx context.Context) (verbs.DeviceEvent, error) {
	for {
		d.mu.Lock()
		if len(d.events) > 0 {
			ev := d.events[0]
			d.events = d.events[1:]
			d.mu.Unlock()
			return ev, nil
		}
		closed, wake := d.closed, d.wake
		d.mu.Unlock()
		if closed {
			return verbs.DeviceEvent{}, verbs.Errorf("next event", verbs.ErrClosed, "the device")
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return verbs.DeviceEvent{}, ctx.Err()
		}
	}
}

// raise queues an event. The caller holds mu.
func (d *Device) raise(ev verbs.DeviceEvent) {
	d.events = append(d.events, ev)
	d.wakeAll()
}

func (d *Device) wakeAll() {
	close(d.wake)
	d.wake = make(chan struct{})
}

// newKey returns an unused random key. The caller holds mu.
func (d *Device) newKey() uint32 {
	for {
		k := rand.Uint32()
		if _, taken := d.regions[k]; k != 0 && !taken {
			return k
		}
	}
}

// Close releases the device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pds+d.cqs+len(d.listeners) > 0 {
		return verbs.Errorf("close device", verbs.ErrBusy, "%d protection domains, %d completion queues and %d listeners are open",
			d.pds, d.cqs, len(d.listeners))
	}
	if !d.closed {
		d.closed = true
		d.wakeAll()
	}
	return nil
}
