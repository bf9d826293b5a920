package verbs

import "cinnabar/verbs/driver"

// Operations of send work requests.
const (
	// OpWrite writes to the peer's memory; the peer is not told.
	OpWrite = driver.OpWrite
	// OpWriteImm writes, then consumes a receive at the peer and hands it 32 bits.
	OpWriteImm = driver.OpWriteImm
	// OpSend puts a message into the peer's oldest posted receive.
	OpSend = driver.OpSend
	// OpSendImm sends a message and 32 bits beside it.
	OpSendImm = driver.OpSendImm
	// OpRead reads from the peer's memory.
	OpRead = driver.OpRead
	// OpCompareSwap replaces 8 bytes of the peer's if they have the expected value.
	OpCompareSwap = driver.OpCompareSwap
	// OpFetchAdd adds to 8 bytes of the peer's.
	OpFetchAdd = driver.OpFetchAdd
	// OpLocalInv revokes a key of one's own.
	OpLocalInv = driver.OpLocalInv
	// OpBindMW binds a memory window.
	OpBindMW = driver.OpBindMW
	// OpSendInvalidate sends a message and revokes a key of the peer's, whose region must have the right RemoteInvalidate.
	OpSendInvalidate = driver.OpSendInvalidate
)

// Flags of send work requests.
const (
	// Fence holds the request until earlier reads and atomics of its queue are done.
	Fence = driver.Fence
	// Signaled asks for a completion.
	Signaled = driver.Signaled
	// Solicited raises the peer's solicited-only completion event.
	Solicited = driver.Solicited
	// Inline copies the payload during the post, so that its memory is free at once.
	Inline = driver.Inline
)

// Access rights. Reading locally is always allowed.
const (
	// LocalWrite lets this side's receives and reads write to the region.
	LocalWrite = driver.LocalWrite
	// RemoteWrite lets peers write; it needs LocalWrite.
	RemoteWrite = driver.RemoteWrite
	// RemoteRead lets peers read.
	RemoteRead = driver.RemoteRead
	// RemoteAtomic lets peers use atomics; it needs LocalWrite.
	RemoteAtomic = driver.RemoteAtomic
	// MWBind lets memory windows be bound to the region.
	MWBind = driver.MWBind
	// ZeroBased makes remote addresses offsets into the region.
	ZeroBased = driver.ZeroBased
	// OnDemand asks for paging instead of locked memory.
	OnDemand = driver.OnDemand
	// HugeTLB says that the region lies on huge pages.
	HugeTLB = driver.HugeTLB
	// FlushGlobal permits flushing to global visibility.
	FlushGlobal = driver.FlushGlobal
	// FlushPersistent permits flushing to persistence.
	FlushPersistent = driver.FlushPersistent
	// RelaxedOrdering lets the device reorder its accesses; ignored where unsupported.
	RelaxedOrdering = driver.RelaxedOrdering
	// RemoteInvalidate lets peers revoke the region's remote key by OpSendInvalidate. rdma-core has no such right.
	RemoteInvalidate = driver.RemoteInvalidate
)

// Transport services of queue pairs.
const (
	// RC is the reliable connection.
	RC = driver.RC
	// UC is the unreliable connection.
	UC = driver.UC
	// UD are unreliable datagrams.
	UD = driver.UD
	// RawPacket sends frames as they are.
	RawPacket = driver.RawPacket
	// XRCSend is the initiating half of an extended reliable connection.
	XRCSend = driver.XRCSend
	// XRCRecv is its target half.
	XRCRecv = driver.XRCRecv
)

// States of queue pairs.
const (
	// StateReset is the state after creation.
	StateReset = driver.StateReset
	// StateInit accepts receives.
	StateInit = driver.StateInit
	// StateRTR receives messages.
	StateRTR = driver.StateRTR
	// StateRTS sends and receives.
	StateRTS = driver.StateRTS
	// StateSQD drains the send queue.
	StateSQD = driver.StateSQD
	// StateSQE is a failed send queue of an unreliable type.
	StateSQE = driver.StateSQE
	// StateErr flushes everything posted.
	StateErr = driver.StateErr
)

