package na

import "context"

// Named is an [Addr] that is a name: of a host, or of a region of shared memory. Only an operation needs to know the peer
// that the name stands for, so Lookup does not find it out. An operation takes the address of the peer, from Reached or Resolve;
// [Endpoint]'s methods that start operations complete an operation with a Named with kind [Invalid].
//
// Both methods are safe for concurrent use.
type Named interface {
	Addr
	// Reached returns the peer that Resolve has found, as long as the connection with it lives, and nil otherwise.
	Reached() Addr
	// Resolve returns the peer that the name stands for now. Where a name has several addresses, it connects to each in
	// turn until one answers. It ends with ctx, and when the endpoint is closed.
	Resolve(ctx context.Context) (Addr, error)
}
