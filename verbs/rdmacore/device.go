//go:build linux

package rdmacore

import (
	"sync"
	"sync/atomic"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/eventqueue"
)

// device implements verbs.DeviceDriver on an opened context.
//
// Locks, in the order in which they may be nested: qp.sendMu, qp.recvMu, cq.mu,
// then srq.mu or qp.mu, device.mu last; listener.mu stands before device.mu, beside
// the others. None is held while a goroutine waits.
type device struct {
	name  string
	ctx   contextHandle
	ports int
	attr  verbs.DeviceAttr // without ports; does not change
	// The longest message of the ports.
	maxMessage uint64
	async      *watcher
	cm         *cm

	events  eventqueue.Queue
	removal removal
	stats   stats

	pds       atomic.Int64
	listeners atomic.Int64

	mu sync.RWMutex
	// Objects by their serial numbers, which are never used again: an event of the
	// library about an object that is gone finds nothing.
	// +checklocks:mu
	qps map[uint64]*qp
	// +checklocks:mu
	cqs map[uint64]*cq
	// +checklocks:mu
	srqs map[uint64]*srq
	// +checklocks:mu
	ids map[uint64]*cmID
	// +checklocks:mu
	serial uint64
	// +checklocks:mu
	closed bool
}

// stats counts the work requests, completions and calls of the device.
type stats struct {
	sends, recvs, completions, crossings atomic.Uint64
	polls                                atomic.Uint64 // crossings that poll
	connections                          atomic.Uint64
}

func (d *device) Stats() verbs.Stats {
	s := &d.stats
	return verbs.Stats{
		"post_send": s.sends.Load(), "post_recv": s.recvs.Load(), "completions": s.completions.Load(),
		"crossings": s.crossings.Load(), "poll_crossings": s.polls.Load(), "connections": s.connections.Load(),
	}
}

// nextSerial returns a number for a new object; it fits the 29 bits of a token.
//
// +checklocks:d.mu
func (d *device) nextSerial() uint64 {
	for {
		d.serial = (d.serial + 1) & serialMask
		if d.serial != 0 && d.qps[d.serial] == nil && d.cqs[d.serial] == nil && d.srqs[d.serial] == nil && d.ids[d.serial] == nil {
			return d.serial
		}
	}
}

func (d *device) findQP(serial uint64) *qp {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.qps[serial]
}

func (d *device) findCQ(serial uint64) *cq {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.cqs[serial]
}

func (d *device) findSRQ(serial uint64) *srq {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.srqs[serial]
}

func (d *device) findID(serial uint64) *cmID {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.ids[serial]
}

// Close releases the device.
func (d *device) Close() error {
	const op = "close device"
	d.mu.Lock()
	if d.closed { // and the library's failure was reported then
		d.mu.Unlock()
		return nil
	}
	if p, c, l := d.pds.Load(), len(d.cqs), d.listeners.Load(); p+l > 0 || c > 0 {
		d.mu.Unlock()
		return verbs.Errorf(op, verbs.ErrBusy, "%d protection domains, %d completion queues and %d listeners of it are open; close them first", p, c, l)
	}
	d.closed = true
	d.mu.Unlock()
	d.cm.close()
	d.async.close()
	d.events.Close()
	if err := d.released(closeContext(d.ctx)); err != nil {
		return &verbs.Error{Op: op, Detail: d.name, Err: err}
	}
	return nil
}

func (d *device) iwarp() bool { return d.attr.Transport == verbs.TransportIWARP }
