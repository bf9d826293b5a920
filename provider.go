package cinnabar

import (
	"context"
	"fmt"
	"log/slog"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
)

// Provider is one of several services in a process: RPCs registered on it have its id, so that two providers may serve
// RPCs of the same name. It is safe for concurrent use.
type Provider struct {
	e        *Engine
	id       uint16
	identity string
}

// NewProvider makes a provider with an id of its own. identity is a word for the kind of service; peers may
// ask for it (package margo, Identity; margo_provider_get_identity). Id 65535 stands for no provider and is the
// engine's.
func (e *Engine) NewProvider(id uint16, identity string) (*Provider, error) {
	if id == wire.DefaultProvider {
		return nil, argumentError("make provider", "", "", "id %d stands for no provider; register on the engine itself", id)
	}
	p := &Provider{e: e, id: id, identity: identity}
	if err := p.claim(); err != nil {
		return nil, err
	}
	if err := identityRPC.Handle(p, p.answerIdentity); err != nil {
		p.disclaim()
		return nil, err
	}
	return p, nil
}

// claim takes the id, if it is free.
func (p *Provider) claim() error {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if other := p.e.providers[p.id]; other != nil {
		return &Error{Op: "make provider", Code: codes.Exist,
			Err: fmt.Errorf("id %d of %q is taken by %q; use another or close that one", p.id, p.identity, other.identity)}
	}
	p.e.providers[p.id] = p
	return nil
}

func (p *Provider) disclaim() {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if p.e.providers[p.id] == p {
		delete(p.e.providers, p.id)
	}
}

// Close removes the provider's RPCs; handlers that run are not affected. Its id is free then.
func (p *Provider) Close() error {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if p.e.providers[p.id] != p {
		return nil
	}
	for _, entry := range p.e.handlers.table.Entries() {
		if entry.Value.owner == p { // the engine's own of flavour Thallium may have the same id
			p.e.handlers.table.Remove(entry.ID)
		}
	}
	delete(p.e.providers, p.id)
	return nil
}

func (p *Provider) registrar() (*Engine, uint16, bool) { return p.e, p.id, true }

// The two RPCs that each Margo instance serves (margo-core.c, margo-identity.c).
var (
	identityRPC = NewRPC[struct{}, identityOut]("__identity__")
	shutdownRPC = NewRPC[struct{}, shutdownOut]("__shutdown__")
)

type identityOut struct{ Identity *string }

// shutdownOut is 0 if the peer shuts down, -1 if it does not allow that.
type shutdownOut struct{ Ret int32 }

// serveInternal registers the RPCs that each Margo instance serves. Without a provider there is no identity, but the name is
// registered. The engine is new, so nothing stands in the way.
func (e *Engine) serveInternal() {
	for _, err := range []error{identityRPC.Handle(e, nil), shutdownRPC.Handle(e, e.answerShutdown)} {
		if err != nil {
			panic("cinnabar: " + err.Error())
		}
	}
}

func (p *Provider) answerIdentity(context.Context, struct{}) (identityOut, error) {
	return identityOut{Identity: &p.identity}, nil
}

// audit records an event that a handler's caller has caused.
func (e *Engine) audit(ctx context.Context, event audit.Event, cause string) {
	from := InfoFrom(ctx).Peer
	e.cfg.trail.Record(event, cause, from.addr.Account().Host(), slog.String(logPeer, from.String()))
}

func (e *Engine) answerShutdown(ctx context.Context, _ struct{}) (shutdownOut, error) {
	if !e.cfg.AllowRemoteShutdown {
		e.audit(ctx, audit.Shutdown, "refused: Config.AllowRemoteShutdown is not set")
		return shutdownOut{Ret: -1}, nil
	}
	e.audit(ctx, audit.Shutdown, "obeyed")
	return shutdownOut{}, e.Shutdown(ctx)
}
