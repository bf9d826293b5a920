package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/codec"
	"cinnabar/codec/cereal"
	"cinnabar/codes"
)

// inThallium is the flavour of this file's RPCs.
var inThallium = WithFlavor(Thallium)

// RPCs as C++ programs define them.
var (
	tlAdd     = NewRPC[addIn, int32]("add", inThallium)
	tlDivide  = NewRPC[addIn, quotient]("divide", inThallium)
	tlHello   = NewOneWay[string]("hello", inThallium)
	tlDoRDMA  = NewOneWay[BulkHandle]("do_rdma", inThallium)
	tlHandles = NewRPC[handles, handles]("handles", inThallium)
)

type quotient struct{ Quotient, Remainder int32 }

type handles struct {
	List []BulkHandle
	Map  map[string]tagged
}

type tagged struct {
	Tag  int32
	Bulk BulkHandle
}

func addThallium(_ context.Context, in addIn) (int32, error) { return in.X + in.Y, nil }

// TestThalliumTutorial runs Thallium's tutorial on RDMA inside one process: the server has room for six of nine bytes.
// parity: T04 T05 T08 T09 T41
func TestThalliumTutorial(t *testing.T) {
	server, ep := pair(t, nil)
	got := make(chan string, 1)
	must(t, tlDoRDMA.Handle(server, func(ctx context.Context, remote BulkHandle) error {
		buf := make([]byte, 6)
		local, err := server.Expose(WriteOnly, buf)
		if err != nil {
			return err
		}
		defer local.Close() // the pull is over
		n, err := remote.On(InfoFrom(ctx).Peer).Pull(ctx, local)
		got <- fmt.Sprintf("%d %s of %d", n, buf, remote.Len())
		return err
	}))
	local := expose(t, ep.e, ReadOnly, []byte("Matthieu\x00"))
	must(t, tlDoRDMA.Send(patient(t), ep, local.Handle()))
	if got, want := soon(t, "the pull", got), "6 Matthi of 9"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestThalliumSpellings moves memory in the ways that C++ writes as remote >> local, local << remote, local >> remote and
// remote << local: the first two are pulls, the others pushes. Parts are selected on either side; the smaller size counts.
// parity: T40 T41 T42 T43
func TestThalliumSpellings(t *testing.T) {
	p := newBulkPair(t)
	const size = 1 << 17 // more than a message
	for _, tt := range []struct {
		name                  string
		theirs, mine          int64
		remoteOff, remoteSize int64
		localOff, localSize   int64
		moves                 int64
	}{
		{name: "9 against 6", theirs: 9, mine: 6, remoteSize: 9, localSize: 6, moves: 6},
		{name: "6 against 9", theirs: 6, mine: 9, remoteSize: 6, localSize: 9, moves: 6},
		{name: "(3,45) and (13,45)", theirs: 64, mine: 64, remoteOff: 3, remoteSize: 45, localOff: 13, localSize: 45, moves: 45},
		{name: "(3,45) and (13,40)", theirs: 64, mine: 64, remoteOff: 3, remoteSize: 45, localOff: 13, localSize: 40, moves: 40},
		{name: "(3,40) and (13,45)", theirs: size, mine: size, remoteOff: 3, remoteSize: 40, localOff: 13, localSize: 45, moves: 40},
		{name: "large", theirs: size, mine: size, remoteSize: size, localSize: size, moves: size},
	} {
		for _, push := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, push=%t", tt.name, push), func(t *testing.T) {
				far, near := noise(int(tt.theirs)), bytes.Repeat([]byte{0xA5}, int(tt.mine))
				theirs, mine := expose(t, p.there, ReadWrite, far), expose(t, p.here, ReadWrite, near)
				remote := p.remote(t, theirs).Slice(tt.remoteOff, tt.remoteSize)
				local := mine.Slice(tt.localOff, tt.localSize)
				from, to := slices.Clone(far[tt.remoteOff:][:tt.moves]), near[tt.localOff:]
				n, err := int64(0), error(nil)
				if push {
					from, to = slices.Clone(near[tt.localOff:][:tt.moves]), far[tt.remoteOff:]
					n, err = remote.Push(patient(t), local)
				} else {
					n, err = remote.Pull(patient(t), local)
				}
				if err != nil || n != tt.moves {
					t.Fatalf("%d bytes move, %v, want %d", n, err, tt.moves)
				}
				if !bytes.Equal(to[:tt.moves], from) {
					t.Error("other bytes have arrived")
				}
			})
		}
	}
	r := p.remote(t, expose(t, p.there, ReadWrite, make([]byte, 50)))
	_, err := r.Slice(6, 45).Pull(patient(t), expose(t, p.here, ReadWrite, make([]byte, 50)))
	wantCode(t, err, codes.InvalidArg, "45 bytes from offset 6")
	_, err = r.Slice(3, 45).Slice(3, 45).Pull(patient(t), expose(t, p.here, ReadWrite, make([]byte, 50)))
	wantCode(t, err, codes.InvalidArg, "45 bytes from offset 3") // C++ would clip
}

