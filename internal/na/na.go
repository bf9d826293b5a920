package na

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
)

// Endpoint is a process's presence on one network: NA class and context in one.
//
// All methods are safe for concurrent use. Those that start an operation never block: the operation completes later, or
// before they return.
type Endpoint interface {
	// Addr is the endpoint's own address, as peers see it.
	Addr() Addr

	// Listening reports whether peers may send requests to Addr.
	Listening() bool

	// Lookup parses the string of an address, "ofi+tcp://127.0.0.1:1234". It has no traffic: the first operation fails if
	// the peer does not run. For a name Lookup returns a [Named]. The error names the faulty part of s.
	Lookup(s string) (Addr, error)

	// AppendAddr appends the address in the binary form that travels in bound bulk descriptors. It is all that
	// NA_Addr_serialize writes: over ofi+tcp the length of the raw address as a word, and the raw address.
	AppendAddr(b []byte, a Addr) []byte

	// ParseAddr reads an address that AppendAddr wrote; all of b belongs to it. b is hostile and is not kept.
	ParseAddr(b []byte) (Addr, error)

	// Limits returns the largest sizes of messages.
	Limits() Limits

	// SendRequest sends an unexpected message (NA_Msg_send_unexpected). The first Limits().RequestRoom bytes of msg are
	// the transport's to fill in; the message proper follows. op completes when the network has taken the message,
	// which does not say that it arrived. One request and one RecvExpected of a tag may be in flight to a peer at a time.
	SendRequest(op *Op, to Addr, tag uint32, msg []byte)

	// RecvExpected waits for the expected message with that tag from that peer (NA_Msg_recv_expected); it must be
	// called before the request that provokes the message is sent. The message is copied to the start of buf, op.N says
	// how long it is; a longer one than buf completes op with an error of kind [Truncated]. If the connection to the
	// peer is lost, op completes with kind [Unreachable]. If another RecvExpected waits for the tag already, op completes
	// with kind [Invalid] before the call returns.
	RecvExpected(op *Op, from Addr, tag uint32, buf []byte)

	// SendExpected answers a request (NA_Msg_send_expected): to and tag are those of the request's [Message]. The first
	// Limits().ResponseRoom bytes of msg are the transport's.
	SendExpected(op *Op, to Addr, tag uint32, msg []byte)

	// Register makes memory reachable for peers, as access allows, until the Memory is closed. mem must not be empty.
	// It is kept: peers read and write it while the registration lives.
	Register(mem []byte, access Access) (Memory, error)

	// ParseHandle reads a memory handle that AppendHandle of a peer wrote; all of b belongs to it. b is hostile and is
	// not kept.
	ParseHandle(b []byte) (RemoteMemory, error)

	// Get reads remote memory into local memory (NA_Get), all fragments in one operation; op.N is the number of bytes.
	// frags is the transport's until completion. Large fragments are split as the network needs it.
	Get(op *Op, from Addr, frags []Fragment)

	// Put writes local memory to remote memory (NA_Put) and completes when the peer has placed all of it.
	Put(op *Op, to Addr, frags []Fragment)

	// Cancel gives up an operation. The operation completes with kind [Canceled], unless it has completed or is about
	// to complete otherwise; when it completes, its memory is its owner's again. Cancel does not wait for that. If op is
	// not in flight, nothing happens, now or when op is used again.
	Cancel(op *Op)

	// Drive makes progress for a goroutine that waits for ev and for something from peer a: it returns when ev is set,
	// when the time that Config gives to spinning is over, or when others make progress already. The caller then parks
	// on ev. Handlers' tasks are not run by Drive.
	Drive(a Addr, ev *Event)

	// Shutdown refuses new connections and requests: peers' requests are dropped from then on as if the process were
	// gone, except that operations under way go on.
	Shutdown()

	// Close ends all operations with kind [Closed], closes connections and waits for the endpoint's goroutines; for
	// those that run a [Task] only until ctx is done. After it no memory is touched.
	Close(ctx context.Context) error
}

// Addr is the address of a peer, or the endpoint's own. Addrs are compared with Equal only.
type Addr interface {
	// String is the canonical form, which Lookup of any process accepts.
	String() string
	// Equal reports whether both stand for the same peer on the same network.
	Equal(other Addr) bool
	// Done is closed when the peer is known to be gone, that is when the connection that this Addr came from (a
	// request's source) or was last used with is lost; a later operation may connect anew, and then another channel is returned.
	// It is nil before there was a connection.
	Done() <-chan struct{}
	// Account is where resources that the peer holds are counted: that of the peer's host in the endpoint's Book, and of
	// the zero Host for the endpoint's own address. It is never nil, and the same for as long as the Addr is referred to.
	Account() *hostquota.Account
}

