//go:build linux

package ucm

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// deviceFile is the connection manager's character device.
const deviceFile = "/dev/infiniband/rdma_cm"

// Types of events that Next looks at: enum rdma_cm_event_type of the kernel's rdma/rdma_cm.h.
const (
	eventAddrResolved   = 0
	eventAddrError      = 1
	eventConnectRequest = 4
	eventDeviceRemoval  = 11
)

// Channel is an open connection manager. Its identifiers report their events to it.
type Channel struct {
	fd    atomic.Int32 // -1 after Close
	names names

	mu sync.Mutex
	// ids has the identifiers by the number that the kernel reports their events with (uid).
	// +checklocks:mu
	ids map[uint64]*ID
	// +checklocks:mu
	lastUID uint64
}

// Param are the parameters of a connection: struct rdma_conn_param of librdmacm.
type Param struct {
	Data             []byte // private data: at most 255 bytes, of which the transport carries fewer
	QPN              uint32 // of the own queue pair; in an event, of the peer's
	Responder, Depth uint8  // responder resources and initiator depth, from the view of the side that gives or gets them
	Retry, RNRRetry  uint8
	SRQ              bool
}

// Event is what happened to an identifier: struct rdma_cm_event of librdmacm.
type Event struct {
	Type   uint32 // RDMA_CM_EVENT_*
	Status int    // a negative errno, or the reason of a rejection
	Ctx    uint64 // of the identifier; for a request, of the listener
	Child  *ID    // of a request: the new identifier, which the caller destroys at the end
	Param  Param
	Device string // of a removal: the name of the identifier's device, "" if it was bound to none
}

// OpenChannel opens the connection manager. If there is none it asks the kernel to load it, as librdmacm does.
func OpenChannel() (*Channel, error) {
	fd, err := openFile()
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ENODEV) { // the last two for a file of a container
		loadModule()
		fd, err = openFile()
	}
	if err != nil {
		return nil, err
	}
	c := &Channel{ids: make(map[uint64]*ID)}
	c.fd.Store(int32(fd))
	return c, nil
}

func openFile() (int, error) { return unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0) }

// FD returns the descriptor, which belongs to c: it is readable when there is an event. The caller may make it
// non-blocking, so that Next does not wait.
func (c *Channel) FD() int { return int(c.fd.Load()) }

// Close closes the descriptor; the kernel destroys the identifiers that are left. The caller ends all commands before Close, because another
// file may get the descriptor's number afterwards. Later commands fail with EBADF.
func (c *Channel) Close() error {
	fd := c.fd.Swap(-1)
	if fd < 0 {
		return syscall.EBADF
	}
	return unix.Close(int(fd))
}

// write gives the kernel a command.
func (c *Channel) write(r request) error {
	for {
		n, err := unix.Write(c.FD(), r)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue // a signal to the thread came before the command had an effect
		case err != nil:
			return err
		case n != len(r):
			return syscall.EIO
		}
		return nil
	}
}

// exchange gives the kernel a command that has the address of its response at off.
func (c *Channel) exchange(r request, off int, resp []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	order.PutUint16(r[6:], uint16(len(resp)))
	r.point(off, resp, &pin)
	return c.write(r)
}

// newUID returns the number for the events of an identifier. It is never used again.
func (c *Channel) newUID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUID++ // not 0, because the kernel drops the events of an identifier with that
	return c.lastUID
}

// register makes Next hand on the events of an identifier, which is complete.
func (c *Channel) register(id *ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[id.uid] = id
}

func (c *Channel) forget(id *ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id.uid)
}

func (c *Channel) find(uid uint64) *ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[uid]
}

// Create makes an identifier for reliable connections (RDMA_PS_TCP). Its events carry ctx.
func (c *Channel) Create(ctx uint64) (*ID, error) {
	uid := c.newUID()
	resp := make([]byte, createRespSize)
	if err := c.exchange(createRequest(uid), 8, resp); err != nil {
		return nil, err
	}
	id := &ID{ch: c, uid: uid, handle: order.Uint32(resp), ctx: ctx}
	c.register(id) // it has no events before the first command
	return id, nil
}

// Next reads the oldest event and acknowledges it. Without one it fails with EAGAIN if the descriptor is
// non-blocking, and waits otherwise. One goroutine calls it.
//
// Around some events it does what librdmacm does: it makes the identifier of a request, and asks for the addresses
// and the device of an identifier whose address was resolved.
func (c *Channel) Next() (Event, error) {
	resp := make([]byte, eventRespSize)
	for {
		if err := c.exchange(newRequest(cmdGetEvent, getEventSize), 0, resp); err != nil {
			return Event{}, err
		}
		if ev, ok := c.event(parseEvent(resp)); ok {
			return ev, nil
		}
	}
}

// event completes an event of the kernel. It returns false for an event whose identifier was destroyed meanwhile.
func (c *Channel) event(raw rawEvent) (Event, bool) {
	id := c.find(raw.uid)
	if raw.typ == eventConnectRequest {
		return c.request(id, raw)
	}
	if id == nil {
		return Event{}, false
	}
	ev := Event{Type: raw.typ, Status: raw.status, Ctx: id.context(), Param: raw.param}
	switch raw.typ {
	case eventAddrResolved:
		if err := id.refresh(); err != nil {
			ev.Type, ev.Status = eventAddrError, negative(err)
		}
	case eventDeviceRemoval:
		ev.Device = id.Device()
	}
	return ev, true
}

// request makes the identifier of a request; the kernel reports it by the listener's number and the new handle. It gets a
// number of its own by ACCEPT, and the kernel reports no event of it before. A request that cannot be handed on is refused.
func (c *Channel) request(listener *ID, raw rawEvent) (Event, bool) {
	var ctx uint64
	if listener != nil {
		ctx = listener.context()
	}
	child := &ID{ch: c, uid: c.newUID(), handle: raw.id, ctx: ctx}
	c.register(child)
	if listener == nil || child.refresh() != nil { // the query fails when the device was removed meanwhile
		_ = child.Destroy() // it fails only for a handle that is none
		return Event{}, false
	}
	return Event{Type: raw.typ, Status: raw.status, Ctx: ctx, Child: child, Param: raw.param}, true
}

// negative is the status of an event for an error.
func negative(err error) int {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return -int(errno)
	}
	return -int(syscall.EIO)
}
