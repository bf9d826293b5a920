package otel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	status "go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
	"cinnabar/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// exporter keeps spans in memory.
type exporter struct {
	*tracetest.InMemoryExporter
	provider *sdk.TracerProvider
}

func newExporter(opts ...sdk.TracerProviderOption) *exporter {
	memory := tracetest.NewInMemoryExporter()
	return &exporter{memory, sdk.NewTracerProvider(append(opts, sdk.WithSyncer(memory))...)}
}

// span returns the only span with a name and kind.
func (e *exporter) span(t *testing.T, kind trace.SpanKind, name string) (found tracetest.SpanStub) {
	t.Helper()
	n := 0
	for _, s := range e.GetSpans() {
		if s.Name == name && s.SpanKind == kind {
			found = s
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d spans %v %s in %v", n, kind, name, e.GetSpans().Snapshots())
	}
	return found
}

func attributesOf(list []attribute.KeyValue) map[attribute.Key]string {
	m := map[attribute.Key]string{}
	for _, a := range list {
		m[a.Key] = a.Value.String()
	}
	return m
}

// engine opens an engine that a test closes before it reads the spans, because the span of a handler may end after the caller has the answer.
func engine(t *testing.T, c *Config) *cinnabar.Engine {
	t.Helper()
	cfg := &cinnabar.Config{NoEager: true, Logger: slog.New(slog.DiscardHandler)}
	if c != nil {
		Install(cfg, c)
	}
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// drain waits until all handlers of the engines have returned and their spans have ended.
func drain(t *testing.T, engines ...*cinnabar.Engine) {
	t.Helper()
	for _, e := range engines {
		must(t, e.Shutdown(t.Context()))
	}
}

func reach(t *testing.T, from, to *cinnabar.Engine) *cinnabar.Endpoint {
	t.Helper()
	ep, err := from.Lookup(to.Addr())
	must(t, err)
	return ep
}

// TestThreeServices: a call goes through two services to a third one, and all its spans belong to one trace, with the tracestate.
// Of the services in between, one does not trace.
func TestThreeServices(t *testing.T) {
	for _, traced := range []bool{true, false} {
		t.Run(fmt.Sprint("traced ", traced), func(t *testing.T) {
			mem := newExporter()
			c := &Config{Provider: mem.provider}
			front, back, client := engine(t, c), engine(t, c), engine(t, c)
			var between *cinnabar.Engine
			if traced {
				between = engine(t, c)
			} else {
				between = engine(t, nil)
			}
			first, second, third := native.New[int32, int32]("first"), native.New[int32, int32]("second"), native.New[int32, int32]("third")
			toBetween, toBack := reach(t, front, between), reach(t, between, back)
			must(t, first.Handle(front, func(ctx context.Context, n int32) (int32, error) { return second.Call(ctx, toBetween, n+1) }))
			must(t, second.Handle(between, func(ctx context.Context, n int32) (int32, error) { return third.Call(ctx, toBack, n+1) }))
			var state string
			must(t, third.Handle(back, func(ctx context.Context, n int32) (int32, error) {
				state = trace.SpanContextFromContext(ctx).TraceState().String()
				return n + 1, nil
			}))

			begin, err := native.ParseTrace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", "vendor=1,other=two")
			must(t, err)
			ctx, root := mem.provider.Tracer("test").Start(trace.ContextWithRemoteSpanContext(t.Context(), fromNative(begin)), "root")
			n, err := first.Call(ctx, reach(t, client, front), 1)
			must(t, err)
			root.End()
			if n != 4 {
				t.Errorf("got %d, want 4", n)
			}
			drain(t, client, front, between, back)

			chain := []struct {
				kind trace.SpanKind
				name string
			}{
				{trace.SpanKindInternal, "root"}, {trace.SpanKindClient, "first"}, {trace.SpanKindServer, "first"}, {trace.SpanKindClient, "second"},
				{trace.SpanKindServer, "second"}, {trace.SpanKindClient, "third"}, {trace.SpanKindServer, "third"},
			}
			if !traced {
				chain = append(chain[:4:4], chain[6])
			}
			parent := trace.SpanID(begin.SpanID)
			for _, link := range chain {
				s := mem.span(t, link.kind, link.name)
				if s.SpanContext.TraceID() != begin.TraceID {
					t.Errorf("%s %s has trace %v", link.kind, link.name, s.SpanContext.TraceID())
				}
				if s.Parent.SpanID() != parent {
					t.Errorf("%s %s has the parent %v, want %v", link.kind, link.name, s.Parent.SpanID(), parent)
				}
				if s.Status.Code != status.Unset {
					t.Errorf("%s %s has the status %v", link.kind, link.name, s.Status)
				}
				parent = s.SpanContext.SpanID()
			}
			if len(mem.GetSpans()) != len(chain) {
				t.Errorf("%d spans, want %d", len(mem.GetSpans()), len(chain))
			}
			if state != "vendor=1,other=two" {
				t.Errorf("tracestate %q at the third service", state)
			}
			got := attributesOf(mem.span(t, trace.SpanKindServer, "first").Attributes)
			if got[keySystem] != system || got[keyMethod] != "first" || !strings.HasPrefix(got[keyPeer], "ofi+tcp://") {
				t.Errorf("attributes %v", got)
			}
		})
	}
}

// TestMargo: a call of Margo's wire within a handler begins a trace with a link to the handler's RPC, and a call outside handlers begins one without.
func TestMargo(t *testing.T) {
	mem := newExporter()
	c := &Config{Provider: mem.provider}
	front, back, client := engine(t, c), engine(t, c), engine(t, c)
	outer, inner := cinnabar.NewRPC[int32, int32]("outer"), cinnabar.NewRPC[int32, int32]("inner")
	provider, err := back.NewProvider(7, "test")
	must(t, err)
	toBack := reach(t, front, back)
	must(t, outer.Handle(front, func(ctx context.Context, n int32) (int32, error) { return inner.Call(ctx, toBack.Provider(7), n) }))
	must(t, inner.Handle(provider, func(_ context.Context, n int32) (int32, error) { return n, nil }))
	_, err = outer.Call(t.Context(), reach(t, client, front), 1)
	must(t, err)
	drain(t, client, front, back)

	call, served := mem.span(t, trace.SpanKindClient, "inner"), mem.span(t, trace.SpanKindServer, "inner")
	if within := mem.span(t, trace.SpanKindServer, "outer"); call.SpanContext.TraceID() != within.SpanContext.TraceID() || call.Parent.SpanID() != within.SpanContext.SpanID() {
		t.Error("the call of a handler is not a child of the handler's span")
	}
	if served.SpanContext.TraceID() == call.SpanContext.TraceID() || served.Parent.IsValid() {
		t.Error("the handler is in the trace of a caller that cannot send it")
	}
	if len(served.Links) != 1 {
		t.Fatalf("links %v", served.Links)
	}
	id := outer.ID(65535)
	if got := attributesOf(served.Links[0].Attributes); got[keyParent] != fmt.Sprint(int64(id)) || got[keyParentProvider] != "65535" {
		t.Errorf("the link has %v, want the id %d", got, int64(id))
	}
	if got := attributesOf(served.Attributes); got[keyProvider] != "7" {
		t.Errorf("attributes %v", got)
	}
	if links := mem.span(t, trace.SpanKindServer, "outer").Links; len(links) != 0 {
		t.Errorf("a call outside handlers has the links %v", links)
	}
}

// TestPublic: the trace of a caller that is not trusted is a link, and its flag does not decide about recording.
func TestPublic(t *testing.T) {
	mem := newExporter()
	server, client := engine(t, &Config{Provider: mem.provider, Public: true}), engine(t, nil)
	rpc := native.New[int32, int32]("rpc")
	must(t, rpc.Handle(server, func(_ context.Context, n int32) (int32, error) { return n, nil }))
	begin := native.NewTrace(false)
	_, err := rpc.Call(native.WithTrace(t.Context(), begin), reach(t, client, server), 1)
	must(t, err)
	drain(t, client, server)
	s := mem.span(t, trace.SpanKindServer, "rpc")
	if s.SpanContext.TraceID() == begin.TraceID || s.Parent.IsValid() {
		t.Error("the span is in the trace of its caller")
	}
	if len(s.Links) != 1 || s.Links[0].SpanContext.TraceID() != begin.TraceID || s.Links[0].SpanContext.SpanID() != begin.SpanID {
		t.Errorf("links %v", s.Links)
	}
}

var errOdd = fmt.Errorf("odd \x1b[2J number: %w", codes.NoDev)

// TestErrors: the error of a handler, a panic and a call that nothing answers set the status of their spans.
func TestErrors(t *testing.T) {
	mem := newExporter()
	c := &Config{Provider: mem.provider}
	server, client := engine(t, c), engine(t, c)
	odd, crash := native.New[int32, int32]("odd"), native.New[int32, int32]("crash")
	must(t, odd.Handle(server, func(context.Context, int32) (int32, error) { return 0, errOdd }))
	must(t, crash.Handle(server, func(context.Context, int32) (int32, error) { panic("crash of the test") }))
	ep := reach(t, client, server)
	_, err := odd.Call(t.Context(), ep, 1)
	if !errors.Is(err, codes.NoDev) {
		t.Error(err)
	}
	if _, err := crash.Call(t.Context(), ep, 1); err == nil {
		t.Error("a panic has no error")
	}
	if _, err := native.New[int32, int32]("nosuch").Call(t.Context(), ep, 1); !errors.Is(err, codes.NoEntry) {
		t.Error(err)
	}
	drain(t, client, server)
	for _, test := range []struct {
		kind       trace.SpanKind
		name, code string
	}{
		{trace.SpanKindClient, "odd", "HG_NODEV"}, {trace.SpanKindServer, "odd", "HG_NODEV"}, {trace.SpanKindClient, "crash", "HG_OTHER_ERROR"}, {trace.SpanKindServer, "crash", ""},
		{trace.SpanKindClient, "nosuch", "HG_NOENTRY"},
	} {
		s := mem.span(t, test.kind, test.name)
		if s.Status.Code != status.Error || s.Status.Description == "" || strings.ContainsRune(s.Status.Description, '\x1b') {
			t.Errorf("%s %s has the status %v", test.kind, test.name, s.Status)
		}
		if got := attributesOf(s.Attributes)[keyStatus]; got != test.code {
			t.Errorf("%s %s has the code %q, want %q", test.kind, test.name, got, test.code)
		}
	}
}

// TestOneWay: a message without an answer has a span on each side.
func TestOneWay(t *testing.T) {
	mem := newExporter()
	c := &Config{Provider: mem.provider}
	server, client := engine(t, c), engine(t, c)
	note, handled := cinnabar.NewOneWay[int32]("note"), make(chan struct{})
	must(t, note.Handle(server, func(context.Context, int32) error { close(handled); return codes.NoMem }))
	must(t, note.Send(t.Context(), reach(t, client, server), 1))
	<-handled
	drain(t, server, client)
	if s := mem.span(t, trace.SpanKindClient, "note"); s.Status.Code != status.Unset {
		t.Errorf("the sender has the status %v", s.Status)
	}
	if s := mem.span(t, trace.SpanKindServer, "note"); s.Status.Code != status.Error {
		t.Errorf("the handler has the status %v", s.Status)
	}
}

// TestNotSampled: the decision of the sampler travels, and nothing is recorded.
func TestNotSampled(t *testing.T) {
	mem := newExporter(sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	c := &Config{Provider: mem.provider, Details: true}
	server, client := engine(t, c), engine(t, c)
	rpc := native.New[int32, int32]("rpc")
	var got native.Trace
	must(t, rpc.Handle(server, func(ctx context.Context, n int32) (int32, error) { got = native.TraceFrom(ctx); return n, nil }))
	ep := reach(t, client, server)
	_, err := rpc.Call(t.Context(), ep, 1)
	must(t, err)
	if got.IsZero() || got.Flags&byte(trace.FlagsSampled) != 0 {
		t.Errorf("the handler has the trace %v", got)
	}
	_, err = rpc.Call(native.WithTrace(t.Context(), native.NewTrace(true)), ep, 1)
	must(t, err)
	drain(t, client, server)
	if spans := mem.GetSpans(); len(spans) != 2 {
		t.Errorf("%d spans, want the two of the caller that has asked for them", len(spans))
	}
}

// TestNoTracing: a provider that makes no spans changes nothing, and the trace of the program still travels.
func TestNoTracing(t *testing.T) {
	c := &Config{Provider: noop.NewTracerProvider()}
	server, client := engine(t, c), engine(t, c)
	rpc := native.New[int32, int32]("rpc")
	var got native.Trace
	must(t, rpc.Handle(server, func(ctx context.Context, n int32) (int32, error) { got = native.TraceFrom(ctx); return n, nil }))
	want := native.NewTrace(true)
	_, err := rpc.Call(native.WithTrace(t.Context(), want), reach(t, client, server), 1)
	must(t, err)
	if got != want {
		t.Errorf("the handler has the trace %v, want %v", got, want)
	}
	Install(&cinnabar.Config{}, nil) // with the global provider
}

// count is a monitor of the program.
type count struct{ n int }

func (c *count) Event(context.Context, stats.Event) { c.n++ }

// TestDetails: bulk transfers have spans in the span of their handler, and calls have the times of their steps.
func TestDetails(t *testing.T) {
	mem := newExporter()
	server, client := engine(t, &Config{Provider: mem.provider, Details: true}), engine(t, &Config{Provider: mem.provider, Details: true})
	fetch := cinnabar.NewRPC[cinnabar.BulkHandle, int64]("fetch")
	must(t, fetch.Handle(server, func(ctx context.Context, h cinnabar.BulkHandle) (int64, error) {
		b, err := server.Alloc(cinnabar.WriteOnly, 1000)
		if err != nil {
			return 0, err
		}
		n, err := h.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, b)
		return n, errors.Join(err, b.Close())
	}))
	b, err := client.Alloc(cinnabar.ReadOnly, 1000)
	must(t, err)
	_, err = fetch.Call(t.Context(), reach(t, client, server), b.Handle())
	must(t, err)
	must(t, b.Close())
	drain(t, client, server)
	pull, served := mem.span(t, trace.SpanKindClient, "pull"), mem.span(t, trace.SpanKindServer, "fetch")
	if pull.Parent.SpanID() != served.SpanContext.SpanID() || attributesOf(pull.Attributes)[keyBytes] != "1000" || pull.EndTime.Before(pull.StartTime) {
		t.Errorf("the transfer has the span %+v", pull)
	}
	var events []string
	for _, e := range mem.span(t, trace.SpanKindClient, "fetch").Events {
		events = append(events, e.Name)
	}
	if got := strings.Join(events, ", "); got != "arguments encoded, request sent, response received" {
		t.Errorf("events %s", got)
	}
	next := &count{}
	cfg := &cinnabar.Config{Monitor: next, Interceptors: []cinnabar.Interceptor{nil}}
	Install(cfg, &Config{Provider: mem.provider, Details: true})
	cfg.Monitor.Event(t.Context(), stats.Event{})
	if next.n != 1 || len(cfg.Interceptors) != 2 || cfg.Interceptors[1] != nil {
		t.Error("Install has lost the monitor or the interceptor of the program")
	}
}

// TestLongState: a tracestate beyond the limit of package native travels without its last members, and the call does not fail.
func TestLongState(t *testing.T) {
	var state trace.TraceState
	for i := range 8 {
		var err error
		state, err = state.Insert(fmt.Sprint("key", i), strings.Repeat("v", 100))
		must(t, err)
	}
	sc := fromNative(native.NewTrace(true)).WithTraceState(state)
	got := toNative(sc)
	if !strings.HasPrefix(got.State, "key7=") || len(got.State) > 512 || len(got.State) < 400 {
		t.Errorf("tracestate %q", got.State)
	}
	if back := fromNative(got); back.TraceID() != sc.TraceID() || back.SpanID() != sc.SpanID() || back.TraceFlags() != sc.TraceFlags() || !back.IsRemote() {
		t.Errorf("%v became %v", sc, back)
	}
	if got := toNative(fromNative(native.NewTrace(true))); got.State != "" || got.IsZero() {
		t.Errorf("without a state: %v", got)
	}
}

// TestPrintable: a text of a peer becomes one of bounded length that terminals and exporters take.
func TestPrintable(t *testing.T) {
	texts := []string{"", "rpc", "\xff", "a\x1b[2J", strings.Repeat("世", 100), strings.Repeat("\xff", 500), "\u202e", "\ufffd"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := make([]byte, random.IntN(100))
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		texts = append(texts, string(text))
	}
	for _, s := range texts {
		for _, limit := range []int{0, 1, 2, 3, 50, maxName} {
			got := printable(s, limit)
			if len(got) > limit || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\x1b\n\u202e") {
				t.Errorf("%q became %q with the limit %d", s, got, limit)
			}
			if len(s) <= limit && isPrintable(s) && got != s {
				t.Errorf("%q became %q", s, got)
			}
		}
	}
}

// TestStream: a stream has a span on each side, and so has a call that is cancelled. The messages that carry elements and cancels have none.
func TestStream(t *testing.T) {
	mem := newExporter()
	c := &Config{Provider: mem.provider, Details: true}
	server, client := engine(t, c), engine(t, c)
	count, hold := native.NewStream[struct{}, int32]("count"), native.New[int32, int32]("hold")
	must(t, count.Handle(server, func(ctx context.Context, s *native.ServerStream[struct{}, int32]) error {
		for n := range int32(3000) {
			if err := s.Send(ctx, n); err != nil {
				return err
			}
		}
		return nil
	}))
	entered := make(chan struct{})
	must(t, hold.Handle(server, func(ctx context.Context, _ int32) (int32, error) {
		close(entered)
		<-ctx.Done() // the cancel of the client
		return 0, ctx.Err()
	}))
	ep := reach(t, client, server)
	ctx, root := mem.provider.Tracer("test").Start(t.Context(), "root")
	s, err := count.Open(ctx, ep)
	must(t, err)
	elements := 0
	for _, err := range s.Receive(ctx) {
		must(t, err)
		elements++
	}
	must(t, s.Wait(ctx))
	limited, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := hold.Call(limited, ep, 1)
		ended <- err
	}()
	<-entered
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ends with %v", err)
	}
	root.End()
	drain(t, client, server)
	for _, name := range []string{"count", "hold"} {
		for _, kind := range []trace.SpanKind{trace.SpanKindClient, trace.SpanKindServer} {
			if got := mem.span(t, kind, name).SpanContext.TraceID(); got != root.SpanContext().TraceID() {
				t.Errorf("%s %s has the trace %v", kind, name, got)
			}
		}
	}
	if n := len(mem.GetSpans()); elements != 3000 || n != 5 {
		t.Errorf("%d elements and one call have %d spans, want 5", elements, n)
	}
	if events := mem.span(t, trace.SpanKindInternal, "root").Events; len(events) != 0 {
		t.Errorf("the caller's span has %d events", len(events))
	}
}