// TestThalliumProviders: without a provider the id is 0, which is an ordinary provider's too.
// parity: T07 T22 T29 T30 T74
func TestThalliumProviders(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, tlAdd.Handle(server, addThallium))
	if got, want := tlAdd.ID(0), uint64(0xc8c9c5c800000000); got != want {
		t.Errorf("the id is %#x, want %#x", got, want)
	}
	zero, err := server.NewProvider(0, "zero")
	must(t, err)
	wantCode(t, tlAdd.Handle(zero, addThallium), codes.Exist, "add")
	must(t, tlDivide.Handle(zero, divide))
	five, err := server.NewProvider(5, "five")
	must(t, err)
	must(t, tlAdd.Handle(five, addThallium))

	for _, to := range []Target{ep, ep.Provider(0), ep.Provider(5)} {
		if got, err := tlAdd.Call(patient(t), to, addIn{3, 4}); err != nil || got != 7 {
			t.Errorf("add at %v: %d, %v", to, got, err)
		}
	}
	for _, to := range []Target{ep.Provider(6), ep.Provider(65535)} {
		_, err := tlAdd.Call(patient(t), to, addIn{3, 4})
		wantCode(t, err, codes.NoEntry, "Thallium: 0")
	}
	must(t, zero.Close()) // takes only its own with it
	if got, err := tlAdd.Call(patient(t), ep, addIn{3, 4}); err != nil || got != 7 {
		t.Errorf("add, provider 0 being closed: %d, %v", got, err)
	}
	_, err = tlDivide.Call(patient(t), ep, addIn{3, 4})
	wantCode(t, err, codes.NoEntry)
	must(t, tlAdd.Remove(five))
	_, err = tlAdd.Call(patient(t), ep.Provider(5), addIn{3, 4})
	wantCode(t, err, codes.NoEntry)
}

func divide(_ context.Context, in addIn) (quotient, error) {
	if in.Y == 0 {
		return quotient{}, codes.InvalidArg
	}
	return quotient{in.X / in.Y, in.X % in.Y}, nil
}

// TestDefaultProviders calls across the flavours: Margo's default provider is 65535, Thallium's 0, and two integers have
// the same bytes in both.
// parity: T23 T35
func TestDefaultProviders(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { return addOut{1}, nil }))
	must(t, tlAdd.Handle(server, func(context.Context, addIn) (int32, error) { return 2, nil }))
	for _, tt := range []struct {
		flavor   Flavor
		to       Target
		reaches  int32
		describe string
	}{
		{Margo, ep, 1, "Margo, no provider"},
		{Margo, ep.Provider(0), 2, "Margo, provider 0"},
		{Thallium, ep, 2, "Thallium, no provider"},
		{Thallium, ep.Provider(65535), 1, "Thallium, Margo's provider"},
	} {
		got, err := NewRPC[addIn, addOut]("add", WithFlavor(tt.flavor)).Call(patient(t), tt.to, addIn{})
		if err != nil || got.Sum != tt.reaches {
			t.Errorf("%s: reaches %d, %v; want %d", tt.describe, got.Sum, err, tt.reaches)
		}
	}
}

