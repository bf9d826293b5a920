package cinnabar

import (
	"fmt"
	"reflect"
	"regexp"
	"sync/atomic"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/internal/codecplan"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
)

// Flavor is the family of C and C++ programs that an RPC belongs to. It determines the id of the RPC and the header in front of its
// arguments and results.
type Flavor uint8

const (
	// Margo is the flavour of margo_register and its macros: the id is made of the name and a provider id, which is
	// 65535 unless a provider is addressed; arguments follow the id of the calling handler's RPC, results a return code.
	Margo Flavor = iota
	// Mercury is that of HG_Register_name: the id is made of the name alone, so there are no providers; nothing is put
	// in front of arguments and results.
	Mercury
	// Thallium is that of thallium::engine::define: as Margo's, but the provider id is 0 unless a provider is addressed,
	// and arguments and results are encoded by cereal. Several arguments, or results, are the fields of a struct.
	Thallium
)

// name returns the name of the constant.
func (f Flavor) name() string {
	switch f {
	case Margo:
		return "Margo"
	case Mercury:
		return "Mercury"
	case Thallium:
		return "Thallium"
	}
	return "unknown" // newProcedure refuses it
}

// overMargo reports whether RPCs of the flavour go through Margo: ids have providers in them, and Margo's headers stand
// in front of arguments and results.
func (f Flavor) overMargo() bool { return f == Margo || f == Thallium }

// defaultProvider is the provider id of RPCs for which none is given.
func (f Flavor) defaultProvider() uint16 {
	if f == Margo {
		return wire.DefaultProvider
	}
	return 0
}

// codec is the encoding of RPCs for which none is given.
func (f Flavor) codec() codec.Codec {
	if f == Thallium {
		return cereal.Codec{}
	}
	return hgproc.Codec{}
}

// RPCOption is an option of NewRPC and NewOneWay.
type RPCOption interface{ apply(*procedure) }

type rpcOption func(*procedure)

func (o rpcOption) apply(p *procedure) { o(p) }

// WithFlavor sets the RPC's flavour. The default is Margo.
func WithFlavor(f Flavor) RPCOption { return rpcOption(func(p *procedure) { p.flavor = f }) }

// WithCodec sets the encoding of arguments and results, in place of the flavour's: [cinnabar/codec/hgproc] has that of Margo and
// Mercury, [cinnabar/codec/cereal] that of Thallium.
func WithCodec(c codec.Codec) RPCOption { return rpcOption(func(p *procedure) { p.codec = c }) }

// WithID gives the RPC the id that a plain Mercury program registered it under (HG_Register), instead of one that is
// made from its name. It implies the flavour Mercury.
func WithID(id uint64) RPCOption {
	return rpcOption(func(p *procedure) { p.flavor, p.fixed, p.base = Mercury, true, id })
}

// procedure is the common part of RPC and OneWay, without their types. It never changes after it is made.
type procedure struct {
	name    string
	flavor  Flavor
	fixed   bool   // base is the program's choice
	base    uint64 // id without provider
	oneWay  bool
	native  bool // declared by package native
	part    bool // its requests belong to native calls under way
	codec   codec.Codec
	in, out plans
	large   atomic.Int64   // bytes of the last request's payload if they were hg.LargePayload or more, otherwise 0
	types   envelope.Types // of the program
}

// plans are the plans of a type for messages over the network and over shared memory.
type plans struct {
	network, shared codec.Plan
	keeps           bool         // values have a []byte, which may be a part of the message in place of a copy, or be left out of it; most have none
	copies          atomic.Int32 // the number of further large messages to be received in memory that is used again
}

// keepRetry is the number of large messages that are received in memory that is used again, after one in memory of its own was copied all the same.
// Then one message is tried in memory of its own, because one client with messages of another shape must not slow down the others for ever.
const keepRetry = 16

// keep reports whether the next large message should be received in memory of its own.
func (p *plans) keep() bool { return p.keeps && p.copies.Load() <= 0 }

