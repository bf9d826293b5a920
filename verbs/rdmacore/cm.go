//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

// cm is the connection manager's event channel of a device.
type cm struct {
	dev     *device
	ch      cmChannelHandle
	watch   *watcher
	wg      sync.WaitGroup // connections and their ends
	closing chan struct{}
	deaf    chan struct{} // closed when the reading of events has failed
	failed  error         // the cause, set before deaf is closed
}

func newCM(d *device) (*cm, error) {
	ch, fd, err := cmChannel()
	if err != nil {
		return nil, cmError(err)
	}
	m := &cm{dev: d, ch: ch, closing: make(chan struct{}), deaf: make(chan struct{})}
	if m.watch, err = watch(fd, m.read); err != nil {
		cmDestroyChannel(ch)
		return nil, err
	}
	return m, nil
}

// lookOut binds an identifier to the device and keeps it, so that the connection
// manager reports the device's removal even when nothing is connected. A device
// without an address stays without one.
func (m *cm) lookOut(addrs []netip.Addr) {
	for _, a := range addrs {
		id, err := m.newID("watch device", nil)
		if err != nil {
			return // Listen and Dial meet it too, and say so
		}
		if cmBind(id.h, netip.AddrPortFrom(a, 0)) == nil && cmDevice(id.h) == m.dev.name {
			return // close destroys it
		}
		id.destroy()
	}
}

// close ends the goroutines that wait, and the reader. Connections are over by now.
func (m *cm) close() {
	close(m.closing)
	m.wg.Wait()
	m.watch.close() // before the rest: the reader makes identifiers for requests
	for _, id := range m.rest() {
		id.destroy()
	}
	cmDestroyChannel(m.ch)
}

// rest returns the identifiers that are left: requests that were never answered.
func (m *cm) rest() []*cmID {
	m.dev.mu.RLock()
	defer m.dev.mu.RUnlock()
	return slices.Collect(maps.Values(m.dev.ids))
}

// read takes one event and hands it to its identifier.
func (m *cm) read() error {
	ev, err := cmNext(m.ch)
	if err != nil {
		if !errors.Is(err, syscall.EAGAIN) {
			m.failed = err
			close(m.deaf)
		}
		return err
	}
	if ev.typ == rdmacm.EventDeviceRemoval && ev.device == m.dev.name {
		m.dev.remove()
	}
	id, request := m.dev.findID(ev.ctx), ev.typ == rdmacm.EventConnectRequest
	switch {
	case request && id != nil && id.listener != nil:
		id.listener.request(m.adopt(ev))
	case request:
		_ = cmDestroy(ev.child) // the listener is gone; this refuses
	case id != nil:
		id.put(ev)
	}
	return nil
}

// cmIDEvents bounds the queued events of an identifier. A
// connection has six in its life; those about addresses can repeat.
const cmIDEvents = 16

// cmID is an identifier of the connection manager.
type cmID struct {
	cm       *cm
	h        cmHandle
	serial   uint64
	events   chan cmEvent
	listener *listener // set for one that listens
	peer     string    // where it dials, for errors: "10.9.0.1:7174: "
	once     sync.Once
}

// register puts an identifier, which is complete, into the device's table.
func (m *cm) register(id *cmID) {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	m.dev.ids[id.serial] = id
}

// newSerial returns the number for a new identifier.
func (m *cm) newSerial() uint64 {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	return m.dev.nextSerial()
}

// newID makes an identifier; l is set for one that is to listen. It has no events before its first command.
func (m *cm) newID(op string, l *listener) (*cmID, error) {
	id := &cmID{cm: m, serial: m.newSerial(), events: make(chan cmEvent, cmIDEvents), listener: l}
	var err error
	if id.h, err = cmCreate(m.ch, id.serial); err != nil {
		return nil, m.commandError(op, err)
	}
	m.register(id)
	return id, nil
}

// commandError is the error about a command that the connection manager has refused, or about its events, which a command reads too.
func (m *cm) commandError(op string, err error) error {
	switch {
	case m.dev.removal.isGone():
		return m.dev.removedErr(op)
	case errors.Is(err, syscall.EACCES):
		return credentialsError(op, err)
	}
	return &verbs.Error{Op: op, Err: err}
}

// adopt takes over the new identifier of a request. The reader calls it before
// it reads the next event.
func (m *cm) adopt(ev cmEvent) *connRequest {
	id := &cmID{cm: m, h: ev.child, serial: m.newSerial(), events: make(chan cmEvent, cmIDEvents)}
	cmAdopt(id.h, id.serial)
	m.register(id)
	local, remote := cmAddrs(id.h)
	return &connRequest{id: id, local: local, remote: remote, param: ev.param}
}

