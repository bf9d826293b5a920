//go:build linux

package rdmacore

import (
	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

// The border is the functions and types by which this package drives devices. They have one form and two implementations: files *_cgo.go (build tag rdma
// and cgo) call the libraries of rdma-core, and files *_kernel.go (all other builds on Linux) call packages uverbs and ucm, which ask the kernel itself.

const (
	batchSize = 64  // work requests or completions of one crossing
	batchSGE  = 256 // scatter and gather entries of one crossing
)

// rawDevice is a device as the libraries or the kernel list it.
type rawDevice struct {
	name      string
	guid      uint64
	nodeType  int
	transport int
}

// Flags of device_cap_flags.
const (
	deviceMW   = 1 << 17 // IBV_DEVICE_MEM_WINDOW
	deviceMW2A = 1 << 23 // IBV_DEVICE_MEM_WINDOW_TYPE_2A
	deviceMW2B = 1 << 24 // IBV_DEVICE_MEM_WINDOW_TYPE_2B
)

// windowCaps returns CapMW1 and CapMW2 as device_cap_flags of ibv_query_device reports them.
func windowCaps(flags uint64) (c verbs.Caps) {
	if flags&deviceMW != 0 {
		c |= verbs.CapMW1
	}
	if flags&(deviceMW2A|deviceMW2B) != 0 {
		c |= verbs.CapMW2
	}
	return c
}

// linkLayers are the names of IBV_LINK_LAYER_*.
var linkLayers = map[uint32]string{0: "unspecified", 1: "InfiniBand", 2: linkEthernet}

const linkEthernet = "Ethernet"

// gidTypes are the kernel's names in sysfs for IBV_GID_TYPE_*.
var gidTypes = map[uint32]string{0: "IB/RoCE v1", 1: "IB/RoCE v1", 2: typeRoCE2}

// rawGID is an entry of a port's table; netdev is the index of its interface.
type rawGID struct {
	GID
	port   int
	netdev int
}

// defaultHopLimit is the hop limit that AHAttr.HopLimit 0 stands for.
const defaultHopLimit = 64

// gidType joins a port's link layer and the kernel's name for the type of an entry.
func gidType(linkLayer, name string) verbs.GIDType {
	switch {
	case name == typeRoCE2:
		return verbs.GIDRoCE2
	case linkLayer == linkEthernet:
		return verbs.GIDRoCE1
	}
	return verbs.GIDInfiniBand
}

// rawAsync is an asynchronous event; id is the number that the object was made with, or the port.
type rawAsync struct {
	typ verbs.EventType
	id  uint64
}

// The changes of reregMR (enum ibv_rereg_mr_flags).
const (
	reregMemory = 1 << iota // IBV_REREG_MR_CHANGE_TRANSLATION
	reregPD                 // IBV_REREG_MR_CHANGE_PD
	reregAccess             // IBV_REREG_MR_CHANGE_ACCESS
)

// rawQP has the parameters of a new queue pair; createQP returns the granted ones.
type rawQP struct {
	pd             pdHandle
	sendCQ, recvCQ cqHandle
	srq            srqHandle
	id             uint64
	typ            verbs.QPType
	signalAll      bool
	cap            verbs.QPCap
}

// cmParam are connection parameters as they cross the border.
type cmParam struct {
	data             []byte
	qpn              uint32
	responder, depth uint8
	retry, rnrRetry  uint8
	srq              bool
}

// cmEvent is an event of the connection manager, copied and acknowledged.
type cmEvent struct {
	typ    rdmacm.EventType
	status int      // a negative errno, or the reason of a rejection
	ctx    uint64   // of the identifier; for a request, of the listener
	child  cmHandle // of a request: the new identifier
	param  cmParam
	device string // of a removal: which one
}

// cmOption is an option of an identifier (RDMA_OPTION_ID_* of rdma_cma.h).
type cmOption int

const (
	cmTypeOfService cmOption = iota // RDMA_OPTION_ID_TOS
	cmReuseAddr                     // RDMA_OPTION_ID_REUSEADDR
	cmOnlyIPv6                      // RDMA_OPTION_ID_AFONLY: an identifier that is to be bound to :: does not take IPv4 too
	cmAckTimeout                    // RDMA_OPTION_ID_ACK_TIMEOUT
)

// maxPrivateData is the largest length in bytes that struct rdma_conn_param can hold.
const maxPrivateData = 255

// Flags of ibv_wc.
const (
	wcGRH = 1 << 0
	wcImm = 1 << 1
	wcInv = 1 << 3
)

// rawWC is a completion (struct ibv_wc). Imm is in host order, or the key that was invalidated.
type rawWC struct {
	ID                                              uint64
	Status, Op, Flags, Imm, Len, QPN, SrcQP, Vendor uint32
	SLID                                            uint16
	SL, PathBits                                    uint8
}

func (r rawWC) wc() verbs.WC {
	wc := verbs.WC{ID: r.ID, Status: verbs.WCStatus(r.Status), QPNum: r.QPN, Vendor: r.Vendor}
	if wc.Status != verbs.StatusSuccess {
		return wc // drivers leave the rest as they find it
	}
	wc.Op, wc.Len = verbs.WCOp(r.Op), r.Len
	wc.SrcQP, wc.SLID, wc.SL, wc.PathBits = r.SrcQP, r.SLID, r.SL, r.PathBits
	wc.HasGRH, wc.HasImm, wc.HasInv = r.Flags&wcGRH != 0, r.Flags&wcImm != 0, r.Flags&wcInv != 0
	switch {
	case wc.HasImm:
		wc.Imm = r.Imm
	case wc.HasInv:
		wc.InvKey = r.Imm
	}
	return wc
}
