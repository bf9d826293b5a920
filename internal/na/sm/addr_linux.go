package sm

import (
	"sync/atomic"

	"cinnabar/internal/na"
)

// Addr is a peer of an endpoint, or the endpoint itself. It implements [na.Addr].
type Addr struct {
	ep  *Endpoint
	who identity
	uri string // what follows "://": who, or the name that the endpoint was given

	relayed atomic.Bool                 // the kernel does not let its memory be reached, but it serves that itself
	attach  atomic.Pointer[AttachError] // what the kernel said when they connected, nil if it lets it be reached
	peer
}

// String implements [na.Addr].
func (a *Addr) String() string { return scheme + a.uri }

// Equal implements [na.Addr].
func (a *Addr) Equal(other na.Addr) bool {
	b, ok := other.(*Addr)
	return ok && (a == b || a.who == b.who)
}

// Done implements [na.Addr].
func (a *Addr) Done() <-chan struct{} { return a.done() }