// put queues an event for the goroutine that works on id. The reader must not
// block, so an event beyond the queue's capacity is dropped.
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
func (id *cmID) wait(ctx context.Context, op string, want ...rdmacm.EventType) (cmEvent, error) {
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
			return cmEvent{}, id.timeout(op, context.Cause(ctx))
		case <-id.cm.dev.removal.gone:
			return cmEvent{}, id.cm.dev.removedErr(op)
		case <-id.cm.closing:
			return cmEvent{}, verbs.Errorf(op, verbs.ErrClosed, "the device is closed")
		case <-id.cm.deaf:
			return cmEvent{}, id.cm.commandError(op, id.cm.failed)
		}
	}
}

const noDeviceAt = "no RDMA device has the address; the loopback addresses have none either"

// noAnswer is the text, with advice, for a peer that keeps silent.
func (id *cmID) noAnswer() string {
	if id.cm.dev.iwarp() {
		return id.peer + "the peer does not answer; is it up, and its TCP port open?"
	}
	return id.peer + "the peer does not answer; is its device up, and UDP port 4791 (RoCE v2) open?"
}

// timeout is the error of a wait that the caller ended. A dial that was let to
// wait for its time met a peer that does not answer.
func (id *cmID) timeout(op string, cause error) error {
	e := &verbs.Error{Op: op, Err: cause, Detail: strings.TrimSuffix(id.peer, ": ")}
	if id.peer != "" && errors.Is(cause, context.DeadlineExceeded) {
		e.Detail = id.noAnswer()
	}
	return e
}

// refused is the error of rdma_connect. On iWARP, which connects by TCP,
// some drivers learn at once that no listener has the port.
func (id *cmID) refused(op string, err error) error {
	e := &verbs.Error{Op: op, Err: err, Detail: strings.TrimSuffix(id.peer, ": ")}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Err = &verbs.RejectedError{Reason: rejectReasons[rejectNoListener]}
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH):
		e.Detail = id.noAnswer()
	}
	return e
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
	case rdmacm.EventRejected:
		r := &verbs.RejectedError{PrivateData: ev.param.data}
		switch reason, known := rejectReasons[ev.status]; {
		case known:
			r.PrivateData, r.Reason = nil, reason
		case errors.Is(cause, syscall.ECONNREFUSED): // as iWARP says it
			r.PrivateData, r.Reason = nil, rejectReasons[rejectNoListener]
		case ev.status != rejectConsumer && ev.status > 0:
			r.PrivateData, r.Reason = nil, fmt.Sprintf("reason %d of the connection manager", ev.status)
		}
		return &verbs.Error{Op: op, Detail: strings.TrimSuffix(id.peer, ": "), Err: r}
	case rdmacm.EventAddrError:
		return &verbs.Error{Op: op, Err: cause, Detail: id.peer + "no RDMA device reaches the address; is there a route, and does the peer answer ARP or ND?"}
	case rdmacm.EventRouteError:
		return &verbs.Error{Op: op, Err: cause, Detail: id.peer + "no path to the address"}
	case rdmacm.EventUnreachable:
		return &verbs.Error{Op: op, Err: cause, Detail: id.noAnswer()}
	case rdmacm.EventConnectError:
		return &verbs.Error{Op: op, Err: cause, Detail: id.peer + "the exchange with the peer failed"}
	case rdmacm.EventDeviceRemoval:
		return id.cm.dev.removedErr(op)
	case rdmacm.EventDisconnected:
		return verbs.Errorf(op, verbs.ErrDisconnected, "%sthe peer gave up", id.peer)
	default:
		return nil
	}
}

// reject refuses the request that the identifier stands for, and gives it up. It
// fails if that was done before: the end of the device refuses requests too.
func (id *cmID) reject(privateData []byte) error {
	const op = "reject connection"
	var err error = verbs.Errorf(op, verbs.ErrClosed, "the request is over")
	id.once.Do(func() {
		id.forget()
		if err = cmReject(id.h, privateData); err != nil {
			err = &verbs.Error{Op: op, Err: err}
		}
		_ = cmDestroy(id.h) // it fails only for a handle that is none
	})
	return err
}

// checkDevice refuses an identifier that was bound to another device: routing
// picks it by address.
func (id *cmID) checkDevice(op string, addr netip.AddrPort) error {
	switch got := cmDevice(id.h); got {
	case id.cm.dev.name:
		return nil
	case "":
		return verbs.Errorf(op, verbs.ErrInvalid, "%v: %s", addr, noDeviceAt)
	default:
		return verbs.Errorf(op, verbs.ErrInvalid, "%v belongs to device %s, not %s; open that one, or use an address of this one's network", addr, got, id.cm.dev.name)
	}
}