// Named is an [Addr] with a name, of a host or of a region of shared memory, in place of a peer's address. Lookup does not resolve
// the name, because only operations need the peer. The caller of an operation passes the result of Reached or Resolve; an operation
// with a Named itself completes with an error of kind [Invalid].
//
// Both methods are safe for concurrent use.
type Named interface {
	Addr
	// Reached returns the result of the latest Resolve while the connection with that peer lives, and otherwise nil, or a peer's address
	// that the endpoint has found without traffic.
	Reached() Addr
	// Resolve returns the peer that the name stands for at present. If the name has several addresses, Resolve connects to one
	// after the other until one accepts. It ends with an error when ctx ends or the endpoint is closed.
	Resolve(ctx context.Context) (Addr, error)
}

// Limits are the sizes of messages in bytes.
type Limits struct {
	// MaxRequest and MaxResponse are how many bytes of a request and of an expected message are the caller's, that is
	// without the transport's own parts.
	MaxRequest, MaxResponse int
	// RequestRoom and ResponseRoom are how many bytes the caller leaves free before them, for the transport.
	RequestRoom, ResponseRoom int
	// Sealed reports that the transport authenticates each byte, as TLS does, so that payloads need no checksums.
	Sealed bool
}

// Access is the access of peers to registered memory. The values are those of NA_MEM_READ_ONLY and its kin.
type Access uint8

const (
	ReadOnly  Access = 1 // peers may read: NA_MEM_READ_ONLY
	WriteOnly Access = 2 // peers may write: NA_MEM_WRITE_ONLY
	ReadWrite Access = 3 // NA_MEM_READWRITE
)

// DrainTime bounds how long peers' accesses to memory may go on after its key was revoked.
const DrainTime = 5 * time.Second

// Handle describes memory of this process to peers.
type Handle interface {
	// AppendHandle appends the description with which a peer reaches the memory (NA_Mem_handle_serialize).
	AppendHandle(b []byte) []byte
}

// Memory is registered memory of this process.
type Memory interface {
	Handle
	// Revoke revokes the key: no access of a peer begins any more. It does not wait for those under way. It is idempotent.
	Revoke()
	// Close revokes the key and returns when no peer's access is under way any more. An access that a stalled peer
	// does not let end, or that is under way still [DrainTime] after the key was revoked, is ended with its connection. So
	// a caller that revokes several keys before it closes the first waits for all of them together no longer than for one.
	// Close is idempotent.
	Close()
}

// IdleMemory is a [Memory] that knows the accesses under way. After Revoke, Close returns at once if Idle returns true.
type IdleMemory interface {
	Memory
	// Idle reports whether no peer's access is under way.
	Idle() bool
}

// SegmentRegistrar is an [Endpoint] that describes memory in several pieces by one handle
// (NA_Mem_handle_create_segments). Its peers in C expect one handle for memory of 2 to MaxSegments segments; the segments of larger
// memory are registered one by one.
type SegmentRegistrar interface {
	// MaxSegments returns the largest number of segments of one handle (NA_Mem_handle_get_max_segments).
	MaxSegments() int
	// RegisterSegments is Register for pieces that count as one run of bytes in their order. Some, or all, may be empty.
	// segs itself is kept too.
	RegisterSegments(segs [][]byte, access Access) (Memory, error)
}

// MaxLent is the largest number of pieces of memory that a [Lender] lends together.
const MaxLent = 3

// Lender is an [Endpoint] that lends memory of the program to peers. The program can have the memory back at any time, without waiting for peers.
type Lender interface {
	// Lend is Register with access ReadOnly for 1 to MaxLent pieces, which peers read as one run of bytes. No piece may be empty. The caller may
	// use the slice of the pieces again, and must not change the bytes before Keep or Close has returned.
	Lend(pieces ...[]byte) (LentMemory, error)
}

// LentMemory is memory that a [Lender] has lent.
type LentMemory interface {
	IdleMemory
	// Keep copies the pieces, makes peers read the copy from now on, and returns it. The copy must not be changed. When Keep has returned, no access
	// uses the pieces any more, also none that was under way. Keep does not wait for peers. Further calls return the same copy. It must not be
	// called by a completion, because it waits for goroutines of the network that run completions.
	Keep() []byte
}

// PieceRegistrar is an [Endpoint] that may register several pieces of memory together, because its device has a limited number of
// registrations.
type PieceRegistrar interface {
	// RegisterPieces is Register for each element of segs; none may be empty. handles[i] describes segs[i]. Each Memory of mems covers one or
	// several of these pieces, and no other bytes. After an error nothing is registered.
	RegisterPieces(segs [][]byte, access Access) (mems []Memory, handles []Handle, err error)
}

