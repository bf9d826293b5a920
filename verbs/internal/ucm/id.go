//go:build linux

package ucm

import (
	"net/netip"
	"runtime"
	"sync"
	"syscall"
)

// Options of an identifier: RDMA_OPTION_ID_* of rdma/rdma_user_cm.h.
const (
	OptionTypeOfService = 0 // one byte, in the IP packets of the connection
	OptionReuseAddr     = 1 // not 0: the address may be bound although another identifier has it
	OptionOnlyIPv6      = 2 // not 0: an identifier that is to be bound to :: does not take IPv4 too
	OptionAckTimeout    = 3 // 4.096 µs * 2^value; 0 lets the connection manager choose
)

// ID is an identifier of the connection manager.
type ID struct {
	ch     *Channel
	handle uint32 // the kernel's
	uid    uint64 // the number of its events

	// use is held for reading by commands, because the kernel gives the handle of a destroyed identifier to the next one.
	use sync.RWMutex
	// +checklocks:use
	destroyed bool

	mu sync.Mutex
	// +checklocks:mu
	ctx uint64
	// device and the addresses are those of the last query, because the kernel answers none after a device's removal.
	// +checklocks:mu
	device string
	// +checklocks:mu
	local, remote netip.AddrPort
}

// Adopt gives the identifier a context of its own: the events that Next reads from now on carry it. The
// identifier of a request has its listener's context at first.
func (id *ID) Adopt(ctx uint64) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.ctx = ctx
}

func (id *ID) context() uint64 {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.ctx
}

// do gives the kernel a command; it fails with ENOENT, as the kernel's commands do, if the identifier was destroyed.
func (id *ID) do(r request) error {
	id.use.RLock()
	defer id.use.RUnlock()
	if id.destroyed {
		return syscall.ENOENT
	}
	return id.ch.write(r)
}

// ask is do for a command that begins with the address of its response.
func (id *ID) ask(r request, resp []byte) error {
	id.use.RLock()
	defer id.use.RUnlock()
	if id.destroyed {
		return syscall.ENOENT
	}
	return id.ch.exchange(r, 0, resp)
}

// Destroy ends the identifier. It refuses a request that was not answered, and a listener's requests that Next
// has not read. The kernel discards its events, so that no call of Next that begins after Destroy returns
// one. Destroy waits for the commands that run; on iWARP the kernel blocks it until the peer has answered a
// Connect. A second call fails with ENOENT.
func (id *ID) Destroy() error {
	id.use.Lock()
	destroyed := id.destroyed
	id.destroyed = true
	id.use.Unlock()
	if destroyed {
		return syscall.ENOENT
	}
	err := id.ch.exchange(destroyRequest(id.handle), 0, make([]byte, destroyRespSize))
	id.ch.forget(id) // not before, because Next still reports a removal of the device
	return err
}

