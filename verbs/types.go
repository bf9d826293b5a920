package verbs

import "cinnabar/verbs/driver"

// Values that programs and devices share are declared in verbs/driver and
// aliased here; their doc comments there say what each field means.
type (
	// SendWR is a work request of the send queue.
	SendWR = driver.SendWR
	// RecvWR is a work request of a receive queue.
	RecvWR = driver.RecvWR
	// SGE is one entry of a gather or scatter list; [MR.SGE] makes it.
	SGE = driver.SGE
	// RemoteAddr names memory of the peer.
	RemoteAddr = driver.RemoteAddr
	// Opcode is the operation of a send work request.
	Opcode = driver.Opcode
	// SendFlags modify one send work request.
	SendFlags = driver.SendFlags

	// WC is a work completion.
	WC = driver.WC
	// WCOp is the kind of work that a completion reports.
	WCOp = driver.WCOp
	// WCStatus is the outcome of a work request.
	WCStatus = driver.WCStatus

	// Access says what a registration or a queue pair permits.
	Access = driver.Access

	// QPType is the transport service of a queue pair.
	QPType = driver.QPType
	// QPState is the state of a queue pair.
	QPState = driver.QPState
	// QPAttr are the attributes that [QP.Modify] sets and [QP.Query] returns.
	QPAttr = driver.QPAttr
	// QPAttrMask says which fields of a [QPAttr] count.
	QPAttrMask = driver.QPAttrMask
	// QPCap are the limits of a queue pair.
	QPCap = driver.QPCap
	// SRQAttr is the changeable part of a shared receive queue.
	SRQAttr = driver.SRQAttr
	// AHAttr describes a way to a peer.
	AHAttr = driver.AHAttr
	// AddressHandle names the destination of unreliable datagrams. It belongs to
	// its creator, who closes it before the protection domain.
	AddressHandle = driver.AddressHandle

	// DeviceAttr describes a device: its limits, abilities and ports.
	DeviceAttr = driver.DeviceAttr
	// PortAttr describes a port.
	PortAttr = driver.PortAttr
	// GIDType is the wire format of packets from a GID.
	GIDType = driver.GIDType
	// GIDEntry is a place of a port's GID table.
	GIDEntry = driver.GIDEntry
	// Caps are the abilities that differ between devices.
	Caps = driver.Caps
	// AtomicCap is the reach of a device's atomics.
	AtomicCap = driver.AtomicCap
	// NodeType is the kind of device.
	NodeType = driver.NodeType
	// TransportType is the wire protocol of a device.
	TransportType = driver.TransportType
	// PortState is the logical state of a port.
	PortState = driver.PortState
	// MTU is a path MTU code.
	MTU = driver.MTU
	// GUID is a 64-bit identifier of a node.
	GUID = driver.GUID
	// Stats is a snapshot of counters by name.
	Stats = driver.Stats

	// EventType is the kind of an asynchronous event.
	EventType = driver.EventType

	// ConnParam are the wishes of one side of a connection.
	ConnParam = driver.ConnParam
)

// Number is every numeric type whose size is the same on all platforms: what
// [RegSlice] accepts. None contains a pointer, so a peer's bytes may be written
// over its values.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 |
		~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~float32 | ~float64
}
