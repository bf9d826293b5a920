//go:build rdma && linux && cgo

package rdmacore

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"cinnabar/verbs/driver"
)

// cm is the connection manager's event channel of a device.
type cm struct {
	dev     *device
	ch      handle
	watch   *watcher
	wg      sync.WaitGroup // connections and their ends
	closing chan struct{}
}

func newCM(d *device) (*cm, error) {
	ch, fd, err := cmChannel()
	if err != nil {
		return nil, fmt.Errorf("the connection manager does not answer; load it with `modprobe rdma_ucm`: %w", err)
	}
	m := &cm{dev: d, ch: ch, closing: make(chan struct{})}
	if m.watch, err = watch(fd, m.read); err != nil {
		cmDestroyChannel(ch)
		return nil, err
	}
	return m, nil
}

// close ends what waits, and the reader. Connections are over by now.
func (m *cm) close() {
	close(m.closing)
	m.wg.Wait()
	for _, id := range m.rest() {
		id.destroy()
	}
	m.watch.close()
	cmDestroyChannel(m.ch)
}

// rest returns the identifiers that are left: requests that nobody has answered.
func (m *cm) rest() []*cmID {
	m.dev.mu.RLock()
	defer m.dev.mu.RUnlock()
	return slices.Collect(maps.Values(m.dev.ids))
}

// read takes one event and hands it to its identifier.
func (m *cm) read() error {
	ev, err := cmNext(m.ch)
	if err != nil {
		return err
	}
	id := m.dev.findID(ev.ctx)
	switch {
	case ev.child != 0 && id != nil && id.listener != nil:
		id.listener.request(m.adopt(ev))
	case ev.child != 0:
		_ = cmDestroy(ev.child) // the listener is gone; this refuses
	case id != nil:
		id.put(ev)
	}
	return nil
}

// cmIDEvents bounds the events of an identifier that nobody has looked at. A
// connection has six in its life; those about addresses can repeat.
const cmIDEvents = 16

// cmID is an identifier of the connection manager.
type cmID struct {
	cm       *cm
	h        handle
	serial   uint64
	events   chan cmEvent
	listener *listener // set for one that listens
	once     sync.Once
}

// register makes the Go side of an identifier and puts it into the device's table.
func (m *cm) register(l *listener) *cmID {
	id := &cmID{cm: m, events: make(chan cmEvent, cmIDEvents), listener: l}
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	id.serial = m.dev.nextSerial()
	m.dev.ids[id.serial] = id
	return id
}

// newID makes an identifier; l is set for one that is to listen.
func (m *cm) newID(op string, l *listener) (*cmID, error) {
	id := m.register(l)
	h, err := cmCreate(m.ch, id.serial)
	if err != nil {
		id.forget()
		return nil, &driver.Error{Op: op, Err: err}
	}
	id.h = h
	return id, nil
}

// adopt takes over the new identifier of a request. The reader calls it before
// it reads the next event.
func (m *cm) adopt(ev cmEvent) *connRequest {
	id := m.register(nil)
	id.h = ev.child
	cmAdopt(id.h, id.serial)
	local, remote := cmAddrs(id.h)
	return &connRequest{id: id, local: local, remote: remote, param: ev.param}
}

// put gives an event to who waits for it. The reader must not block, so what does
// not fit is dropped.
func (id *cmID) put(ev cmEvent) {
	select {
	case id.events <- ev:
	default:
	}
}

func (id *cmID) forget() {
	d := id.cm.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ids, id.serial)
}

// destroy gives the identifier up; a request that was not answered is refused by it.
func (id *cmID) destroy() {
	id.once.Do(func() {
		id.forget()
		_ = cmDestroy(id.h) // it fails only for a handle that is none
	})
}

// wait returns the next event of one of the wanted types, or the failure that
// came instead.
func (id *cmID) wait(ctx context.Context, op string, want ...driver.CMEventType) (cmEvent, error) {
	for {
		select {
		case ev := <-id.events:
			if slices.Contains(want, ev.typ) {
				return ev, nil
			}
			if err := id.failure(op, ev); err != nil {
				return ev, err
			}
		case <-ctx.Done():
			return cmEvent{}, &driver.Error{Op: op, Err: context.Cause(ctx)}
		case <-id.cm.closing:
			return cmEvent{}, driver.Errorf(op, driver.ErrClosed, "the device is closed")
		}
	}
}

// Reasons of a rejection, from the InfiniBand specification's table of reject reasons.
const (
	rejectTimeout    = 4
	rejectNoListener = 8
	rejectStale      = 10
	rejectConsumer   = 28
)

var rejectReasons = map[int]string{
	rejectTimeout:    "it gave up waiting",
	rejectNoListener: "nothing listens at that address",
	rejectStale:      "it takes the queue pair's number for one of an older connection",
}

// failure turns an event that ends an attempt into an error; nil for others.
func (id *cmID) failure(op string, ev cmEvent) error {
	var cause error
	if ev.status < 0 {
		cause = syscall.Errno(-ev.status)
	}
	switch ev.typ {
	case driver.CMRejected:
		r := &driver.RejectedError{PrivateData: ev.param.data}
		switch reason, known := rejectReasons[ev.status]; {
		case known:
			r.Reason = reason
		case ev.status != rejectConsumer && ev.status > 0:
			r.Reason = fmt.Sprintf("reason %d of the connection manager", ev.status)
		}
		return &driver.Error{Op: op, Err: r}
	case driver.CMAddrError:
		return &driver.Error{Op: op, Err: cause, Detail: "no RDMA device reaches the address; is there a route, and does the peer answer ARP or ND?"}
	case driver.CMRouteError:
		return &driver.Error{Op: op, Err: cause, Detail: "no path to the address"}
	case driver.CMUnreachable:
		return &driver.Error{Op: op, Err: cause, Detail: "the peer does not answer; is its device up, and UDP port 4791 (RoCE v2) open?"}
	case driver.CMConnectError:
		return &driver.Error{Op: op, Err: cause, Detail: "the exchange with the peer failed"}
	case driver.CMDeviceRemoval:
		return &driver.Error{Op: op, Err: cause, Detail: "device " + id.cm.dev.name + " was removed"}
	case driver.CMDisconnected:
		return driver.Errorf(op, driver.ErrDisconnected, "the peer gave up")
	default:
		return nil
	}
}

// checkDevice refuses an identifier that was bound to another device: routing
// picks it by address.
func (id *cmID) checkDevice(op string, addr netip.AddrPort) error {
	if got := cmDevice(id.h); got != id.cm.dev.name {
		return driver.Errorf(op, driver.ErrInvalid, "%v belongs to device %s, not %s; open that one, or use an address of this one's network", addr, got, id.cm.dev.name)
	}
	return nil
}
