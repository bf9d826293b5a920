package verbs

import (
	"context"
	"net/netip"
	"time"

	"cinnabar/identity"
)

// A device implements the interfaces of this file. A program holds the types of the same
// names without Driver: these check the rules of all devices, count references and pin
// memory before they call the device. [NewDevice] makes a [Device] of a DeviceDriver.
//
// The contract of all methods:
//
//   - Concurrency: any goroutine may call any method at any time, as in libibverbs, but no
//     method of an object is called after its Close has succeeded.
//   - The data path (PostSend, PostRecv, Poll, Arm) never blocks and does not allocate, except for memory windows
//     (see the package documentation).
//   - Ownership: a slice that is passed to a method belongs to the caller again when the
//     method returns, so a device that needs it longer copies it. The memory that work
//     requests name stays in use until the completion.
//   - Errors match one of the Err variables, or errors.ErrUnsupported for an operation that
//     the device does not have; an *[Error] names the operation and the remedy. A call that
//     returns because its context ended returns an error that matches the context's.
//   - Handles that are passed to a device (a completion queue for a queue pair, a queue
//     pair for a connection) were made by the same device.

// DeviceDriver is an opened RDMA device (struct ibv_context). Programs use it as a [Device].
type DeviceDriver interface {
	// Query describes the device as it is now (ibv_query_device, ibv_query_port, ibv_query_gid).
	// Callers do not change the slices of the result.
	Query() (DeviceAttr, error)
	// Stats returns a snapshot of the counters, which belongs to the caller.
	Stats() Stats
	// AllocPD makes a protection domain (ibv_alloc_pd).
	AllocPD() (PDDriver, error)
	// CreateCQ makes a completion queue of at least depth entries (ibv_create_cq). The device
	// returns cqContext in asynchronous events about the queue and does nothing else with it.
	CreateCQ(depth int, cqContext any) (CQDriver, error)
	// NextEvent returns the oldest asynchronous event (ibv_get_async_event), waiting for one
	// until ctx ends or the device is closed (ErrClosed). Each event goes to one caller.
	NextEvent(ctx context.Context) (DeviceEvent, error)

	// Listen takes connection requests at addr; port 0 picks a free one (rdma_bind_addr,
	// rdma_listen). Package verbs has checked cfg. cfg.Backlog bounds the requests that wait for Accept; 0 is the
	// device's default.
	Listen(addr netip.AddrPort, cfg ListenConfig) (ListenerDriver, error)
	// Dial connects qp and moves it to RTS (rdma_connect). It fails with *RejectedError when
	// the peer refuses, and with the context's error when ctx ends first.
	Dial(ctx context.Context, qp QPDriver, addr netip.AddrPort, p ConnParam) (ConnDriver, error)

	// Close releases the device (ibv_close_device). It fails with ErrBusy while objects of it are open.
	Close() error
}

// PDDriver is a protection domain (struct ibv_pd). The device refuses a work request if
// the queue pair and a region of the request have different domains.
type PDDriver interface {
	// RegMR registers r until the region is closed (ibv_reg_mr). r.Bytes stays in place until then.
	RegMR(r MRInit, access Access) (MRDriver, error)
	// CreateQP makes a queue pair in the state RESET (ibv_create_qp).
	CreateQP(init QPInit) (QPDriver, error)
	// CreateSRQ makes a shared receive queue (ibv_create_srq). A device without CapSRQ refuses
	// with errors.ErrUnsupported.
	CreateSRQ(init SRQInit) (SRQDriver, error)
	// CreateAH makes an address handle (ibv_create_ah). A device without queue pairs of type UD
	// refuses with errors.ErrUnsupported.
	CreateAH(attr AHAttr) (AddressHandle, error)
	// AllocMW makes a memory window of a type that the device has (ibv_alloc_mw).
	AllocMW(t MWType) (MemoryWindow, error)
	// Close releases the domain (ibv_dealloc_pd).
	Close() error
}

// MRDriver is a registered memory region (struct ibv_mr).
type MRDriver interface {
	// LKey returns the key by which work requests of this side name the region.
	LKey() uint32
	// RKey returns the key by which work requests of a peer name the region.
	RKey() uint32
	// IOVA returns the address by which peers name the first byte of the region: MRInit.IOVA if MRInit.HasIOVA was set, and otherwise an
	// address of the device's choice, which may differ from the virtual address.
	IOVA() uint64
	// Rereg makes the change c (ibv_rereg_mr) and returns the region that takes the place of this one, which is closed then; it may be the
	// same one. Rereg waits until the device touches the memory no more under the former rights and keys. After an error that matches ErrBusy, ErrInvalid,
	// ErrClosed, ErrLockLimit or errors.ErrUnsupported the region is unchanged; after another error it can only be closed.
	Rereg(c MRReinit) (MRDriver, error)
	// Close revokes both keys (ibv_dereg_mr). When it returns, the device touches the memory no more. It fails with ErrBusy
	// while memory windows are bound to the region.
	Close() error
}