// decoded records a message that was decoded. owned says that it was in memory of its own, and kept that a value has a part of it.
func (p *plans) decoded(bytes int, owned, kept bool) {
	switch {
	case owned && kept:
		p.copies.Store(0)
	case owned:
		p.copies.Store(keepRetry)
	case p.keeps && bytes >= hg.LargePayload && p.copies.Load() > 0:
		p.copies.Add(-1)
	}
}

// on returns the plan for messages over a network.
func (p *plans) on(r hg.Route) codec.Plan {
	if r == hg.OverSharedMemory {
		return p.shared
	}
	return p.network
}

// newProcedure panics if a type cannot be encoded: RPCs are package variables, so the program does not start.
func newProcedure(name string, oneWay bool, in, out reflect.Type, opts []RPCOption) *procedure {
	p := &procedure{name: name, oneWay: oneWay}
	for _, o := range opts {
		o.apply(p)
	}
	if p.codec == nil {
		p.codec = p.flavor.codec()
	}
	_, p.native = p.codec.(envelope.Codec)
	_, p.part = p.codec.(envelope.Continuing)
	switch {
	case p.native:
		p.base = wire.NativeID(name, 0)
	case p.flavor.overMargo():
		p.base = wire.ID(name, 0)
	case p.flavor != Mercury:
		panic(fmt.Sprintf("cinnabar: RPC %q: there is no flavour %d; use Margo, Mercury or Thallium", name, p.flavor))
	case !p.fixed:
		p.base = wire.Djb2(name)
	}
	p.plan(&p.in, "arguments", in)
	p.plan(&p.out, "results", out)
	p.types = envelope.Types{In: in, Out: out, Codec: p.codec.Name()}
	if d, ok := p.codec.(envelope.Described); ok {
		p.types = d.Described()
	}
	return p
}

// plan sets the plans of type t.
func (p *procedure) plan(to *plans, what string, t reflect.Type) {
	plan, err := p.codec.Plan(t)
	if err != nil {
		panic(fmt.Sprintf("cinnabar: RPC %q: its %s cannot be encoded: %v", p.name, what, err))
	}
	to.network, to.shared, to.keeps = plan, codecplan.OverSharedMemory(plan), codecplan.Keeps(plan)
}

// id returns the id of the RPC for a provider.
func (p *procedure) id(provider uint16) uint64 {
	if p.flavor == Mercury {
		return p.base
	}
	return wire.WithProvider(p.base, provider)
}

// provider returns the provider id that a call or a handler is for.
func (p *procedure) provider(id uint16, given bool) (uint16, error) {
	switch {
	case p.flavor == Mercury && given:
		return 0, fmt.Errorf("an RPC of flavour Mercury has no providers; use the Endpoint, or the Engine, itself")
	case given:
		return id, nil
	}
	return p.flavor.defaultProvider(), nil
}

// label names the RPC in errors and logs: with the provider id if one was addressed.
func (p *procedure) label(provider uint16) string {
	if provider == p.flavor.defaultProvider() {
		return p.name
	}
	return fmt.Sprintf("%s@%d", p.name, provider)
}

// Label implements [hg.Namer].
func (p *procedure) Label(provider uint16) string { return p.label(provider) }

// appendInput appends the payload of a request that travels over to: the flavour's header and *in.
func (p *procedure) appendInput(b []byte, parent uint64, in any, to hg.Route) ([]byte, error) {
	if p.flavor.overMargo() {
		b = wire.AppendMargoRequest(b, parent)
	}
	return p.in.on(to).Append(b, in)
}

// makeInput is appendInput into memory of the call k. It expects a payload of the size of the last one, so that large payloads of one size take memory that is used again.
func (p *procedure) makeInput(k *hg.Call, parent uint64, in any, to hg.Route) ([]byte, error) {
	large := p.large.Load()
	b := k.Input()
	if large > 0 {
		b = k.InputFor(int(large))
	}
	b, err := p.appendInput(b, parent, in, to)
	size := int64(len(b))
	if size < hg.LargePayload {
		size = 0
	}
	if size != large {
		p.large.Store(size)
	}
	return b, err
}

