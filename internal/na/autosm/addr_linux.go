package autosm

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/rundown"
)

// both are the addresses of one process.
type both struct {
	near, network na.Addr
	str           string
}

// String implements [na.Addr].
func (b *both) String() string { return b.str }

// Equal implements [na.Addr]. A process is the same if its addresses in one of the networks are.
func (b *both) Equal(other na.Addr) bool {
	switch o := other.(type) {
	case *peer:
		return b.near.Equal(o.near)
	case *self:
		return b.near.Equal(o.near)
	case *named:
		return b.near.Equal(o.near) && b.network.Equal(o.network)
	}
	return other != nil && (b.near.Equal(other) || b.network.Equal(other))
}

// self is the address of the endpoint itself.
type self struct{ both }

// Done implements [na.Addr].
func (s *self) Done() <-chan struct{} { return s.network.Done() }

// Account implements [na.Addr].
func (s *self) Account() *hostquota.Account { return s.network.Account() }

// Identity implements [na.Identified], for calls of this process to itself.
func (s *self) Identity() identity.Peer { return identity.Peer{Kind: identity.Self} }

// peer is the address of a process that is reached over shared memory, and has an address in the network too, by which its memory is
// accessed if a descriptor has no handle of shared memory.
type peer struct{ both }

var _ na.Annotated = (*peer)(nil)

func (e *Endpoint) peerAt(near, network na.Addr) *peer {
	return &peer{both{near, network, combine(near, network)}}
}

// Done implements [na.Addr].
func (p *peer) Done() <-chan struct{} { return p.near.Done() }

// Account implements [na.Addr].
func (p *peer) Account() *hostquota.Account { return p.near.Account() }

// Annotation implements [na.Annotated].
func (p *peer) Annotation() *atomic.Value { return p.near.(na.Annotated).Annotation() }

// named is a combined address of a process on this host. It implements [na.Named]: the first operation, and the first one after a lost
// connection, choose between shared memory and the network.
type named struct {
	ep            *Endpoint
	str           string
	near, network na.Addr // near is a [na.Named] if the endpoint in shared memory has a name; network is never one

	found atomic.Pointer[choice] // of the latest operation; nil: there was none
}

// choice is the address that operations use, and the time of the choice by [progress.Now].
type choice struct {
	addr na.Addr
	at   int64
}

// choiceHolds is the time for which a process without a connection counts as being in shared memory, because finding out takes some system
// calls, and transfers alone make no connection.
const choiceHolds = int64(time.Second)

var _ na.Named = (*named)(nil)

// String implements [na.Addr].
func (n *named) String() string { return n.str }

// Equal implements [na.Addr].
func (n *named) Equal(other na.Addr) bool {
	if o, ok := other.(*named); ok {
		return n.near.Equal(o.near) && n.network.Equal(o.network)
	}
	return other != nil && (other.Equal(n.near) || other.Equal(n.network))
}

// Done implements [na.Addr].
func (n *named) Done() <-chan struct{} { return n.latest().Done() }

// Account implements [na.Addr].
func (n *named) Account() *hostquota.Account { return n.latest().Account() }

// latest returns the address that the latest operation has used, or that of the network if there was no operation.
func (n *named) latest() na.Addr {
	if c := n.found.Load(); c != nil {
		return c.addr
	}
	return n.network
}

// Reached implements [na.Named]. While there is no connection it chooses, without traffic: shared memory if the endpoint exists there,
// otherwise the network. It never returns nil, because an address in either network needs no Resolve.
func (n *named) Reached() na.Addr {
	found := n.found.Load()
	var last *peer
	if found != nil {
		last, _ = found.addr.(*peer)
		done := found.addr.Done()
		if done != nil && !rundown.IsClosed(done) || done == nil && last != nil && progress.Now()-found.at < choiceHolds {
			return found.addr
		}
	}
	if near := n.nearby(); near != nil {
		if last == nil || !last.near.Equal(near) {
			last = n.ep.peerAt(near, n.network)
		}
		return n.keep(last)
	}
	return n.keep(n.network)
}

// Resolve implements [na.Named].
func (n *named) Resolve(context.Context) (na.Addr, error) { return n.Reached(), nil }

func (n *named) keep(a na.Addr) na.Addr {
	n.found.Store(&choice{a, progress.Now()})
	return a
}

// nearby returns the address in shared memory, or nil if the endpoint cannot be reached there.
func (n *named) nearby() na.Addr {
	near := n.near
	if name, ok := near.(na.Named); ok {
		if near = name.Reached(); near == nil {
			var err error
			if near, err = name.Resolve(context.Background()); err != nil { // which reads a file only
				return nil
			}
		}
	}
	if !n.ep.reaches(near, n.network) {
		return nil
	}
	return near
}

// reaches reports whether near is an address of the process that has the address network. It returns false if near is this endpoint's own
// address, because the peer is then a process of another container that has the same number as this one.
func (e *Endpoint) reaches(near, network na.Addr) bool {
	return !e.near.Addr().Equal(near) && e.near.Reachable(near, network.String(), func(pid int) error { return listensAt(pid, network) }) == nil
}

// onThisHost reports whether an address of the network has the IP address of an interface of this host, or of the loopback. It returns
// false for a host name.
func onThisHost(a na.Addr) bool {
	_, hostPort, _ := strings.Cut(a.String(), "://")
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return false
	}
	ip := at.Addr().Unmap()
	if ip.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, own := range addrs {
		if p, err := netip.ParsePrefix(own.String()); err == nil && p.Addr().Unmap() == ip {
			return true
		}
	}
	return false
}
