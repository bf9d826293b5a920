package native

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// raw is arguments or results with any bytes as their envelope.
type raw struct{ b []byte }

func (*raw) Depart(context.Context) error                       { return nil }
func (*raw) Abandon()                                           {}
func (*raw) Arrive(envelope.Arrival)                            {}
func (*raw) Begin(ctx context.Context) (context.Context, error) { return ctx, nil }
func (*raw) End()                                               {}
func (*raw) Refuse(envelope.Arguments, codes.Code, error) bool  { return false }
func (*raw) Expect(envelope.Limits)                             {}
func (*raw) Failure() (codes.Code, error)                       { return 0, nil }
func (rawCodec) Name() string                                   { return "raw" }
func (rawCodec) Enveloped() envelope.Mark                       { return envelope.Mark{} }
func (c rawCodec) Plan(reflect.Type) (codec.Plan, error)        { return c, nil }
func (rawCodec) Append(b []byte, v any) ([]byte, error)         { return append(b, v.(*raw).b...), nil }
func (rawCodec) Decode(b []byte, v any) (int, error) {
	v.(*raw).b = append([]byte(nil), b...)
	return len(b), nil
}

// rawCodec is the codec of raw, and its plan.
type rawCodec struct{}

var (
	rawAdd = cinnabar.NewRPC[raw, raw]("add", cinnabar.WithCodec(rawCodec{}))
	add    = New[uint32, uint32]("add", WithCompressor(Gzip(1)))
)