// TestThalliumArguments: several arguments and results are structs, errors are codes.
// parity: T24 T28 T32 T51 T60
func TestThalliumArguments(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, tlDivide.Handle(server, divide))
	if got, err := tlDivide.Call(patient(t), ep, addIn{-7, 2}); err != nil || got != (quotient{-3, -1}) {
		t.Errorf("divide = %+v, %v", got, err)
	}
	_, err := tlDivide.Call(patient(t), ep, addIn{1, 0})
	wantCode(t, err, codes.InvalidArg)

	echo := NewRPC[string, string]("echo", inThallium)
	must(t, echo.Handle(server, func(_ context.Context, s string) (string, error) { return s, nil }))
	for _, s := range []string{"", "a\x00b", "grüß 日本", strings.Repeat("x", 10<<20)} {
		if got, err := echo.Call(patient(t), ep, s); err != nil || got != s {
			t.Errorf("a string of %d bytes comes back with %d, %v", len(s), len(got), err)
		}
	}
	total := NewRPC[[]int32, int64]("total", inThallium)
	must(t, total.Handle(server, func(_ context.Context, all []int32) (n int64, _ error) {
		for _, x := range all {
			n += int64(x)
		}
		return n, nil
	}))
	const count = 1_000_000 // 4 MB: the server fetches them
	if got, err := total.Call(patient(t), ep, slices.Repeat([]int32{1, -3}, count/2)); err != nil || got != -count {
		t.Errorf("total = %d, %v, want %d", got, err, -count)
	}
	nothing := NewRPC[struct{}, struct{}]("nothing", inThallium)
	must(t, nothing.Handle(server, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }))
	if _, err := nothing.Call(patient(t), ep, struct{}{}); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// TestThalliumOneWay: the caller says whether it wants a response; one that does gets an empty one.
// parity: T21 T28
func TestThalliumOneWay(t *testing.T) {
	server, ep := pair(t, nil)
	names := make(chan string, 2)
	must(t, tlHello.Handle(server, func(_ context.Context, name string) error {
		names <- name
		return nil
	}))
	must(t, tlHello.Send(patient(t), ep, "bob"))
	if got := soon(t, "hello", names); got != "bob" {
		t.Errorf("hello %q", got)
	}
	if _, err := NewRPC[string, struct{}]("hello", inThallium).Call(patient(t), ep, "ann"); err != nil {
		t.Errorf("a caller that wants a response: %v", err)
	}
	if got := soon(t, "hello", names); got != "ann" {
		t.Errorf("hello %q", got)
	}
}

// TestThalliumDeferred answers from another goroutine after the handler has returned.
// parity: T27
func TestThalliumDeferred(t *testing.T) {
	server, ep := pair(t, nil)
	held := make(chan *Call[addIn, int32], 1)
	must(t, tlAdd.HandleCall(server, func(c *Call[addIn, int32]) { held <- c }))
	p := tlAdd.Start(patient(t), ep, addIn{3, 4})
	c := soon(t, "the handler", held)
	if got := InfoFrom(c.Context()).Peer.String(); got != ep.e.Addr() {
		t.Errorf("%s has called, want %s", got, ep.e.Addr())
	}
	must(t, c.Respond(c.Context(), c.In.X+c.In.Y))
	wantCode(t, c.Respond(c.Context(), 0), codes.InvalidArg)
	if got, err := p.Wait(); err != nil || got != 7 {
		t.Errorf("add = %d, %v", got, err)
	}
}

// TestThalliumAsync has calls in flight, some of which nobody ever waits for.
// parity: T26
func TestThalliumAsync(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, tlAdd.Handle(server, addThallium))
	var waited []*Pending[int32]
	for i := range int32(20) {
		p := tlAdd.Start(patient(t), ep, addIn{i, i})
		if i%2 == 0 {
			waited = append(waited, p)
		}
	}
	seen := 0
	for i, p := range Completed(patient(t), waited...) {
		if got, err := p.Wait(); err != nil || got != int32(4*i) {
			t.Errorf("call %d: %d, %v", i, got, err)
		}
		seen++
	}
	if seen != len(waited) {
		t.Errorf("%d of %d have ended", seen, len(waited))
	}
	must(t, ep.e.Shutdown(patient(t))) // waits for the others
	if n := ep.e.Stats().CallsActive; n != 0 {
		t.Errorf("%d calls are active", n)
	}
}

