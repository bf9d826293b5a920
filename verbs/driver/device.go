package driver

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Caps are the abilities that differ between devices. Programs ask for them
// before they choose a protocol.
type Caps uint64

const (
	CapWriteImm       Caps = 1 << iota // OpWriteImm
	CapSendImm                         // OpSendImm
	CapSendInvalidate                  // OpSendInvalidate
	CapAtomics                         // OpCompareSwap, OpFetchAdd
	CapSRQ                             // shared receive queues
	CapRNRWait                         // a message without a posted receive waits
	CapExactStatus                     // writes and sends complete only when the peer has them
	CapActiveFirst                     // the passive side may not send before the active side (iWARP)
	CapPassiveSend                     // the device itself holds the passive side's early sends back
	CapRawState                        // queue pairs can be driven to RTR and RTS by hand
	CapMultiSGERead                    // OpRead may scatter over several entries
)

var capNames = []string{"write-imm", "send-imm", "send-invalidate", "atomics", "srq", "rnr-wait",
	"exact-status", "active-first", "passive-send", "raw-state", "multi-sge-read"}

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
	AtomicNone AtomicCap = iota
	AtomicHCA            // atomic among the operations of this device
	AtomicGlob           // atomic among all devices and the processor
)

// String returns the C name.
func (a AtomicCap) String() string {
	return nameOf([]string{"ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"}, int(a))
}

// NodeType is the kind of device (enum ibv_node_type).
type NodeType int32

const (
	NodeCA   NodeType = 1
	NodeRNIC NodeType = 4
)

var nodeTypeNames = [...]string{1: "InfiniBand channel adapter", "InfiniBand switch", "InfiniBand router",
	"iWARP NIC", "usNIC", "usNIC UDP", "unspecified"}

// String returns the text of ibv_node_type_str.
func (n NodeType) String() string { return nameOf(nodeTypeNames[:], int(n)) }

// TransportType is the wire protocol (enum ibv_transport_type).
type TransportType int32

const (
	TransportIB TransportType = iota
	TransportIWARP
)

// String returns the word that ibv_devinfo prints.
func (t TransportType) String() string { return nameOf([]string{"InfiniBand", "iWARP"}, int(t)) }

// PortState is the logical state of a port (enum ibv_port_state).
type PortState uint32

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
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
	AtomicCap       AtomicCap
	MaxPrivateData  int // bytes a connect request can carry

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
	GIDInfiniBand GIDType = iota
	GIDRoCE1              // directly on Ethernet
	GIDRoCE2              // over UDP and IP
)

// String names the type; what is Ethernet's as ibv_devinfo does.
func (g GIDType) String() string { return nameOf([]string{"InfiniBand", "RoCE v1", "RoCE v2"}, int(g)) }

// GIDEntry is a place of a port's GID table that is set (struct ibv_gid_entry).
type GIDEntry struct {
	Index int
	GID   [16]byte
	Type  GIDType
}

// Stats is a snapshot of a device's counters, by name (for tools and tests).
type Stats map[string]uint64

// ConnParam are the wishes of one side of a connection (struct
// rdma_conn_param). The zero value asks for the device's defaults.
type ConnParam struct {
	PrivateData        []byte        // handed to the peer; limit in DeviceAttr.MaxPrivateData
	ResponderResources int           // inbound reads and atomics (IRD); 0: device's default, negative: none
	InitiatorDepth     int           // outbound reads and atomics (ORD); 0: device's default, negative: none
	RetryCount         int           // 0: device's default, negative: none, at most 7
	RNRRetry           int           // 0: 7, which waits for ever; negative: none; 1..6
	Timeout            time.Duration // how long the peer may take to answer; 0: device's default
}

// Check refuses, with [ErrInvalid] and a text that names the limit, what the device with these attributes
// cannot do. Dialling, listening and their like check it themselves; a program calls it to learn so before.
// op names the operation in the error.
func (p *ConnParam) Check(op string, attr *DeviceAttr) error {
	if len(p.PrivateData) > attr.MaxPrivateData {
		return Errorf(op, ErrInvalid, "%d bytes of private data are over the device's limit of %d (DeviceAttr.MaxPrivateData)", len(p.PrivateData), attr.MaxPrivateData)
	}
	if p.RetryCount > maxRetryCount {
		return Errorf(op, ErrInvalid, "RetryCount is %d, the most is %d", p.RetryCount, maxRetryCount)
	}
	if p.RNRRetry > MaxRNRRetry {
		return Errorf(op, ErrInvalid, "RNRRetry is %d, the most is %d", p.RNRRetry, MaxRNRRetry)
	}
	// A limit of 0 means that the device states none.
	if limit := attr.MaxQPRDAtom; limit > 0 && p.ResponderResources > limit {
		return Errorf(op, ErrInvalid, "ResponderResources is %d, over the device's limit of %d (DeviceAttr.MaxQPRDAtom)", p.ResponderResources, limit)
	}
	if limit := attr.MaxQPInitRDAtom; limit > 0 && p.InitiatorDepth > limit {
		return Errorf(op, ErrInvalid, "InitiatorDepth is %d, over the device's limit of %d (DeviceAttr.MaxQPInitRDAtom)", p.InitiatorDepth, limit)
	}
	return nil
}

// maxRetryCount is the most that the 3 bits of a retry count hold.
const maxRetryCount = 7

// MaxRNRRetry is the RNR retry count that means for ever.
const MaxRNRRetry = 7