// lendInput encodes the arguments in parts: the contents of a large []byte, which is memory of the program, and the bytes before and behind them.
func (p *procedure) lendInput(k *hg.Call, parent uint64, in any, to hg.Route) (head, lent, tail []byte, err error) {
	b := k.Around()
	if p.flavor.overMargo() {
		b = wire.AppendMargoRequest(b, parent)
	}
	b, at, lent, err := codecplan.AppendAround(p.in.on(to), b, in, hg.LargePayload)
	return b[:at], lent, b[at:], err
}

// lends reports whether lendInput should be used.
func (p *procedure) lends(in any, to hg.Route) bool {
	return !p.oneWay && p.in.keeps && codecplan.Lends(p.in.on(to), in, hg.LargePayload)
}

// decodeInput reads the payload of a request that has come over by. parent is wire.NoParent if the flavour's header has none.
// owned says that the memory of b belongs to the request alone, so parts of *in may refer to it.
func (p *procedure) decodeInput(b []byte, in any, by hg.Route, owned bool) (parent uint64, err error) {
	parent = wire.NoParent
	if p.flavor.overMargo() {
		var ok bool
		if parent, b, ok = wire.ParseMargoRequest(b); !ok {
			return parent, fmt.Errorf("request has %d bytes, fewer than Margo's header: %w", len(b), codec.ErrOverflow)
		}
	}
	return parent, p.decode(&p.in, b, in, by, owned)
}

// appendOutput appends the payload of a successful response that travels over to.
func (p *procedure) appendOutput(b []byte, out any, to hg.Route) ([]byte, error) {
	if p.flavor.overMargo() {
		b = wire.AppendMargoResponse(b, uint32(wire.Success))
	}
	return p.out.on(to).Append(b, out)
}

// decodeOutput reads the payload of a response that has come over by. code is the return code in Margo's header; unless it is 0 there is no result.
// owned is as in decodeInput.
func (p *procedure) decodeOutput(b []byte, out any, by hg.Route, owned bool) (code codes.Code, err error) {
	if p.flavor.overMargo() {
		n, rest, ok := wire.ParseMargoResponse(b)
		if !ok {
			return 0, fmt.Errorf("response has %d bytes, fewer than Margo's header: %w", len(b), codec.ErrOverflow)
		}
		if n != 0 {
			return codes.Code(n), nil
		}
		b = rest
	}
	return codes.Code(0), p.decode(&p.out, b, out, by, owned)
}

// decode reads *v, which has come over by, with its plan. Bytes behind it are ignored, as in C.
func (p *procedure) decode(of *plans, b []byte, v any, by hg.Route, owned bool) error {
	plan := of.on(by)
	var n int
	var kept bool
	var err error
	if owned {
		n, kept, err = codecplan.DecodeKept(plan, b, v)
	} else {
		n, err = plan.Decode(b, v)
	}
	if err == nil {
		of.decoded(len(b), owned, kept)
	}
	if p.flavor == Thallium && (err != nil || n < len(b)) {
		if names, ok := typeNames(b); ok {
			return &codec.Error{
				Problem: fmt.Sprintf("the message begins with the names of C++ types, %q", names),
				Remedy:  "build the peer without THALLIUM_DEBUG_RPC_TYPES",
			}
		}
	}
	return err
}

// cppTypes are names that C++ gives its own types, Thallium's, and templates of them, as get_type_name of Thallium
// writes them: those of a tuple's elements, separated by commas, or void.
var cppTypes = regexp.MustCompile(`^(void|((unsigned |signed )?(bool|char|short|int|long|float|double)|std::|thallium::)[A-Za-z0-9_:<>,&*()\[\] ]*)$`)

// maxTypeNames bounds the names that are looked at.
const maxTypeNames = 4096

// typeNames returns the names that a message of a Thallium program which was built with THALLIUM_DEBUG_RPC_TYPES begins
// with, a std::string in front of the value. The header of such a message does not differ, and its value would be decoded wrongly.
// typeNames does not recognize names of a program's own types, which look like any other text.
func typeNames(b []byte) (names string, ok bool) {
	names, _, err := cereal.DecodeString(b[:min(len(b), maxTypeNames)])
	if err != nil || !cppTypes.MatchString(names) {
		return "", false
	}
	return names, true
}