// TestThalliumTimed: a call and a call that was begun, with less time than they take.
// parity: T25
func TestThalliumTimed(t *testing.T) {
	server, ep := pair(t, nil)
	never := NewRPC[struct{}, struct{}]("never", inThallium)
	must(t, never.Handle(server, handleBlock))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	p := never.Start(ctx, ep, struct{}{})
	_, err := never.Call(ctx, ep, struct{}{})
	wantCode(t, err, codes.Timeout)
	if e, _ := errors.AsType[*Error](err); e.Remote || e.Code != codes.Timeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %+v", e)
	}
	_, err = p.Wait()
	wantCode(t, err, codes.Timeout)
}

// TestThalliumHandles sends handles inside containers, null ones among them.
// parity: T44 T47 T48
func TestThalliumHandles(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, tlHandles.Handle(server, func(_ context.Context, in handles) (handles, error) { return in, nil }))
	data := noise(100_000)
	b := expose(t, ep.e, ReadWrite, data)
	small := expose(t, ep.e, ReadOnly, []byte("small"))
	in := handles{
		List: []BulkHandle{b.Handle(), {}, small.Handle()},
		Map:  map[string]tagged{"whole": {1, b.Handle()}, "null": {2, BulkHandle{}}},
	}
	out, err := tlHandles.Call(patient(t), ep, in)
	must(t, err)
	describe := func(h handles) string {
		return fmt.Sprint(len(h.List), h.List, len(h.Map), h.Map["whole"].Tag, h.Map["whole"].Bulk, h.Map["null"].Tag, h.Map["null"].Bulk)
	}
	if got, want := describe(out), describe(in); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if out.List[1] != (BulkHandle{}) || out.Map["null"].Bulk != (BulkHandle{}) {
		t.Error("null handles are not null any more")
	}
	buf := make([]byte, len(data))
	n, err := out.List[0].On(ep.e.Self()).Pull(patient(t), expose(t, ep.e, WriteOnly, buf))
	if err != nil || n != int64(len(data)) || !bytes.Equal(buf, data) {
		t.Errorf("%d bytes through a handle that came back: %v", n, err)
	}
}

// TestThalliumMany has 256 calls at once on one server, some of which carry more than a message holds.
// parity: T74
func TestThalliumMany(t *testing.T) {
	server, ep := pair(t, nil)
	double := NewRPC[[]int32, []int32]("double", inThallium)
	must(t, double.Handle(server, func(_ context.Context, in []int32) ([]int32, error) {
		for i := range in {
			in[i] *= 2
		}
		return in, nil
	}))
	var wg sync.WaitGroup
	for i := range 256 {
		wg.Go(func() {
			in := slices.Repeat([]int32{int32(i)}, 1+i*i%5000)
			out, err := double.Call(patient(t), ep, in)
			if err != nil || len(out) != len(in) || out[len(out)-1] != int32(2*i) {
				t.Errorf("call %d: %d numbers, %v", i, len(out), err)
			}
		})
	}
	wg.Wait()
}

// TestThalliumPanics: a handler that panics costs its caller an answer, and nobody else.
// parity: T31
func TestThalliumPanics(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, tlAdd.Handle(server, func(_ context.Context, in addIn) (int32, error) {
		if in.X == 0 {
			panic("no X")
		}
		return in.X + in.Y, nil
	}))
	_, err := tlAdd.Call(patient(t), ep, addIn{0, 1})
	wantCode(t, err, codes.OtherError)
	if got, err := tlAdd.Call(patient(t), ep, addIn{3, 4}); err != nil || got != 7 {
		t.Errorf("the next call: %d, %v", got, err)
	}
}

