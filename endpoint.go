package cinnabar

import (
	"context"
	"strconv"

	"cinnabar/internal/na"
)

// Endpoint is the address of another process, or an engine's own. It belongs to the engine that made it and is valid
// until that engine is closed, however often the connection to the peer is lost and made anew meanwhile: a peer that
// restarts on the same address is reached by the same Endpoint. It is safe for concurrent use.
//
// An Endpoint with a name, of a host or of a server over na+sm, stands for the process that the name leads to. The first
// operation resolves the name, bounded by that operation's context, and so does the first operation after a lost connection. If
// a host has several addresses, the operation tries them in turn until one accepts the connection; if none does, the error lists
// each address with its cause.
type Endpoint struct {
	e     *Engine
	addr  na.Addr
	named na.Named // addr if that is a name, otherwise nil
}

// newEndpoint returns the Endpoint of address a.
func newEndpoint(e *Engine, a na.Addr) *Endpoint {
	ep := &Endpoint{e: e, addr: a}
	ep.named, _ = a.(na.Named)
	return ep
}

// reached returns the address for operations, or nil if its name must be resolved first.
func (ep *Endpoint) reached() na.Addr {
	if ep.named == nil {
		return ep.addr
	}
	return ep.named.Reached()
}

// reach returns the address for operations, and resolves its name first where that is necessary. A handler that waits for the
// resolution leaves its worker to other requests meanwhile.
func (ep *Endpoint) reach(ctx context.Context) (na.Addr, error) {
	if a := ep.reached(); a != nil {
		return a, nil
	}
	if s := scopeFrom(ctx); s != nil {
		s.pause()
		defer s.resume()
	}
	return ep.named.Resolve(ctx)
}

// String returns the address in the form that Lookup of any process accepts, those of C programs included. The String of an
// Endpoint with a name contains the name.
func (ep *Endpoint) String() string {
	if ep == nil || ep.addr == nil {
		return "no address"
	}
	return ep.addr.String()
}

// Equal reports whether both have the same address. An Endpoint with a name equals another one with the same name and, while its
// connection lives, also the Endpoint of the address to which the name was resolved.
func (ep *Endpoint) Equal(other *Endpoint) bool {
	if ep == nil || other == nil || ep.addr == nil || other.addr == nil {
		return ep == other
	}
	return ep.addr.Equal(other.addr) || other.addr.Equal(ep.addr) // an address in shared memory does not know those that contain it
}

// Provider returns the target for the RPCs of one provider in the process.
func (ep *Endpoint) Provider(id uint16) ProviderHandle { return ProviderHandle{Endpoint: ep, ID: id} }

// target makes *Endpoint a Target.
func (ep *Endpoint) target() (*Endpoint, uint16, bool) { return ep, 0, false }

// usable returns nil if operations of e may go to ep.
func (ep *Endpoint) usable() error {
	if ep == nil || ep.e == nil {
		return argumentError("use endpoint", "", "", "no endpoint given; Engine.Lookup makes one")
	}
	return nil
}

// Target is the destination of a call: an [*Endpoint], which stands for the flavour's default provider, or a [ProviderHandle].
type Target interface {
	target() (ep *Endpoint, provider uint16, given bool)
}

// ProviderHandle is one provider in another process; [Endpoint.Provider] makes it. It is a plain value.
type ProviderHandle struct {
	Endpoint *Endpoint // the address of the process
	ID       uint16    // the provider id
}

func (h ProviderHandle) target() (*Endpoint, uint16, bool) { return h.Endpoint, h.ID, true }

// MarshalText implements [encoding.TextMarshaler].
func (ep *Endpoint) MarshalText() ([]byte, error) { return []byte(ep.String()), nil }

// String returns the address with the provider id behind it.
func (h ProviderHandle) String() string { return h.Endpoint.String() + "@" + strconv.Itoa(int(h.ID)) }
