// Package otel makes spans of OpenTelemetry for the calls and the handlers of an engine of [cinnabar], and carries the trace context from the
// caller to the handler. It is a module of its own, so that programs without OpenTelemetry do not depend on its libraries.
//
//	cfg := &cinnabar.Config{}
//	otel.Install(cfg, &otel.Config{Provider: provider})
//	engine, err := cinnabar.Listen(ctx, "ofi+tcp://", cfg)
//
// Each call gets a span of kind client, a child of the span in the context of the call. Each handler gets a span of kind server, and its context has
// the span, so that the calls that it makes with the context belong to the same trace. A stream of package native is one call; its elements have no spans.
//
// # Propagation
//
// RPCs of package native carry the W3C's trace context, with trace flags and tracestate, so the span of a handler is a child of the span of its
// caller, also in another process. The wire of Mercury, Margo and Thallium has no place for a trace context, so the span of a handler that serves
// such a call is the first one of a new trace. If a handler made the call, the request names its RPC, and the span has a link with the attributes
// cinnabar.parent.rpc_id and cinnabar.parent.provider. The peer chooses them, and the package does not verify them.
//
// # Hostile peers
//
// A caller of a native RPC chooses the trace id of the server's spans and may ask the server to record every call. A server that does not trust its callers
// sets [Config.Public]: the span of a handler then begins a trace of its own, the provider's sampler decides about it, and the span links to the caller's. The
// package cuts names of RPCs to 128 bytes and texts of errors to 256 bytes, of printable characters.
//
// All functions are safe for concurrent use.
package otel

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	otelapi "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	status "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
	"cinnabar/stats"
)

// Config has the settings of [Install]. The zero value is good for a service between trusted peers.
type Config struct {
	Provider trace.TracerProvider // of the spans; nil: the global one
	// Public makes the span of each handler the first one of a trace, with a link to the span of the caller, because the callers are not trusted.
	Public bool
	// Details adds spans for the bulk transfers of a context that has one, and events to the spans of calls, for the times at which the arguments were encoded, the network accepted the
	// request, and the response arrived. They need a Monitor, so they cost time also where nothing is recorded.
	Details bool
}

// scope is the name of the tracer.
const scope = "cinnabar/otel"

// Attributes of spans and links. Those that begin with rpc are OpenTelemetry's.
const (
	keySystem         = attribute.Key("rpc.system.name")
	keyMethod         = attribute.Key("rpc.method")
	keyStatus         = attribute.Key("rpc.response.status_code")
	keyPeer           = attribute.Key("cinnabar.peer")
	keyProvider       = attribute.Key("cinnabar.provider")
	keyPool           = attribute.Key("cinnabar.pool")
	keyBytes          = attribute.Key("cinnabar.bytes")
	keyParent         = attribute.Key("cinnabar.parent.rpc_id")
	keyParentProvider = attribute.Key("cinnabar.parent.provider")
)

const (
	system   = "cinnabar"
	noParent = 0xffff // the Parent of calls that are made outside handlers; as a provider: none
	maxName  = 128    // bytes of a name
	maxText  = 256    // bytes of an error's text, and of an address
)

// tracer makes the spans of an engine.
type tracer struct {
	trace.Tracer
	public         bool
	client, server []trace.SpanStartOption
}

// Install makes engines that are opened with cfg trace their calls and handlers. It changes Interceptors of cfg and, for [Config.Details], Monitor. It keeps those
// that cfg has, and its interceptor is the outermost one. A nil c is the zero Config.
func Install(cfg *cinnabar.Config, c *Config) {
	if c == nil {
		c = &Config{}
	}
	provider := c.Provider
	if provider == nil {
		provider = otelapi.GetTracerProvider()
	}
	t := &tracer{
		Tracer: provider.Tracer(scope), public: c.Public,
		client: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)},
		server: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)},
	}
	cfg.Interceptors = append([]cinnabar.Interceptor{t.intercept}, cfg.Interceptors...)
	if c.Details {
		cfg.Monitor = &monitor{t, cfg.Monitor}
	}
}

// carriers are the RPCs by which package native moves the elements of streams and cancels calls. They have no spans, because the stream or the call
// has one, and a stream has any number of messages, each of which would begin a trace at the server.
var carriers = map[string]bool{"__native_stream__": true, "__native_cancel__": true}

// intercept is the [cinnabar.Interceptor].
func (t *tracer) intercept(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
	if carriers[c.RPC] {
		return next(ctx)
	}
	var span trace.Span
	if c.Server {
		ctx, span = t.serve(ctx, c)
	} else {
		ctx, span = t.call(ctx, c)
	}
	if span.IsRecording() {
		describe(span, c)
	}
	if sc := span.SpanContext(); sc.IsValid() {
		ctx = native.WithTrace(ctx, toNative(sc)) // for native calls: this one, or those of the handler over engines without this interceptor
	}
	return run(ctx, span, next)
}

// call starts the span of a call. A handler without a span of its own may have the trace context of its request.
func (t *tracer) call(ctx context.Context, c *cinnabar.CallInfo) (context.Context, trace.Span) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		if parent := native.TraceFrom(ctx); !parent.IsZero() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, fromNative(parent))
		}
	}
	return t.Start(ctx, printable(c.RPC, maxName), t.client...)
}

