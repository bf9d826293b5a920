package cinnabar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"cinnabar/codes"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sched"
)

// service is one registration: an RPC that an engine serves for a provider.
type service struct {
	e        *Engine
	proc     *procedure
	id       uint64
	provider uint16
	owner    *Provider    // it is registered on; nil: on the engine
	named    *HandlerPool // the pool that runs the handlers; nil: none with a name
	pool     *sched.Pool
	priority int16
	pace     sched.LatencyEstimator
	serve    func(*service, *hg.Request) *sched.Job // makes the job that serves a request; nil: registered without a handler
}

func (svc *service) label() string { return svc.proc.label(svc.provider) }

// answer sends a code instead of a result: in Margo's header, or in the core's for RPCs that have no other. Codes that
// do not fit the core's one byte become codes.OtherError there.
func (svc *service) answer(r *hg.Request, code codes.Code) error {
	if svc.proc.flavor.overMargo() {
		return r.Respond(svc.e.contexts.ctx, wire.AppendMargoResponse(r.Output(), uint32(code)))
	}
	if code > codes.OtherError {
		code = codes.OtherError
	}
	return r.Fail(code)
}

// handlers takes an engine's requests. It is the [hg.Dispatcher] of the engine.
type handlers struct {
	e          *Engine
	pools      *pools
	table      hg.Registry[*service]
	natives    envelope.Server // serves the requests for native RPCs
	gate       rundown.Guard   // counts the requests that have not been released; after its Close no more are served
	ending     chan struct{}   // closed when gate is closed
	unanswered unansweredCalls
	scopes     envelope.Blocks[scope]
}

func (h *handlers) init(e *Engine) error {
	h.e, h.ending = e, make(chan struct{})
	h.natives.MaxTime, h.natives.Served, h.natives.Ending = e.cfg.MaxHandlerTime, h, h.ending
	h.unanswered.init()
	if parent := e.cfg.Parent; parent != nil {
		h.pools, h.natives.Streams = parent.handlers.pools, parent.handlers.natives.Streams
	} else {
		h.pools, h.natives.Streams = newPools(&e.cfg), envelope.NewStreams(e.cfg.MaxHandlers)
	}
	return h.pools.join(e)
}

// Dispatch implements [hg.Dispatcher].
func (h *handlers) Dispatch(r *hg.Request) na.Task {
	entry, known := h.table.Lookup(uint64(r.ID()))
	svc := entry.Value
	switch {
	case !known:
		code := h.Unknown(r.ID())
		if !r.IsProbe() {
			h.logUnknown(r, code)
		}
		refuse(r, nil, code)
	case svc.serve == nil && svc.proc.flavor == Mercury:
		refuse(r, svc, codes.InvalidArg) // as HG does with an id that has no callback
	case svc.serve == nil:
		refuse(r, svc, codes.NoEntry)
	case !h.gate.Acquire() && !(svc.proc.part && h.join()):
		refuse(r, svc, svc.proc.ending())
	default:
		return svc.serve(svc, r).Admit()
	}
	return nil
}

// ending returns the code that answers requests which come while the engine is shutting down.
func (p *procedure) ending() codes.Code {
	if p.native {
		return codes.Draining
	}
	return codes.Permission
}

// close refuses new requests, except those that belong to native calls under way.
func (h *handlers) close() {
	if h.gate.Close() {
		close(h.ending)
	}
}

// join admits a request that belongs to a native call under way, while the engine is shutting down. Without such a call it returns false, so that a
// peer that sends such requests all the time does not hold up the end of the engine.
func (h *handlers) join() bool { return !h.natives.Calls.Empty() && h.gate.Join() }