// CQDriver is a completion queue (struct ibv_cq) with its completion channel.
type CQDriver interface {
	// Poll fills wc with the oldest completions and returns their number (ibv_poll_cq). Some
	// devices process their queues only in Poll. After an overrun Poll returns the intact
	// completions first, and then ErrCQOverrun.
	Poll(wc []WC) (int, error)
	// Arm asks for one event when the next completion is added (ibv_req_notify_cq); with
	// solicitedOnly, when the next solicited or failed one is. The caller polls once more before
	// it waits, because a completion from before Arm raises no event.
	Arm(solicitedOnly bool) error
	// Event returns the channel of the events that Arm asked for (ibv_get_cq_event). It holds at
	// most one unread event. Poll may find no completion after an event.
	Event() <-chan struct{}
	// Resize changes the depth to at least depth entries (ibv_resize_cq).
	Resize(depth int) error
	// Depth returns the number of entries, which may be more than were asked for.
	Depth() int
	// Moderate delays the event of an armed queue until count completions for which Arm asked have been added, or period has passed since
	// the first of them (ibv_modify_cq). Package verbs has checked both values.
	Moderate(count int, period time.Duration) error
	// SetTimestamps turns WC.WallclockNS on or off for later completions.
	SetTimestamps(on bool) error
	// Close releases the queue (ibv_destroy_cq).
	Close() error
}

// CQParker is implemented by a CQDriver if goroutines read its connections, and the goroutine that waits for a completion can read one itself.
// A message then wakes that goroutine alone, and not a reader that wakes it in turn. [CQ.Wait] calls Park before it resorts to Arm and Event.
type CQParker interface {
	CQDriver
	// Park blocks until the queue may have a completion, or stop returns true; a nil stop never does. Park calls stop before it blocks, after
	// input of the connection, and after Unpark. It returns false at once if the device cannot wait in this way at present: the caller
	// then uses Arm and Event. One goroutine at a time calls Park.
	Park(stop func() bool) bool
	// Unpark makes a Park in progress call stop. Without one it does nothing, also after Close.
	Unpark()
}

// CQMover is implemented by a CQDriver if its polls move bytes.
type CQMover interface {
	CQDriver
	// Moves implements [CQ.Moves]. It does not block.
	Moves() uint64
}

// QPPageGiver is implemented by a QPDriver of a device that reaches registered memory through the page tables of this process, so that
// the process may replace the pages. A device that has pinned the pages cannot implement it.
type QPPageGiver interface {
	QPDriver
	// GivePages implements [QP.GivePages]. It gives no page back unless the peer has written exactly written bytes by RDMA writes on the
	// connection of the queue pair, has sent exactly received bytes by messages, and no message or frame is incomplete, because other bytes
	// of the peer would be lost. It does not block.
	GivePages(written, received uint64, regions [][]byte) bool
}

// SRQDriver is a shared receive queue (struct ibv_srq).
type SRQDriver interface {
	// PostRecv queues wrs in order and returns how many were accepted (ibv_post_srq_recv). The
	// error, if any, is about wrs[n].
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify sets the fields of attr that limit and depth select (ibv_modify_srq).
	Modify(attr SRQAttr, limit, depth bool) error
	// Query returns depth and limit as they are now (ibv_query_srq).
	Query() SRQAttr
	// Close releases the queue (ibv_destroy_srq).
	Close() error
}

// QPDriver is a queue pair (struct ibv_qp).
type QPDriver interface {
	// Num returns the queue pair number, which is unique on the device. It does not change.
	Num() uint32
	// PostSend queues wrs in order and returns how many were accepted (ibv_post_send). The
	// error, if any, is about wrs[n], which bad_wr points to in C.
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv queues receives likewise (ibv_post_recv).
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes that attr.Mask names (ibv_modify_qp). A refused change
	// changes nothing.
	Modify(attr QPAttr) error
	// Query returns the attributes that the device knows, which Mask lists, and the configuration
	// with the limits that the device granted (ibv_query_qp).
	Query() (QPAttr, QPInit)
	// Close destroys the queue pair (ibv_destroy_qp). When it returns, the device touches none
	// of its memory and adds no more completions of it.
	Close() error
}

