package verbs

import (
	"fmt"
	"net/netip"
	"strings"
)

// Caps are the abilities that differ between devices. A program checks them before it
// chooses a protocol.
type Caps uint64

const (
	// CapWriteImm: the device has OpWriteImm.
	CapWriteImm Caps = 1 << iota
	// CapSendImm: the device has OpSendImm.
	CapSendImm
	// CapSendInvalidate: the device has OpSendInvalidate, also for keys of regions with the right RemoteInvalidate. A device with CapMW2 alone has it
	// for keys of memory windows of type 2 only.
	CapSendInvalidate
	// CapAtomics: the device has OpCompareSwap and OpFetchAdd.
	CapAtomics
	// CapSRQ: the device has shared receive queues.
	CapSRQ
	// CapRNRWait: a message that finds no receive posted waits for one.
	CapRNRWait
	// CapExactStatus: a write or send completes only when the peer has its data.
	CapExactStatus
	// CapActiveFirst: the passive side of a connection must not send before the first
	// message of the active side has arrived.
	CapActiveFirst
	// CapPassiveSend: on a device with CapActiveFirst the passive side may post sends at
	// once, because the device itself holds them until it may send.
	CapPassiveSend
	// CapRawState: queue pairs can be driven to RTR and RTS by hand.
	CapRawState
	// CapMultiSGERead: OpRead may scatter over several entries.
	CapMultiSGERead
	// CapTypeOfService: the packets of a connection have ConnParam.TypeOfService.
	CapTypeOfService
	// CapAckTimeout: a queue pair takes ConnParam.AckTimeout.
	CapAckTimeout
	// CapMW1: the device has memory windows of type 1, which OpBindMW binds.
	CapMW1
	// CapMW2: the device has memory windows of type 2, OpBindMW and OpLocalInv, and OpSendInvalidate for keys of such windows.
	CapMW2
)

var capNames = []string{"write-imm", "send-imm", "send-invalidate", "atomics", "srq", "rnr-wait",
	"exact-status", "active-first", "passive-send", "raw-state", "multi-sge-read", "type-of-service", "ack-timeout",
	"mw-type-1", "mw-type-2"}

// Has reports whether all bits of want are there.
func (c Caps) Has(want Caps) bool { return c&want == want }

// String lists the names of the bits.
func (c Caps) String() string {
	var s []string
	for i, n := range capNames {
		if c&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, " ")
}

// AtomicCap is the reach of a device's atomics (enum ibv_atomic_cap).
type AtomicCap uint32

const (
	// AtomicNone: the device has no atomics.
	AtomicNone AtomicCap = iota
	// AtomicHCA: atomic among the operations of one device.
	AtomicHCA
	// AtomicGlob: atomic among all devices and the processor.
	AtomicGlob
)

// String returns the C name.
func (a AtomicCap) String() string {
	return nameOf([]string{"ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"}, int(a))
}

// NodeType is the kind of device (enum ibv_node_type).
type NodeType int32

const (
	// NodeCA is an InfiniBand or RoCE adapter.
	NodeCA NodeType = 1
	// NodeRNIC is an iWARP adapter.
	NodeRNIC NodeType = 4
)

var nodeTypeNames = [...]string{1: "InfiniBand channel adapter", "InfiniBand switch", "InfiniBand router",
	"iWARP NIC", "usNIC", "usNIC UDP", "unspecified"}

// String returns the text of ibv_node_type_str.
func (n NodeType) String() string { return nameOf(nodeTypeNames[:], int(n)) }

// TransportType is the wire protocol (enum ibv_transport_type).
type TransportType int32

const (
	// TransportIB is InfiniBand, also over Ethernet.
	TransportIB TransportType = iota
	// TransportIWARP is iWARP over TCP.
	TransportIWARP
)

// String returns the word that ibv_devinfo prints.
func (t TransportType) String() string { return nameOf([]string{"InfiniBand", "iWARP"}, int(t)) }

// PortState is the logical state of a port (enum ibv_port_state).
type PortState uint32