// Registrations implements [envelope.Registry].
func (h *handlers) Registrations() (list []envelope.Registration) {
	for _, entry := range h.table.Entries() {
		svc := entry.Value
		if _, described := svc.proc.codec.(envelope.Described); svc.proc.native && !described {
			continue
		}
		list = append(list, envelope.Registration{
			Name: entry.Name, ID: entry.ID, Provider: svc.provider, Flavor: uint8(svc.proc.flavor),
			OneWay: svc.proc.oneWay, Native: svc.proc.native, Types: svc.proc.types,
		})
	}
	slices.SortFunc(list, func(a, b envelope.Registration) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Unknown implements [hg.Dispatcher]. The code for an id that is not registered is codes.ProtoNoSupport if the engine serves an RPC of
// that name with package native and the caller does not use that package, or the reverse; and codes.NoEntry otherwise.
func (h *handlers) Unknown(id hg.ID) codes.Code {
	if _, known := h.table.Lookup(uint64(id)); known {
		return 0
	}
	_, other := h.table.Lookup(wire.Sibling(uint64(id)))
	if !other && uint64(id)>>32 == 0 { // of flavour Mercury
		other = h.table.Any(func(svc *service) bool { return svc.proc.native && wire.Djb2(svc.proc.name) == uint64(id) })
	}
	if other {
		return codes.ProtoNoSupport
	}
	return codes.NoEntry
}

// Keeps implements [hg.Keeper].
func (h *handlers) Keeps(id hg.ID) bool {
	svc, known := h.table.Lookup(uint64(id))
	return known && svc.Value.proc.in.keep()
}

// logUnknown logs a request for an RPC that is not registered, with the names near it, so that a wrong provider id or flavour shows.
func (h *handlers) logUnknown(r *hg.Request, code codes.Code) {
	if log := h.e.log; log.Enabled(context.Background(), slog.LevelDebug) {
		id, msg := uint64(r.ID()), "request for an RPC that is not registered"
		if code == codes.ProtoNoSupport {
			msg = "request in another flavour than that of the RPC; either both sides use package native, or neither"
		}
		log.Debug(msg, logPeer, r.From().String(),
			"id", fmt.Sprintf("%#016x", id), "provider", wire.Provider(id), "registered", h.near(id))
	}
}

// near returns the labels of RPCs of other providers that have the same hash of the name as id.
func (h *handlers) near(id uint64) (labels []string) {
	for _, entry := range h.table.Entries() {
		if entry.ID>>32 == id>>32 {
			labels = append(labels, entry.Value.label())
		}
	}
	return labels
}

// refuse answers a request that is not served; svc is nil if its id is unknown. It does not block.
func refuse(r *hg.Request, svc *service, code codes.Code) {
	defer r.Free()
	switch {
	case r.OneWay():
	case svc == nil:
		_ = r.Fail(code) // a caller that is gone needs no answer
	default:
		_ = svc.answer(r, code)
	}
}

// Registrar is an object on which handlers are registered: an [*Engine], for the flavour's default provider, or a [*Provider].
type Registrar interface {
	registrar() (e *Engine, provider uint16, given bool)
}

func (e *Engine) registrar() (*Engine, uint16, bool) { return e, 0, false }

// HandleOption is an option of Handle, HandleCall and AfterFunc.
type HandleOption interface{ apply(*service) error }

type handleOption func(*service) error

func (o handleOption) apply(s *service) error { return o(s) }

// place returns where p is registered on on.
func (p *procedure) place(on Registrar) (e *Engine, id uint64, provider uint16, err error) {
	var given bool
	switch t := on.(type) {
	case *Engine:
		e = t
	case *Provider:
		if t != nil {
			e, provider, given = t.e, t.id, true
		}
	}
	if e == nil {
		return nil, 0, 0, argumentError("register", p.name, "", "no engine given")
	}
	if provider, err = p.provider(provider, given); err != nil {
		return nil, 0, 0, argumentError("register", p.name, "", "%w", err)
	}
	return e, p.id(provider), provider, nil
}

// register has h, which may be nil, serve p.
func register[In, Out any](p *procedure, on Registrar, h *handler[In, Out], opts []HandleOption) error {
	e, id, provider, err := p.place(on)
	if err != nil {
		return err
	}
	svc := &service{e: e, proc: p, id: id, provider: provider, pool: e.handlers.pools.other}
	if standard := e.rpcPool(p); standard != nil {
		svc.named, svc.pool = standard, standard.pool
	}
	if h != nil {
		h.init()
		svc.serve = h.take
	}
	for _, o := range opts {
		if err := o.apply(svc); err != nil {
			return err
		}
	}
	if err := e.begin(); err != nil {
		return errorFrom("register", svc.label(), "", err)
	}
	defer e.end()
	if !e.net.Listening() {
		return argumentError("register", svc.label(), "", "this engine does not listen; use Listen to make one that does")
	}
	e.mu.Lock() // so that a provider is closed before, or with its new RPC
	defer e.mu.Unlock()
	if t, ok := on.(*Provider); ok {
		if e.providers[t.id] != t {
			return &Error{Op: "register", RPC: svc.label(), Code: codes.InvalidArg, Err: errProviderClosed}
		}
		svc.owner = t
	}
	return errorFrom("register", svc.label(), "", e.handlers.pools.bind(svc.named, func() error { return svc.add(id) }))
}

// add makes the registration known.
func (svc *service) add(id uint64) error {
	if err := svc.e.handlers.table.Add(id, svc.proc.name, svc); err != nil {
		return &Error{Op: "register", RPC: svc.label(), Code: codes.Exist, Err: err}
	}
	return nil
}

var errProviderClosed = errors.New("the provider is closed; Engine.NewProvider makes another of its id")

// remove undoes register.
func remove(p *procedure, on Registrar) error {
	e, id, provider, err := p.place(on)
	if err != nil {
		return err
	}
	if !e.handlers.table.Remove(id) {
		return &Error{Op: "remove", RPC: p.label(provider), Code: codes.NoEntry, Err: fmt.Errorf("%q is not registered", p.name)}
	}
	return nil
}

// Handle registers h, which runs for each request that reaches on, on a goroutine that may block. The value that h returns is the response; an
// error travels as its code ([codes.Of]) without the text, and a [net.ErrClosed] that is not of an engine as codes.OtherError. A panic is
// answered codes.OtherError.
//
// The engine logs the text of the error: at Warn if the error has no code, within a bound on the lines about one host, and at Debug if it
// has one. A panic is logged too, at most ten times a minute for one host, on standard error if the engine has no logger.
//
// h's context ends when the connection to the caller is lost, and when the engine is closed or stops waiting for
// handlers; not when the caller's context does. It carries the caller and the RPC ([InfoFrom]); calls and transfers that
// are made with it leave h's worker to others meanwhile.
//
// A nil h registers the name alone: requests are answered codes.NoEntry, or codes.InvalidArg as in C if the flavour is Mercury.
func (r *RPC[In, Out]) Handle(on Registrar, h func(context.Context, In) (Out, error), opts ...HandleOption) error {
	if h == nil {
		return register[In, Out](r.proc, on, nil, opts)
	}
	return register(r.proc, on, &handler[In, Out]{short: h}, opts)
}

// HandleCall is Handle for handlers that respond early, or later than they return, or from another goroutine.
func (r *RPC[In, Out]) HandleCall(on Registrar, h func(*Call[In, Out]), opts ...HandleOption) error {
	if h == nil {
		return register[In, Out](r.proc, on, nil, opts)
	}
	return register(r.proc, on, &handler[In, Out]{long: h}, opts)
}

// Remove undoes Handle and HandleCall: requests are answered codes.NoEntry. Handlers that run are not affected.
func (r *RPC[In, Out]) Remove(on Registrar) error { return remove(r.proc, on) }
