package sm

import (
	"os"
	"sync/atomic"

	proven "cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// Addr is a peer of an endpoint, or the endpoint itself. It implements [na.Addr].
type Addr struct {
	ep    *Endpoint
	ident identity
	uri   string // the part after "://": the identity, or the name given to the endpoint

	uid     uint32                            // of its process: this process's unless the kernel has named another
	account atomic.Pointer[hostquota.Account] // of the process, nil before the first call of Account
	proven  atomic.Pointer[proven.Peer]       // the user that the kernel has named; nil: it has named none

	relayed atomic.Bool                 // the kernel denies access to the peer's memory, and the peer's relay serves it
	note    atomic.Value                // see Annotation
	attach  atomic.Pointer[AttachError] // the kernel's refusal of access to the peer's memory when they connected, nil if it permitted access
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
	return ok && (a == b || a.ident == b.ident)
}

// Done implements [na.Addr].
func (a *Addr) Done() <-chan struct{} { return a.done() }

// newAddr returns the address of a peer in a process of this process's user.
func (e *Endpoint) newAddr(ident identity, uri string) *Addr {
	return &Addr{ep: e, ident: ident, uri: uri, uid: uint32(os.Geteuid())}
}

// Identity implements [na.Identified].
func (a *Addr) Identity() proven.Peer {
	if a == a.ep.own {
		return proven.Peer{Kind: proven.Self}
	}
	if p := a.proven.Load(); p != nil {
		return *p
	}
	return proven.Peer{} // a client without a datagram, which only a program in C can be
}

// identify records the user of a process, and its number if the kernel has named it.
func (a *Addr) identify(uid uint32, pid int32) {
	a.proven.Store(&proven.Peer{Kind: proven.Process, UID: uid, PID: pid})
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
	case a.ident == a.ep.ident:
	case a.ep.cfg.hosts != nil:
		h = a.ep.cfg.hosts.of(a.ident, a.uid)
	default:
		h = hostquota.ProcessHost(a.uid, a.ident.pid)
	}
	a.account.CompareAndSwap(nil, a.ep.cfg.Quota.Account(h))
	return a.account.Load()
}