// SetOption sets one of the options Option*.
func (id *ID) SetOption(option, value int) error {
	v := make([]byte, 4)
	order.PutUint32(v, uint32(value))
	if option == OptionTypeOfService || option == OptionAckTimeout {
		v = []byte{uint8(value)} // the kernel takes one byte for these and an int for the others
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	r := setOptionRequest(id.handle, option, len(v))
	r.point(0, v, &pin)
	return id.do(r)
}

// Bind gives the identifier a local address, and the device that has it. It fails with EINVAL for an invalid
// address, and with ENODEV or EADDRNOTAVAIL if no device has it. The unspecified address is that of all devices.
func (id *ID) Bind(addr netip.AddrPort) error {
	if err := id.do(bindRequest(id.handle, toSockaddr(addr))); err != nil {
		return err
	}
	return id.refresh()
}

// Listen begins to take requests. The kernel refuses those beyond the backlog that Next has not read.
func (id *ID) Listen(backlog int) error {
	if err := id.do(listenRequest(id.handle, uint32(backlog))); err != nil {
		return err
	}
	return id.refresh()
}

// ResolveAddr begins to look for a device and a way to the address, for at most ms milliseconds. The result is the event
// ADDR_RESOLVED or ADDR_ERROR. From is the source address, or invalid: the routes choose it.
func (id *ID) ResolveAddr(from, to netip.AddrPort, ms int) error {
	dst := toSockaddr(to)
	if err := id.do(resolveAddrRequest(id.handle, toSockaddr(from), dst, uint32(ms))); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.remote.Port() == 0 { // else Next has read the event and asked the kernel meanwhile
		id.remote = fromSockaddr(dst)
	}
	return nil
}

// ResolveRoute begins to look for a path to the address, for at most ms milliseconds. The result is the event
// ROUTE_RESOLVED or ROUTE_ERROR. It fails with EINVAL before the address was resolved.
func (id *ID) ResolveRoute(ms int) error { return id.do(resolveRouteRequest(id.handle, uint32(ms))) }

// Device returns the name of the device that the identifier was bound to by Bind, by a resolved address or by a
// request; "" for none. It stays after the device's removal.
func (id *ID) Device() string {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.device
}

// Addrs returns the addresses; one that is not known yet is invalid, or unspecified with port 0. The zone of an
// IPv6 address is the index of its network interface in digits.
func (id *ID) Addrs() (local, remote netip.AddrPort) {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.local, id.remote
}

// Connect sends the request to the peer, with p as it is: the caller keeps p within the limits of the device. The
// result is an event: CONNECT_RESPONSE, or on iWARP ESTABLISHED; REJECTED, UNREACHABLE or CONNECT_ERROR.
func (id *ID) Connect(p Param) error { return id.do(connectRequest(id.handle, &p)) }

// Accept answers a request with p as it is. The queue pair is in RTS by then, or on iWARP in INIT. The result is
// the event ESTABLISHED, or CONNECT_ERROR. The events of the identifier begin here.
func (id *ID) Accept(p Param) error { return id.do(acceptRequest(id.handle, id.uid, &p)) }

// Reject refuses a request, for the reason that the consumer decided so (28). Data beyond 255 bytes is left
// out; the kernel fails with EINVAL for more than the transport carries.
func (id *ID) Reject(data []byte) error { return id.do(rejectRequest(id.handle, data)) }

// Establish makes the kernel send the peer the message that this side's queue pair is ready (rdma_establish). The caller calls Establish after the
// event CONNECT_RESPONSE.
func (id *ID) Establish() error { return id.do(establishRequest(id.handle)) }

// Disconnect ends the connection, or answers the peer's end of it. The result is the event DISCONNECTED. The
// caller changes the state of the queue pair itself.
func (id *ID) Disconnect() error { return id.do(disconnectRequest(id.handle)) }

// QPAttr returns the attributes with which the queue pair goes to the state (IBV_QPS_*), and the mask of those (IBV_QP_*).
func (id *ID) QPAttr(state uint32) (mask uint32, attr QPAttr, err error) {
	resp := make([]byte, qpAttrSize)
	if err := id.ask(qpAttrRequest(id.handle, state), resp); err != nil {
		return 0, QPAttr{}, err
	}
	mask, attr = parseQPAttr(resp)
	return mask, attr, nil
}

// refresh asks the kernel for the addresses and the device. It fails with ENODEV if the device has no name,
// because it was removed.
func (id *ID) refresh() error {
	resp := make([]byte, queryRespSize)
	order.PutUint32(resp[272:], noIndex) // kernels before 5.10 do not write it
	if err := id.ask(queryRequest(id.handle), resp); err != nil {
		return err
	}
	q := parseQuery(resp)
	name := ""
	if q.bound {
		if name = id.ch.names.of(q.guid, q.index); name == "" {
			return syscall.ENODEV
		}
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.device, id.local, id.remote = name, q.local, q.remote
	return nil
}

// query is struct rdma_ucm_query_addr_resp.
type query struct {
	bound         bool // to a device
	guid          [8]byte
	index         uint32 // of the device, or noIndex
	local, remote netip.AddrPort
}

func parseQuery(b []byte) query {
	q := query{guid: [8]byte(b), index: order.Uint32(b[272:])}
	q.bound = b[8] != 0 || q.guid != [8]byte{} // the number of a port is not 0
	q.local = fromSockaddr(b[16 : 16+min(storageSize, order.Uint16(b[12:]))])
	q.remote = fromSockaddr(b[144 : 144+min(storageSize, order.Uint16(b[14:]))])
	return q
}
