package na

import "context"

// Named is an [Addr] with a name, of a host or of a region of shared memory, in place of a peer's address. Lookup does not resolve
// the name, because only operations need the peer. The caller of an operation passes the result of Reached or Resolve; an operation
// with a Named itself completes with an error of kind [Invalid].
//
// Both methods are safe for concurrent use.
type Named interface {
	Addr
	// Reached returns the result of the latest Resolve while the connection with that peer lives, and nil otherwise.
	Reached() Addr
	// Resolve returns the peer that the name stands for at present. If the name has several addresses, Resolve connects to one
	// after the other until one accepts. It ends with an error when ctx ends or the endpoint is closed.
	Resolve(ctx context.Context) (Addr, error)
}