// ListenerDriver takes connection requests (a listening struct rdma_cm_id).
type ListenerDriver interface {
	// Addr returns the address that peers dial, with the port that was picked.
	Addr() netip.AddrPort
	// Accept returns the oldest request, waiting for one until ctx ends or the listener is
	// closed (ErrClosed). Each request goes to one caller.
	Accept(ctx context.Context) (ConnRequestDriver, error)
	// Close ends listening and refuses the requests that wait.
	Close() error
}

// ConnRequestDriver is a connection request of a peer. The caller calls exactly one of
// Accept and Reject, once.
type ConnRequestDriver interface {
	// LocalAddr returns the address that the peer dialled.
	LocalAddr() netip.AddrPort
	// RemoteAddr returns the address of the peer.
	RemoteAddr() netip.AddrPort
	// Param returns the parameters that the peer asked for; PrivateData belongs to the caller.
	Param() ConnParam
	// Accept connects qp and moves it to RTS (rdma_accept).
	Accept(ctx context.Context, qp QPDriver, p ConnParam) (ConnDriver, error)
	// Reject refuses the connection and sends privateData to the peer (rdma_reject).
	Reject(privateData []byte) error
}

// ConnDriver is an established connection of a queue pair.
type ConnDriver interface {
	// LocalAddr returns the address of this side.
	LocalAddr() netip.AddrPort
	// RemoteAddr returns the address of the peer.
	RemoteAddr() netip.AddrPort
	// Param returns the parameters in force, with the peer's private data, which callers do not change.
	Param() ConnParam
	// Disconnect ends the connection in order (rdma_disconnect): work that was posted before is
	// sent, then the queue pairs of both sides go to ERR and flush. It returns when this side has
	// done so, or with the context's error when ctx ends first.
	Disconnect(ctx context.Context) error
	// Done returns a channel that is closed when the connection is over, for any reason.
	Done() <-chan struct{}
	// Err returns the reason of the end: ErrDisconnected for an orderly one, nil before Done.
	Err() error
}

// Identified is implemented by a ConnDriver and by a ConnRequestDriver of a device that proves more about its peers than their addresses.
type Identified interface {
	// Identity returns the facts that are proven about the peer. It does not block, and the result does not change.
	Identity() identity.Peer
}

// IdentityOf returns the identity of the peer of a ConnDriver or ConnRequestDriver: its address, if the driver is not Identified.
func IdentityOf(drv interface{ RemoteAddr() netip.AddrPort }) identity.Peer {
	if i, ok := drv.(Identified); ok {
		return i.Identity()
	}
	if a := drv.RemoteAddr().Addr(); a.IsValid() {
		return identity.Peer{Kind: identity.Address, Host: a.Unmap().WithZone("")}
	}
	return identity.Peer{}
}

// MRInit is the memory of a new region. The caller of RegMR keeps Bytes mapped and in place (pinned
// or off the Go heap) until the region is closed.
type MRInit struct {
	Bytes []byte
	Addr  uint64 // virtual address of Bytes[0]

	// IOVA is the address of Bytes[0] in work requests of both sides, if HasIOVA is set. IOVA and Addr have the same offset within a page. Without
	// HasIOVA the device chooses the address for peers, and work requests of this side use Addr.
	IOVA    uint64
	HasIOVA bool
}

// MRReinit is the change that MRDriver.Rereg makes. A nil Memory or PD stays as it is, and so do the rights unless ChangeAccess is set.
type MRReinit struct {
	Memory       *MRInit // without an IOVA
	PD           PDDriver
	Access       Access
	ChangeAccess bool
}

// QPInit is the configuration of a new queue pair (struct ibv_qp_init_attr).
type QPInit struct {
	Type      QPType
	SendCQ    CQDriver
	RecvCQ    CQDriver
	SRQ       SRQDriver // nil: a receive queue of its own
	Cap       QPCap
	SignalAll bool // sq_sig_all: every send work request makes a completion
	Context   any  // returned in asynchronous events
}

// SRQInit is the configuration of a new shared receive queue (struct ibv_srq_init_attr).
type SRQInit struct {
	MaxWR   int // depth
	MaxSGE  int // scatter entries of one request
	Limit   int // raise EventSRQLimitReached once when fewer are posted; 0: never
	Context any // returned in asynchronous events
}

// DeviceEvent is an asynchronous event as a device reports it (struct ibv_async_event).
// Programs get it as an [AsyncEvent].
type DeviceEvent struct {
	Type    EventType
	Context any    // Context of the CQ, QP or SRQ concerned; nil for port and device
	QPNum   uint32 // when a queue pair is concerned
	Port    uint8  // when a port is concerned
	Vendor  uint32 // as in WC
	Err     error  // the cause in words, where the device knows it
}
