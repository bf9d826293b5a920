package verbs

import "fmt"

// Opcode is the operation of a send work request (enum ibv_wr_opcode).
type Opcode uint32

// The operations. Devices differ in the operations that they have: the [Caps] of
// a device has a flag for OpWriteImm, one for OpSendImm, one for both atomics, and
// one for each type of memory windows. OpSendInvalidate needs CapSendInvalidate or CapMW2.
const (
	// OpWrite writes to the peer's memory; nothing completes at the peer.
	OpWrite Opcode = 0 // IBV_WR_RDMA_WRITE
	// OpWriteImm writes, then consumes a receive at the peer. The completion of that receive has the 32 bits of Imm.
	OpWriteImm Opcode = 1 // IBV_WR_RDMA_WRITE_WITH_IMM: consumes one receive at the target
	// OpSend puts a message into the peer's oldest posted receive.
	OpSend Opcode = 2 // IBV_WR_SEND
	// OpSendImm sends a message and 32 bits beside it.
	OpSendImm Opcode = 3 // IBV_WR_SEND_WITH_IMM
	// OpRead reads from the peer's memory.
	OpRead Opcode = 4 // IBV_WR_RDMA_READ
	// OpCompareSwap replaces 8 bytes of the peer's if they have the expected value.
	OpCompareSwap Opcode = 5 // IBV_WR_ATOMIC_CMP_AND_SWP: 8 bytes, 8-byte aligned
	// OpFetchAdd adds to 8 bytes of the peer's.
	OpFetchAdd Opcode = 6 // IBV_WR_ATOMIC_FETCH_AND_ADD: 8 bytes, 8-byte aligned
	// OpLocalInv revokes the key of a memory window of type 2 that was bound on this queue pair. When it completes, the device touches no memory for the window.
	OpLocalInv Opcode = 7 // IBV_WR_LOCAL_INV
	// OpBindMW binds the memory window MW to the range of the only entry of SGL, with the rights MWAccess. A window of type 1 with an empty SGL is
	// bound to nothing. The key becomes valid when the device executes the request, so before it executes the requests behind it.
	OpBindMW Opcode = 8 // IBV_WR_BIND_MW
	// OpSendInvalidate sends a message and revokes a key of the peer's: that of a memory window of type 2 that the peer has bound on this connection, or
	// that of a region with the right RemoteInvalidate, if the peer's device has CapSendInvalidate.
	OpSendInvalidate Opcode = 9 // IBV_WR_SEND_WITH_INV: revokes InvKey at the target
)

var opcodeNames = [...]string{
	OpWrite: "rdma-write", OpWriteImm: "rdma-write-with-imm", OpSend: "send",
	OpSendImm: "send-with-imm", OpRead: "rdma-read", OpCompareSwap: "atomic-cmp-and-swp",
	OpFetchAdd: "atomic-fetch-and-add", OpLocalInv: "local-inv", OpBindMW: "bind-mw",
	OpSendInvalidate: "send-with-inv",
}

// String returns the name that ibv_wr_opcode_str gives.
func (o Opcode) String() string { return nameOf(opcodeNames[:], int(o)) }

// SendFlags modify one send work request (enum ibv_send_flags).
type SendFlags uint32

const (
	// Fence holds the request until earlier reads and atomics of its queue are done.
	Fence SendFlags = 1 << 0
	// Signaled asks for a completion; QPConfig.SignalAll sets it for all requests.
	Signaled SendFlags = 1 << 1
	// Solicited raises the peer's solicited-only completion event.
	Solicited SendFlags = 1 << 2
	// Inline copies the payload during the post, so that its memory is free at once.
	Inline SendFlags = 1 << 3
)

// SGE is one entry of a gather or scatter list (struct ibv_sge). It holds no
// Go pointer: arrays of it can cross to C as they are. Get one from MR.SGE,
// which checks the range.
type SGE struct {
	Addr   uint64 // of the first byte: its virtual address, or in a region of RegMRAt iova and its offset
	Length uint32 // bytes
	LKey   uint32 // local key of the region that holds the range
}

// RemoteAddr names memory of the peer, the target of an RDMA operation. The peer sends it out of band or in a message.
type RemoteAddr struct {
	Addr uint64 // as the peer's [MR.Remote] has it: a virtual address, or one that the peer's device has chosen
	RKey uint32 // remote key of the region at the peer
}

// Add returns the address n bytes further in the same region.
func (r RemoteAddr) Add(n uint64) RemoteAddr { return RemoteAddr{Addr: r.Addr + n, RKey: r.RKey} }

// WithKey returns the same address with another key, that of a memory window.
func (r RemoteAddr) WithKey(rkey uint32) RemoteAddr { return RemoteAddr{Addr: r.Addr, RKey: rkey} }

// String prints address and key in hexadecimal.
func (r RemoteAddr) String() string { return fmt.Sprintf("%#x/rkey %#x", r.Addr, r.RKey) }

// SendWR is a work request of the send queue (struct ibv_send_wr). The list
// that C chains through next is a slice here; the unions are plain fields, of
// which only those that Op uses are read.
type SendWR struct {
	ID    uint64 // returned in the completion, not interpreted
	Op    Opcode
	Flags SendFlags
	SGL   []SGE  // gathered in order; empty means zero bytes. Read only during the post
	Imm   uint32 // immediate data as a number; on the wire in network byte order

	InvKey uint32 // OpSendInvalidate: the peer's rkey; OpLocalInv: our own key

	MW       MemoryWindow // OpBindMW only: the window
	MWAccess Access       // OpBindMW only: the rights of the peer; any of RemoteRead, RemoteWrite and RemoteAtomic

	Remote     RemoteAddr // OpWrite, OpWriteImm, OpRead, atomics
	CompareAdd uint64     // OpCompareSwap: expected value; OpFetchAdd: addend
	Swap       uint64     // OpCompareSwap: new value

	AH         AddressHandle // unreliable datagrams only: where to
	RemoteQPN  uint32        // unreliable datagrams only: which queue pair there
	RemoteQKey uint32        // unreliable datagrams only: must be that queue pair's QKey, or the datagram is dropped; with bit 31, cards send the own QKey instead
}

// RecvWR is a work request of a receive queue (struct ibv_recv_wr). An empty
// list is legal: it takes a write with immediate or an empty send.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

// AddressHandle names the destination of unreliable datagrams (struct ibv_ah).
// Any number of datagrams, of any queue pair of its protection domain, may use it.
type AddressHandle interface {
	// Close releases the handle. It fails with ErrBusy while a datagram that was posted
	// to it is not known to be done; a second Close does nothing.
	Close() error
}

// AHAttr describes a way to a peer: that of an address handle or of a connected
// queue pair (struct ibv_ah_attr). On RoCE the GID alone names the peer; within
// an InfiniBand subnet the LID does, and the GID may be zero.
type AHAttr struct {
	GID      [16]byte // of the peer; zero: packets have no global route header
	DLID     uint16   // of the peer
	SL       uint8    // service level, 0..15
	PathBits uint8    // of the own LID, where the port has several
	PortNum  uint8    // to send from, numbered from 1; 0: 1

	// The rest is of the global route header.

	FlowLabel    uint32 // 20 bits
	TrafficClass uint8
	HopLimit     uint8 // 0: 64
	// SGIDIndex is the place in the port's GID table (PortAttr.GIDTable) of the own
	// GID. It counts if HasSGIDIndex is set; otherwise the device chooses.
	SGIDIndex    uint8
	HasSGIDIndex bool
}

// nameOf returns names[i], or "unknown" as the C functions do.
func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) || names[i] == "" {
		return "unknown"
	}
	return names[i]
}