// RegisterEach registers each piece by a call of Register of e. Its results are those of [PieceRegistrar.RegisterPieces].
func RegisterEach(e Endpoint, segs [][]byte, access Access) (mems []Memory, handles []Handle, err error) {
	for _, s := range segs {
		m, err := e.Register(s, access)
		if err != nil {
			for _, m := range mems {
				m.Close()
			}
			return nil, nil, err
		}
		mems, handles = append(mems, m), append(handles, m)
	}
	return mems, handles, nil
}

// GroupDriver is an [Endpoint] that lets one goroutine receive the messages of several operations with one peer, for which that goroutine
// waits one after the other. That is faster, because the endpoint would otherwise wake the goroutine for each message. All methods are
// safe for concurrent use.
type GroupDriver interface {
	// DriveGroup is Drive for such a goroutine. After ev is set, the endpoint leaves the messages of the other operations to the next call
	// of DriveGroup. If no call follows, the endpoint receives again after five milliseconds at most. It receives at once if another goroutine
	// may wait for one of these operations without driving: after a Drive or DriveGroup that returned before its event was set, or after
	// Undriven.
	DriveGroup(a Addr, ev *Event)
	// Undriven announces that a goroutine waits for an operation with peer a without driving. The endpoint then receives from a itself until
	// no operation waits for a.
	Undriven(a Addr)
	// DrivesTransfers reports whether a transfer with peer a needs a goroutine that receives, like a call. Otherwise it ends by itself.
	DrivesTransfers(a Addr) bool
}

// LateServer is an [Endpoint] with a protocol that can refuse an access to memory only by ending the connection. It keeps closed memory
// for the servers of given-up calls, because such a server does not know that the caller no longer waits.
type LateServer interface {
	// GiveUp announces that the caller of a request no longer waits for the response. The caller of GiveUp cancels the
	// RecvExpected of the response afterwards. request is the request's payload, which the endpoint searches for handles of its
	// memory and does not keep. name returns the call's name for errors.
	//
	// GiveUp does nothing if the response has come, and cancels a request that waits for a connection. Otherwise, when Withdraw
	// closes memory of which the handle is in request, the endpoint keeps that memory until the response comes, the request is
	// cancelled before it was sent, the connection ends, or the endpoint's time limit for kept memory has passed.
	GiveUp(to Addr, tag uint32, request []byte, name func() string)
}

// LateMemory is a [Memory] of a [LateServer].
type LateMemory interface {
	Memory
	// Late reports whether the server of a given-up call may still access the memory.
	Late() bool
	// Withdraw is Revoke, except that it keeps the memory for the servers of given-up calls. Their writes are discarded. If hold
	// is nil, they read a copy. Otherwise they read the memory itself: Withdraw calls hold before it returns, and another
	// goroutine calls hold's result once, when no server may access the memory any more.
	Withdraw(hold func() (release func()))
}

// RemoteMemory is a peer's registered memory.
type RemoteMemory interface {
	// Len is how many bytes the peer says there are.
	Len() uint64
}

// Fragment is one piece of a transfer. Offset counts from the start of the remote memory; Offset and len(Local) must
// lie within it, which the transport checks.
type Fragment struct {
	Remote RemoteMemory
	Offset uint64
	Local  []byte
}

// CheckFragments adds up the lengths of the pieces of a transfer, a Put or a Get. It returns an error for a piece that does not lie within
// its remote memory, or with memory that is registered without the access that the transfer needs. look returns the size and the access
// of remote memory, and false for memory of another network.
func CheckFragments(frags []Fragment, put bool, look func(RemoteMemory) (size uint64, access Access, ok bool)) (total uint64, err error) {
	need, op := ReadOnly, "get"
	if put {
		need, op = WriteOnly, "put"
	}
	for i := range frags {
		f := &frags[i]
		size, access, ok := look(f.Remote)
		n := uint64(len(f.Local))
		switch {
		case !ok:
			return 0, &Error{Kind: Invalid, Op: op, Err: fmt.Errorf("fragment %d: its memory is not of this network", i)}
		case f.Offset > size || n > size-f.Offset:
			return 0, &Error{Kind: Denied, Op: op, Err: fmt.Errorf("fragment %d: %d bytes at offset %d of memory of %d bytes", i, n, f.Offset, size)}
		case access&need == 0:
			return 0, &Error{Kind: Denied, Op: op, Err: fmt.Errorf("fragment %d: its memory is registered with access %d, which does not allow it", i, access)}
		}
		total += n
	}
	return total, nil
}

// Handler takes requests from the network.
type Handler interface {
	// Request is called for each unexpected message, on a goroutine that makes progress: it must neither block nor run
	// programs' code. The transport runs the result, if it is not nil, soon afterwards, on the same goroutine where that
	// costs no progress.
	//
	// m and m.Data are valid until Request returns.
	Request(m *Message) Task
}

// Task is the rest of a request's handling, which is expected to be quick: a transport runs it on the goroutine that
// read the request and moves on to another goroutine if it takes long. The layer above runs work that may block on a
// goroutine of its own instead.
type Task interface{ Run() }

