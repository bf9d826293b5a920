package verbs

import "strings"

// Access is a set of rights of a registration or a queue pair (enum
// ibv_access_flags). Reading locally is always allowed.
type Access uint32

const (
	// LocalWrite lets this side's receives and reads write to the region.
	LocalWrite Access = 1 << 0
	// RemoteWrite lets peers write; it needs LocalWrite.
	RemoteWrite Access = 1 << 1
	// RemoteRead lets peers read.
	RemoteRead Access = 1 << 2
	// RemoteAtomic lets peers use atomics; it needs LocalWrite.
	RemoteAtomic Access = 1 << 3
	// MWBind lets memory windows be bound to the region.
	MWBind Access = 1 << 4
	// ZeroBased makes remote addresses offsets into the region.
	ZeroBased Access = 1 << 5
	// OnDemand asks for paging instead of locked memory.
	OnDemand Access = 1 << 6
	// HugeTLB says that the region lies on huge pages.
	HugeTLB Access = 1 << 7
	// FlushGlobal permits flushing to global visibility.
	FlushGlobal Access = 1 << 8
	// FlushPersistent permits flushing to persistence.
	FlushPersistent Access = 1 << 9
	// RelaxedOrdering lets the device reorder its accesses; ignored where unsupported.
	RelaxedOrdering Access = 1 << 20

	// RemoteInvalidate lets a peer revoke the region's remote key by a Send with Invalidate. It is a right of this
	// project, not one of enum ibv_access_flags: RFC 5042 asks that a key which several streams share cannot be
	// invalidated by one of them, and rdma-core has no flag for it. A device that cannot enforce it ignores it; see
	// docs/real-hardware.md.
	RemoteInvalidate Access = 1 << 31

	// OptionalAccess are the bits that a device may ignore
	// (IBV_ACCESS_OPTIONAL_RANGE); it refuses any other bit that it lacks.
	OptionalAccess Access = 0x3ff << 20
)

var accessNames = []struct {
	bit  Access
	name string
}{
	{LocalWrite, "local-write"}, {RemoteWrite, "remote-write"}, {RemoteRead, "remote-read"},
	{RemoteAtomic, "remote-atomic"}, {MWBind, "mw-bind"}, {ZeroBased, "zero-based"},
	{OnDemand, "on-demand"}, {HugeTLB, "hugetlb"}, {FlushGlobal, "flush-global"},
	{FlushPersistent, "flush-persistent"}, {RelaxedOrdering, "relaxed-ordering"},
	{RemoteInvalidate, "remote-invalidate"},
}

// String lists the names of the bits, "local-read" if there are none.
func (a Access) String() string {
	var s []string
	for _, n := range accessNames {
		if a&n.bit != 0 {
			s = append(s, n.name)
		}
	}
	if len(s) == 0 {
		return "local-read"
	}
	return strings.Join(s, "|")
}
