package na

// SharedMemory is an [Endpoint] on two networks (auto_sm of Mercury's HG layer): processes of the same host are reached over shared
// memory, and those of other hosts over the network that the endpoint was opened for.
//
// Its methods take the addresses of both networks. The bytes of [Endpoint.AppendAddr] and [Endpoint.ParseAddr], of [Memory.AppendHandle] and
// [Endpoint.ParseHandle] are those of the network, because peers on other hosts, and peers without shared memory, read these alone. Each
// [Handle] of its memory is a [SharedHandle]. It is no [SegmentRegistrar], because the two networks would have to agree on the number of segments.
type SharedMemory interface {
	Endpoint
	// Shares reports whether messages to a travel over shared memory.
	Shares(a Addr) bool
	// Part returns one of the two addresses of the process at a. If shared is true that is its address in shared memory, or a itself if it has
	// none there. If shared is false it is its address in the network, or nil if it has none there.
	Part(a Addr, shared bool) Addr
	// AppendSharedAddr appends the address in shared memory, as AppendAddr appends that in the network.
	AppendSharedAddr(b []byte, a Addr) []byte
	// ParseAddrs reads the two addresses of one process. Both are hostile and are not kept.
	ParseAddrs(network, shared []byte) (Addr, error)
	// ParseHandles reads the two handles of the same memory. shared is empty if there is none. Both are hostile and are not kept.
	ParseHandles(network, shared []byte) (RemoteMemory, error)
}

// SharedHandle is a [Handle] of an endpoint with [SharedMemory].
type SharedHandle interface {
	Handle
	// AppendSharedHandle appends the description with which a peer reaches the memory over shared memory.
	AppendSharedHandle(b []byte) []byte
}