// Message is an unexpected message.
type Message struct {
	From Addr   // the destination of the answer, and the owner of memory in the request; may be kept
	Tag  uint32 // that of the answer
	Data []byte // without the transport's own parts
}

// Mover is an [Endpoint] on a device that reads and writes the memory of both processes of a transfer.
type Mover interface {
	// Moved returns the number of bytes that the device has moved for the transfers of this process, and the number of those among them
	// that were copied between the program's memory and memory of the endpoint.
	Moved() (rdma, copied uint64)
}

// Reporter is an [Endpoint] that can say why it sends nothing to a peer.
type Reporter interface {
	// Report describes the present step of connecting to a peer, "waiting for the answer to the connection request", or why a
	// connection sends nothing. It returns the empty string if the connection is established and sends.
	Report(a Addr) string
}

// Yielder is an [Addr] on a network that can be polled for messages that Go's scheduler has not noticed yet.
type Yielder interface {
	// Yield polls the network, and then calls [runtime.Gosched].
	Yield()
}

// Yield lets other goroutines run: by a's Yield if a is a [Yielder], otherwise by [runtime.Gosched].
func Yield(a Addr) {
	if y, ok := a.(Yielder); ok {
		y.Yield()
		return
	}
	runtime.Gosched()
}

// SoleReader is an [Addr] of a request on a network in which each connection has a reader of its own. The [Task] of such a request may
// call [Endpoint.Drive] to wait for a transfer with the Addr, although the reader runs the task. The messages of other peers do not wait
// meanwhile, because they have other readers, and Drive itself reads those of this peer.
type SoleReader interface {
	// SoleReader does nothing: it marks the type.
	SoleReader()
}

// HasSoleReader reports whether a is a [SoleReader].
func HasSoleReader(a Addr) bool {
	_, ok := a.(SoleReader)
	return ok
}

// Identified is an [Addr] of the sender of a request, on a network that has authenticated the sender.
type Identified interface {
	// Identity returns the facts about the peer that TLS, the network or the kernel has proven.
	Identity() identity.Peer
}

// IdentityOf returns the identity of the sender of a request, which is of kind Unknown if the network knows none.
func IdentityOf(a Addr) identity.Peer {
	if i, ok := a.(Identified); ok {
		return i.Identity()
	}
	return identity.Peer{}
}

// Holder is an [Addr] of a request. Its connection does not give way to others while the request is handled.
type Holder interface {
	// Hold adds n to the number of requests from the Addr that are being handled.
	Hold(n int64)
}

// Annotated is an [Addr] that keeps a value for the layer above. That layer stores the facts that it has learned about the peer there,
// because it reads them without a lock and a table.
type Annotated interface {
	// Annotation returns the atomic value. All values stored in it must have the same type. Each call on one Addr returns the same
	// pointer; another Addr that is Equal may return another pointer.
	Annotation() *atomic.Value
}

// ConnLister is an [Endpoint] that lists its connections.
type ConnLister interface {
	// Conns returns at most limit of the connections and of the attempts to connect, and the number of all of them. If there are more,
	// Conns prefers attempts, and then the connections that have moved most bytes. It holds no lock while it sorts.
	Conns(limit int) (list []ConnInfo, total int)
}

// ConnInfo describes a connection, or an attempt to connect.
type ConnInfo struct {
	Peer    string    // address
	State   ConnState // of the moment
	Inbound bool      // the peer has made the connection
	// Received and Sent are the numbers of bytes; negative: the network does not count them.
	Received, Sent int64
	Report         string // as of [Reporter]
}

// ConnState is the state of a connection, one word.
type ConnState string

// The states of connections.
const (
	ConnConnecting ConnState = "connecting" // an attempt is under way
	ConnOpen       ConnState = "open"       // the network does not say more
	ConnActive     ConnState = "active"     // messages, transfers or requests are under way
	ConnIdle       ConnState = "idle"       // nothing is under way
	ConnBlocked    ConnState = "blocked"    // the peer takes no bytes
	ConnPaused     ConnState = "paused"     // this side reads nothing, because the peer leaves too many answers unread
	ConnEnding     ConnState = "ending"     // the connection is over, and its memory is not yet released
)

// FirstConns sorts list as [ConnLister] says, and returns at most limit of it.
func FirstConns(list []ConnInfo, limit int) []ConnInfo {
	slices.SortFunc(list, func(a, b ConnInfo) int {
		return cmp.Or(attemptsFirst(a.State)-attemptsFirst(b.State), cmp.Compare(b.Received+b.Sent, a.Received+a.Sent), cmp.Compare(a.Peer, b.Peer))
	})
	return list[:min(len(list), limit)]
}

func attemptsFirst(s ConnState) int {
	if s == ConnConnecting {
		return 0
	}
	return 1
}