// serve starts the span of a handler.
func (t *tracer) serve(ctx context.Context, c *cinnabar.CallInfo) (context.Context, trace.Span) {
	name, parent := printable(c.RPC, maxName), native.TraceFrom(ctx)
	switch {
	case parent.IsZero():
		ctx, span := t.Start(ctx, name, t.server...)
		if c.Parent != noParent && span.IsRecording() {
			span.AddLink(trace.Link{Attributes: []attribute.KeyValue{keyParent.Int64(int64(c.Parent)), keyParentProvider.Int(int(c.Parent & noParent))}})
		}
		return ctx, span
	case t.public:
		ctx, span := t.Start(ctx, name, t.server...)
		if span.IsRecording() {
			span.AddLink(trace.Link{SpanContext: fromNative(parent)})
		}
		return ctx, span
	}
	return t.Start(trace.ContextWithRemoteSpanContext(ctx, fromNative(parent)), name, t.server...)
}

// describe adds the attributes of a call.
func describe(span trace.Span, c *cinnabar.CallInfo) {
	attributes := []attribute.KeyValue{keySystem.String(system), keyMethod.String(printable(c.RPC, maxName)), keyPeer.String(printable(c.Peer.String(), maxText))}
	if c.Provider != noParent {
		attributes = append(attributes, keyProvider.Int(int(c.Provider)))
	}
	if c.Pool != "" {
		attributes = append(attributes, keyPool.String(printable(c.Pool, maxName)))
	}
	span.SetAttributes(attributes...)
}

// run goes on with the call, and ends its span, also if the handler panics or ends its goroutine.
func run(ctx context.Context, span trace.Span, next func(context.Context) error) error {
	returned := false
	defer func() {
		if !returned {
			span.SetStatus(status.Error, "the handler did not return")
		}
		span.End()
	}()
	err := next(ctx)
	returned = true
	fail(span, err)
	return err
}

// fail sets the status of a span to an error, unless err is nil.
func fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	span.SetAttributes(keyStatus.String(codes.Of(err).Error()))
	span.SetStatus(status.Error, printable(err.Error(), maxText))
}

// toNative returns the trace context that travels. Members of tracestate beyond the limits of package native are left out, as the specification allows, because
// a call with an invalid trace context fails.
func toNative(sc trace.SpanContext) native.Trace {
	t := native.Trace{TraceID: sc.TraceID(), SpanID: sc.SpanID(), Flags: byte(sc.TraceFlags() & (trace.FlagsSampled | trace.FlagsRandom))}
	for state := sc.TraceState().String(); state != ""; {
		if whole, err := native.ParseTrace(t.String(), state); err == nil {
			return whole
		}
		state = state[:max(0, strings.LastIndexByte(state, ','))] // without the last member
	}
	return t
}

// fromNative returns the trace context of a peer. Package native has checked it.
func fromNative(t native.Trace) trace.SpanContext {
	state, err := trace.ParseTraceState(t.State)
	if err != nil {
		state = trace.TraceState{} // the trace goes on without it
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t.TraceID, SpanID: t.SpanID, TraceFlags: trace.TraceFlags(t.Flags), TraceState: state, Remote: true})
}

// printable returns at most limit bytes of s, with U+FFFD for each character that is not printable or not valid.
func printable(s string, limit int) string {
	if len(s) <= limit && isPrintable(s) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s[:min(len(s), limit)])
	for n := min(len(s), limit); ; n-- {
		if n == len(s) || utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
}

func isPrintable(s string) bool {
	for _, r := range s {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// monitor adds the details.
type monitor struct {
	t    *tracer
	next stats.Monitor // nil: none
}

// Event implements [stats.Monitor].
func (m *monitor) Event(ctx context.Context, ev stats.Event) {
	if ev.End && (ev.Kind == stats.EventCall || ev.Kind == stats.EventTransfer) && trace.SpanFromContext(ctx).IsRecording() {
		switch {
		case ev.Kind == stats.EventTransfer:
			m.transfer(ctx, &ev)
		case !carriers[ev.Info.RPC]: // those have the span of the program
			steps(trace.SpanFromContext(ctx), &ev.Times)
		}
	}
	if m.next != nil {
		m.next.Event(ctx, ev)
	}
}

// steps adds the steps that a call has reached to its span.
func steps(span trace.Span, t *stats.Timing) {
	if !t.Encoded.IsZero() {
		span.AddEvent("arguments encoded", trace.WithTimestamp(t.Encoded))
	}
	if !t.Sent.IsZero() {
		span.AddEvent("request sent", trace.WithTimestamp(t.Sent))
	}
	if !t.Ended.IsZero() && !t.Decoded.IsZero() {
		span.AddEvent("response received", trace.WithTimestamp(t.Ended))
	}
}

// transfer makes the span of a bulk transfer that is over.
func (m *monitor) transfer(ctx context.Context, ev *stats.Event) {
	_, span := m.t.Start(ctx, ev.Info.RPC, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(ev.Times.Began),
		trace.WithAttributes(keySystem.String(system), keyPeer.String(printable(ev.Info.Peer.String(), maxText)), keyBytes.Int64(ev.Bytes)))
	fail(span, ev.Err)
	span.End(trace.WithTimestamp(ev.Times.Ended))
}