const (
	// PortNop is no state.
	PortNop PortState = iota
	// PortDown has no link.
	PortDown
	// PortInit has a link without configuration.
	PortInit
	// PortArmed is configured.
	PortArmed
	// PortActive carries data.
	PortActive
	// PortActiveDefer is active with a failing link.
	PortActiveDefer
)

var portStateNames = [...]string{"no state change (NOP)", "down", "init", "armed", "active", "active defer"}

// String returns the text of ibv_port_state_str.
func (p PortState) String() string { return nameOf(portStateNames[:], int(p)) }

// MTU is a path MTU code (enum ibv_mtu): 1 is 256 bytes, 5 is 4096.
type MTU uint32

// Bytes returns the size that the code stands for, 0 for an unknown code.
func (m MTU) Bytes() int {
	if m < 1 || m > 5 {
		return 0
	}
	return 128 << m
}

// GUID is a 64-bit identifier of a node.
type GUID uint64

// String prints four groups of four hexadecimal digits.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// DeviceAttr describes a device (struct ibv_device_attr). Sizes are in bytes.
type DeviceAttr struct {
	Name         string
	Transport    TransportType
	NodeType     NodeType
	NodeGUID     GUID
	SysImageGUID GUID
	FWVersion    string
	VendorID     uint32
	VendorPartID uint32
	HWVersion    uint32
	Caps         Caps
	QPTypes      []QPType

	MaxMRSize       uint64
	PageSizeCap     uint64
	MaxQP           int
	MaxQPWR         int // depth limit of one queue
	MaxSGE          int
	MaxSGERead      int
	MaxInline       int
	MaxCQ           int
	MaxCQE          int
	MaxMR           int
	MaxPD           int
	MaxQPRDAtom     int // inbound reads and atomics of one queue pair (IRD)
	MaxQPInitRDAtom int // outbound (ORD)
	MaxSRQ          int
	MaxSRQWR        int
	MaxSRQSGE       int
	MaxAH           int
	MaxMW           int
	AtomicCap       AtomicCap
	MaxPrivateData  int // bytes a connect request can carry

	// ReadSink is the set of rights that a region needs if a read (OpRead) stores its data there; 0 is LocalWrite alone. A program registers the region
	// with LocalWrite|ReadSink. iWARP devices of package rdmacore (cards and siw) also need RemoteWrite; the software device does not. A read request of
	// iWARP names the sink by a key (RFC 5040 section 4.4), and a card stores the response by that key like a write of the peer. struct
	// ibv_device_attr has no such field; Linux derives the rights from the transport, in rdma_rw_init_one_mr.
	ReadSink Access

	Ports []PortAttr
}

// PortAttr describes a port (struct ibv_port_attr) with its addresses.
type PortAttr struct {
	Num         uint8
	State       PortState
	MaxMTU      MTU
	ActiveMTU   MTU
	LinkLayer   string // "Ethernet", "InfiniBand"
	MaxMsgSize  uint64 // bytes of one message
	LID, SMLID  uint16
	PKeys       []uint16
	GIDs        [][16]byte   // those that are set, the one that the device chooses to send from first
	GIDTable    []GIDEntry   // the same in the order of the port's table; nil: the device has no such table
	GIDTableLen int          // places of the table, set or not
	Addrs       []netip.Addr // addresses that Listen and Dial can use
}

// GIDType is the wire format of packets from a GID (enum ibv_gid_type).
type GIDType uint32

const (
	// GIDInfiniBand is InfiniBand.
	GIDInfiniBand GIDType = iota
	// GIDRoCE1 is directly on Ethernet.
	GIDRoCE1
	// GIDRoCE2 is over UDP and IP.
	GIDRoCE2
)

// String names the type as ibv_devinfo does.
func (g GIDType) String() string { return nameOf([]string{"InfiniBand", "RoCE v1", "RoCE v2"}, int(g)) }

// GIDEntry is a place of a port's GID table that is set (struct ibv_gid_entry).
type GIDEntry struct {
	Index int
	GID   [16]byte
	Type  GIDType
}

// Stats is a snapshot of a device's counters, by name (for tools and tests).
type Stats map[string]uint64
