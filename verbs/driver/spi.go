package driver

import (
	"context"
	"net/netip"
)

// Device is an opened RDMA device.
type Device interface {
	// Query describes the device as it is now.
	Query() (DeviceAttr, error)
	// Stats returns a snapshot of the counters.
	Stats() Stats
	AllocPD() (PD, error)
	// CreateCQ makes a completion queue of at least depth entries.
	CreateCQ(depth int, cqContext any) (CQ, error)
	// NextEvent returns the oldest asynchronous event, waiting for one until ctx
	// ends or the device is closed (ErrClosed).
	NextEvent(ctx context.Context) (AsyncEvent, error)

	// Listen takes connection requests at addr; port 0 picks one. Backlog bounds the
	// requests that wait for Accept; 0 is the device's default.
	Listen(addr netip.AddrPort, backlog int) (Listener, error)
	// Dial connects qp, moving it to RTS. It fails with *RejectedError when the peer refuses.
	Dial(ctx context.Context, qp QP, addr netip.AddrPort, p ConnParam) (Conn, error)

	// Close releases the device. It fails with ErrBusy while objects of it are open.
	Close() error
}

// PD is a protection domain: regions and queue pairs of different domains do not mix.
type PD interface {
	// RegMR registers r until the MR is closed.
	RegMR(r Region, access Access) (MR, error)
	CreateQP(init QPInit) (QP, error)
	CreateSRQ(init SRQInit) (SRQ, error)
	CreateAH(attr AHAttr) (AddressHandle, error)
	Close() error
}

// MR is a registered memory region.
type MR interface {
	LKey() uint32
	RKey() uint32
	// IOVA returns the address by which peers name the first byte of the region. It need not be the virtual address.
	IOVA() uint64
	// Close revokes both keys. When it returns, the device touches the memory no more.
	Close() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll fills wc with the oldest completions and returns how many. It makes
	// progress on devices that need the caller for that.
	// After an overrun it returns ErrCQOverrun once the intact completions are gone.
	Poll(wc []WC) (int, error)
	// Arm asks for one event when the next completion (with solicitedOnly: the next
	// solicited or failed one) is added. The caller polls once more before it waits.
	Arm(solicitedOnly bool) error
	// Event carries armed events, at most one unread (the completion channel).
	// An event may come without a completion to find.
	Event() <-chan struct{}
	Resize(depth int) error
	Depth() int
	Close() error
}

// SRQ is a shared receive queue.
type SRQ interface {
	PostRecv(wrs []RecvWR) (int, error)
	Modify(attr SRQAttr, limit, depth bool) error
	Query() SRQAttr
	Close() error
}

// QP is a queue pair.
type QP interface {
	Num() uint32
	// PostSend queues wrs in order and returns how many were accepted. The error, if
	// any, is about wrs[n]: what bad_wr points to in C.
	PostSend(wrs []SendWR) (n int, err error)
	PostRecv(wrs []RecvWR) (n int, err error)
	Modify(attr QPAttr) error
	Query() (QPAttr, QPInit)
	// Close destroys the queue pair. When it returns, the device touches none of its memory
	// and adds no more completions of it.
	Close() error
}

// Listener takes connection requests.
type Listener interface {
	Addr() netip.AddrPort
	Accept(ctx context.Context) (ConnRequest, error)
	Close() error
}

// ConnRequest is a peer's wish to connect. Exactly one of Accept and Reject is called.
type ConnRequest interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// Param is what the peer asked for; its PrivateData belongs to the caller.
	Param() ConnParam
	Accept(ctx context.Context, qp QP, p ConnParam) (Conn, error)
	Reject(privateData []byte) error
}

// Conn is an established connection of a queue pair.
type Conn interface {
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// Param is what is in force, with the peer's private data.
	Param() ConnParam
	// Disconnect ends the connection in order: what was posted before is sent, then both
	// sides' queue pairs go to ERR and flush. It returns when that is done here.
	Disconnect(ctx context.Context) error
	// Done is closed when the connection is over, for whatever reason.
	Done() <-chan struct{}
	// Err tells why; ErrDisconnected for an orderly end, nil before Done.
	Err() error
}