// rawPair opens a server and a client of it.
func rawPair(t *testing.T) (*cinnabar.Engine, *cinnabar.Endpoint) {
	t.Helper()
	server, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	client, err := cinnabar.Open(t.Context(), "ofi+tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return server, ep
}

// TestHostileCaller sends requests that no program of this package sends. The server answers each, and serves the next one.
// parity: A04
func TestHostileCaller(t *testing.T) {
	server, ep := rawPair(t)
	if err := add.Handle(server, func(_ context.Context, n uint32) (uint32, error) { return n + 1, nil }); err != nil {
		t.Fatal(err)
	}
	plain := golden(t, "request_plain")
	for _, c := range []struct {
		name string
		b    []byte
		code codes.Code // of an answer without an envelope
		want string     // in the text of the error
	}{
		{"no envelope", []byte{1, 0, 0, 0}, codes.ProtoNoSupport, ""},
		{"nothing", nil, codes.ProtoNoSupport, ""},
		{"old version", with(plain, offVersion, 0), 0, "the caller speaks an old version of native envelopes, 0; this program speaks version 1"},
		{"newer version", with(plain, offVersion, 9), 0, "the caller speaks a newer version of native envelopes, 9"},
		{"malformed", with(plain, offFlags, 0xf0), 0, "malformed native envelope"},
		{"no arguments", plain, 0, "uint32"},
		{"no compressed arguments", appendRequestHead(nil, &requestHead{id: 1, compressor: "gzip", compressed: true, size: 1 << 20}), 0, "decompress 0 bytes to 1048576"},
		{"bomb", appendRequestHead(nil, &requestHead{id: 1, compressor: "gzip", compressed: true, size: 1 << 63}), 0, "(Config.MaxOverflow)"},
		{"compressed to nothing", appendRequestHead(nil, &requestHead{id: 1, compressor: "gzip", compressed: true}), 0, "that stand for 0"},
		{"other compressor", appendRequestHead(nil, &requestHead{id: 1, compressor: "zip", compressed: true, size: 1}), 0, `compressed with "zip"`},
	} {
		res, err := rawAdd.Call(t.Context(), ep, raw{c.b})
		if c.code != 0 {
			if e, ok := errors.AsType[*cinnabar.Error](err); !ok || e.Code != c.code || !e.Remote {
				t.Errorf("%s: error %v, want code %v", c.name, err, c.code)
			}
			continue
		}
		h, _, headErr := parseResponseHead(res.b)
		if err != nil || headErr != nil || h.failure == nil || !strings.Contains(h.failure.text, c.want) {
			t.Errorf("%s: %v, %v, %+v, want %q", c.name, err, headErr, h.failure, c.want)
		}
	}
	if n, err := add.Call(t.Context(), ep, 1); err != nil || n != 2 {
		t.Errorf("add = %d, %v", n, err)
	}
}

// TestHostileServer answers calls with responses that no program of this package sends.
func TestHostileServer(t *testing.T) {
	server, ep := rawPair(t)
	var answer []byte
	if err := rawAdd.Handle(server, func(context.Context, raw) (raw, error) { return raw{answer}, nil }); err != nil {
		t.Fatal(err)
	}
	plain, failed := golden(t, "response_plain"), goldenResponses["response_failure"]
	failed.failure = &failure{code: 1 << 31, text: "\x1b]0;title\a\u202e"}
	for _, c := range []struct {
		name string
		b    []byte
		code codes.Code
		want string
	}{
		{"no envelope", []byte{1, 0, 0, 0}, codes.ProtoNoSupport, "has no envelope of package native"},
		{"old version", with(plain, offVersion, 0), codes.ProtoNoSupport, "the server speaks an old version of native envelopes, 0"},
		{"malformed", with(plain, offFlags, 0xf0), codes.ProtocolError, "malformed native envelope"},
		{"no results", plain, codes.Overflow, "uint32"},
		{"bomb", appendResponseHead(nil, &responseHead{compressed: true, size: 1 << 62}), codes.Overflow, "(Config.MaxOverflow)"},
		{"unknown code and control characters", appendResponseHead(nil, &failed), 1 << 31, `\x1b]0;title\a\u202e`},
	} {
		answer = c.b
		_, err := add.Call(t.Context(), ep, 1)
		if codes.Of(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want code %v with %q", c.name, err, c.code, c.want)
		}
	}
}

// TestRelayedResponse has a handler return the error of a response without an envelope. The error travels whole, because the handler's own
// caller has sent an envelope.
func TestRelayedResponse(t *testing.T) {
	server, ep := rawPair(t)
	if err := rawAdd.Handle(server, func(context.Context, raw) (raw, error) { return raw{[]byte{1, 0, 0, 0}}, nil }); err != nil {
		t.Fatal(err)
	}
	relay := New[struct{}, uint32]("relay")
	if err := relay.Handle(server, func(ctx context.Context, _ struct{}) (uint32, error) { return add.Call(ctx, server.Self(), 1) }); err != nil {
		t.Fatal(err)
	}
	_, err := relay.Call(t.Context(), ep, struct{}{})
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != codes.ProtoNoSupport || !strings.Contains(e.Text, "the response has no envelope") {
		t.Errorf("error %v, want one with the text of the handler's", err)
	}
}

// TestSameID checks that a second call with an id that its connection uses is refused, and does not disturb the first one.
func TestSameID(t *testing.T) {
	var server envelope.Server
	arrive := func() *incoming {
		return arrived(&envelope.Arrival{Payload: golden(t, "request_plain"), Context: t.Context(), Server: &server})
	}
	first, second := arrive(), arrive()
	if err := second.begin(); !errors.Is(err, codes.ProtocolError) || !strings.Contains(err.Error(), "has the same id") {
		t.Errorf("the second call: %v", err)
	}
	second.end()
	if err := first.begin(); err != nil {
		t.Fatal(err)
	}
	if server.Calls.Cancel(nil, []uint64{1}); !errors.Is(context.Cause(first), codes.Canceled) {
		t.Error("the first call cannot be cancelled")
	}
	first.end()
	third := arrive()
	if err := third.begin(); err != nil {
		t.Errorf("the id is taken after the end of its call: %v", err)
	}
	third.end()
}

// TestFramesWithoutCalls sends frames to a server that is shutting down without a native call under way. They are refused, so a peer that sends them all
// the time does not hold up the end.
func TestFramesWithoutCalls(t *testing.T) {
	server, ep := rawPair(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	hold := cinnabar.NewRPC[struct{}, struct{}]("hold")
	noError := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	noError(hold.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		close(begun)
		<-finish
		return struct{}{}, nil
	}))
	noError(add.Handle(server, func(_ context.Context, n uint32) (uint32, error) { return n, nil }))
	noError(NewStream[uint32, uint32]("talk").Handle(server, func(context.Context, *ServerStream[uint32, uint32]) error { return nil }))
	held, down := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := hold.Call(t.Context(), ep, struct{}{})
		held <- err
	}()
	<-begun
	go func() { down <- server.Shutdown(t.Context()) }()
	for err := error(nil); !errors.Is(err, codes.Draining); {
		if _, err = add.Call(t.Context(), ep, 1); err != nil && !errors.Is(err, codes.Draining) {
			t.Fatal(err)
		}
	}
	for _, f := range []frame{{magic: magicPut, flags: flagEnd, id: 1}, {magic: magicGet, id: 1, size: fullCredit}} {
		if _, err := frameRPC.Call(t.Context(), ep, frameMessage{frame: f}); !errors.Is(err, codes.Draining) {
			t.Errorf("the answer to %s is %v", f.magic, err)
		}
	}
	close(finish)
	noError(<-held)
	noError(<-down)
}