// Attributes of queue pairs, named in [QPAttr].Mask.
const (
	// AttrState selects QPAttr.State.
	AttrState = driver.AttrState
	// AttrCurState selects QPAttr.CurState.
	AttrCurState = driver.AttrCurState
	// AttrEnSQDAsyncNotify asks for EventSQDrained.
	AttrEnSQDAsyncNotify = driver.AttrEnSQDAsyncNotify
	// AttrAccess selects QPAttr.Access.
	AttrAccess = driver.AttrAccess
	// AttrPKeyIndex selects QPAttr.PKeyIndex.
	AttrPKeyIndex = driver.AttrPKeyIndex
	// AttrPort selects QPAttr.Port.
	AttrPort = driver.AttrPort
	// AttrQKey selects QPAttr.QKey.
	AttrQKey = driver.AttrQKey
	// AttrAV selects QPAttr.AH.
	AttrAV = driver.AttrAV
	// AttrPathMTU selects QPAttr.PathMTU.
	AttrPathMTU = driver.AttrPathMTU
	// AttrTimeout selects QPAttr.Timeout.
	AttrTimeout = driver.AttrTimeout
	// AttrRetryCount selects QPAttr.RetryCount.
	AttrRetryCount = driver.AttrRetryCount
	// AttrRNRRetry selects QPAttr.RNRRetry.
	AttrRNRRetry = driver.AttrRNRRetry
	// AttrRQPSN selects QPAttr.RQPSN.
	AttrRQPSN = driver.AttrRQPSN
	// AttrMaxRDAtomic selects QPAttr.MaxRDAtomic.
	AttrMaxRDAtomic = driver.AttrMaxRDAtomic
	// AttrMinRNRTimer selects QPAttr.MinRNRTimer.
	AttrMinRNRTimer = driver.AttrMinRNRTimer
	// AttrSQPSN selects QPAttr.SQPSN.
	AttrSQPSN = driver.AttrSQPSN
	// AttrMaxDestRDAtomic selects QPAttr.MaxDestRDAtomic.
	AttrMaxDestRDAtomic = driver.AttrMaxDestRDAtomic
	// AttrCap selects QPAttr.Cap.
	AttrCap = driver.AttrCap
	// AttrDestQPN selects QPAttr.DestQPN.
	AttrDestQPN = driver.AttrDestQPN
)

// Abilities of devices.
const (
	// CapWriteImm: the device has OpWriteImm.
	CapWriteImm = driver.CapWriteImm
	// CapSendImm: the device has OpSendImm.
	CapSendImm = driver.CapSendImm
	// CapSendInvalidate: the device has OpSendInvalidate.
	CapSendInvalidate = driver.CapSendInvalidate
	// CapAtomics: the device has OpCompareSwap and OpFetchAdd.
	CapAtomics = driver.CapAtomics
	// CapSRQ: the device has shared receive queues.
	CapSRQ = driver.CapSRQ
	// CapRNRWait: a message without a posted receive waits.
	CapRNRWait = driver.CapRNRWait
	// CapExactStatus: writes and sends complete only when the peer has them.
	CapExactStatus = driver.CapExactStatus
	// CapActiveFirst: the passive side may not send before the active side.
	CapActiveFirst = driver.CapActiveFirst
	// CapPassiveSend: the device itself holds the passive side's early sends back.
	CapPassiveSend = driver.CapPassiveSend
	// CapRawState: queue pairs can be driven to RTR and RTS by hand.
	CapRawState = driver.CapRawState
	// CapMultiSGERead: OpRead may scatter over several entries.
	CapMultiSGERead = driver.CapMultiSGERead
)

// Reach of atomics.
const (
	// AtomicNone: the device has no atomics.
	AtomicNone = driver.AtomicNone
	// AtomicHCA: atomic among the operations of one device.
	AtomicHCA = driver.AtomicHCA
	// AtomicGlob: atomic among all devices and the processor.
	AtomicGlob = driver.AtomicGlob
)

// Kinds of devices and wire protocols.
const (
	// NodeCA is an InfiniBand or RoCE adapter.
	NodeCA = driver.NodeCA
	// NodeRNIC is an iWARP adapter.
	NodeRNIC = driver.NodeRNIC
	// TransportIB is InfiniBand, also over Ethernet.
	TransportIB = driver.TransportIB
	// TransportIWARP is iWARP over TCP.
	TransportIWARP = driver.TransportIWARP
)

// States of ports.
const (
	// PortNop is no state.
	PortNop = driver.PortNop
	// PortDown has no link.
	PortDown = driver.PortDown
	// PortInit has a link without configuration.
	PortInit = driver.PortInit
	// PortArmed is configured.
	PortArmed = driver.PortArmed
	// PortActive carries data.
	PortActive = driver.PortActive
	// PortActiveDefer is active with a failing link.
	PortActiveDefer = driver.PortActiveDefer
)

// DefaultQKey is the key of a UD queue pair that was given none.
const DefaultQKey = driver.DefaultQKey

// Wire formats of packets, by the type of the GID that they are sent from.
const (
	// GIDInfiniBand is InfiniBand.
	GIDInfiniBand = driver.GIDInfiniBand
	// GIDRoCE1 is directly on Ethernet.
	GIDRoCE1 = driver.GIDRoCE1
	// GIDRoCE2 is over UDP and IP.
	GIDRoCE2 = driver.GIDRoCE2
)

// MaxRNRRetry is the RNR retry count that means for ever.
const MaxRNRRetry = driver.MaxRNRRetry