// TestThalliumWidths: arguments that are too short for what is asked for are refused.
// parity: T61
func TestThalliumWidths(t *testing.T) {
	server, ep := pair(t, nil)
	wide := NewRPC[struct{ X, Y int64 }, int64]("wide", inThallium)
	must(t, wide.Handle(server, func(_ context.Context, in struct{ X, Y int64 }) (int64, error) { return in.X + in.Y, nil }))
	_, err := NewRPC[addIn, int64]("wide", inThallium).Call(patient(t), ep, addIn{1, 2}) // int where a long is meant
	if err == nil || codes.Of(err) == codes.NoEntry {
		t.Errorf("two int32 for two int64: %v", err)
	}
}

// TestThalliumTypeNames: programs that were built to put the names of types in front of each message are told apart from
// programs that send garbage, and from those that send strings.
// parity: T34
func TestThalliumTypeNames(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, tlAdd.Handle(server, addThallium))
	greet := NewRPC[string, string]("greet", inThallium)
	must(t, greet.Handle(server, func(_ context.Context, name string) (string, error) { return name, nil }))
	raw := func(name string) *RPC[cereal.Rest, cereal.Rest] {
		return NewRPC[cereal.Rest, cereal.Rest](name, inThallium)
	}
	eight := make([]byte, 8)
	for _, names := range []string{"int, int", "void", "std::vector<std::pair<int, thallium::bulk> > const&", "unsigned long&"} {
		_, err := raw("add").Call(patient(t), ep, append(cereal.AppendString(nil, names), eight...))
		wantCode(t, err, codes.Of(&codec.Error{}))
		must(t, raw("named").Handle(server, func(context.Context, cereal.Rest) (cereal.Rest, error) {
			return append(cereal.AppendString(nil, names), eight...), nil
		}))
		_, err = NewRPC[struct{}, int32]("named", inThallium).Call(patient(t), ep, struct{}{})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the names of C++ types, %q; build the peer without THALLIUM_DEBUG_RPC_TYPES", names)) {
			t.Errorf("a result behind %q: %v", names, err)
		}
		must(t, raw("named").Remove(server))
	}
	for _, name := range []string{"interest: 5 %", "int", "std::tuple<>", "bob"} {
		if got, err := greet.Call(patient(t), ep, name); err != nil || got != name {
			t.Errorf("greet(%q) = %q, %v", name, got, err)
		}
	}
	more := append(cereal.AppendString(nil, "bob"), eight...) // arguments that the handler does not read
	if _, err := raw("greet").Call(patient(t), ep, more); err != nil {
		t.Errorf("a string and more: %v", err)
	}
}

// exposing is a value whose bytes are memory that is exposed while it is written: it has the engine for that. Its
// reader finds a handle.
type exposing struct {
	from   *source
	handle BulkHandle
}

type source struct {
	engine *Engine
	data   []byte
	memory *Bulk
}

func (x exposing) AppendProc(b []byte) (_ []byte, err error) {
	if x.from.memory, err = x.from.engine.Expose(ReadOnly, x.from.data); err != nil {
		return nil, err
	}
	return x.from.memory.Handle().AppendProc(b)
}

func (x *exposing) DecodeProc(b []byte) (int, error) { return x.handle.DecodeProc(b) }

// TestThalliumEngineInValue: a type that writes itself may use the engine, and its handler has one.
// parity: T09 T57
func TestThalliumEngineInValue(t *testing.T) {
	server, ep := pair(t, nil)
	fetch := NewRPC[exposing, string]("fetch", inThallium)
	must(t, fetch.Handle(server, func(ctx context.Context, in exposing) (string, error) {
		buf := make([]byte, min(in.handle.Len(), 1<<10))
		local, err := server.Expose(WriteOnly, buf)
		if err != nil {
			return "", err
		}
		defer local.Close() // the pull is over
		_, err = in.handle.On(InfoFrom(ctx).Peer).Pull(ctx, local)
		return string(buf), err
	}))
	from := &source{engine: ep.e, data: []byte("exposed while it was written")}
	got, err := fetch.Call(patient(t), ep, exposing{from: from})
	if err != nil || got != string(from.data) {
		t.Errorf("got %q, %v", got, err)
	}
	must(t, from.memory.Close())
}
