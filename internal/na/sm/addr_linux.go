package sm

import (
	"os"
	"sync/atomic"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// Addr is a peer of an endpoint, or the endpoint itself. It implements [na.Addr].
type Addr struct {
	ep  *Endpoint
	who identity
	uri string // what follows "://": who, or the name that the endpoint was given

	uid     uint32                            // of its process: this one's unless the kernel has said otherwise
	account atomic.Pointer[hostquota.Account] // of the process, once it was asked for

	relayed atomic.Bool                 // the kernel does not let its memory be reached, but it serves that itself
	note    atomic.Value                // see Annotation
	attach  atomic.Pointer[AttachError] // what the kernel said when they connected, nil if it lets it be reached
	peer
}

// String implements [na.Addr].
func (a *Addr) String() string { return scheme + a.uri }

// Equal implements [na.Addr].
func (a *Addr) Equal(other na.Addr) bool {
	if n, ok := other.(*named); ok {
		return n.Equal(a)
	}
	b, ok := other.(*Addr)
	return ok && (a == b || a.who == b.who)
}

// Done implements [na.Addr].
func (a *Addr) Done() <-chan struct{} { return a.done() }

// newAddr returns the address of a peer in a process of this process's user.
func (e *Endpoint) newAddr(who identity, uri string) *Addr {
	return &Addr{ep: e, who: who, uri: uri, uid: uint32(os.Geteuid())}
}

// Annotation implements [na.Annotated].
func (a *Addr) Annotation() *atomic.Value { return &a.note }

// Account implements [na.Addr]. The host of a peer is its process.
func (a *Addr) Account() *hostquota.Account {
	if account := a.account.Load(); account != nil {
		return account
	}
	var h hostquota.Host
	switch {
	case a.who == a.ep.who:
	case a.ep.cfg.hosts != nil:
		h = a.ep.cfg.hosts.of(a.who, a.uid)
	default:
		h = hostquota.ProcessHost(a.uid, a.who.pid)
	}
	a.account.CompareAndSwap(nil, a.ep.cfg.Quota.Account(h))
	return a.account.Load()
}
