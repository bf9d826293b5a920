package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/stats"
)

// parity: G20 G30
func TestCall(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	for i := range int32(100) { // long enough for the handler to be trusted
		out, err := add.Call(patient(t), ep, addIn{X: i, Y: 1})
		if err != nil || out.Sum != i+1 {
			t.Fatalf("call %d = %+v, %v", i, out, err)
		}
	}
}

// parity: G40
func TestCallVoid(t *testing.T) {
	server, ep := pair(t, nil)
	touched := make(chan struct{}, 2)
	for _, f := range []Flavor{Margo, Mercury} {
		void := NewRPC[struct{}, struct{}]("void", WithFlavor(f))
		must(t, void.Handle(server, func(context.Context, struct{}) (struct{}, error) {
			touched <- struct{}{}
			return struct{}{}, nil
		}))
		if _, err := void.Call(patient(t), ep, struct{}{}); err != nil {
			t.Errorf("%v: %v", f, err)
		}
		soon(t, "handler", touched)
	}
}

// TestFlavors checks that the two flavours of one name are two procedures.
func TestFlavors(t *testing.T) {
	server, ep := pair(t, nil)
	plain := NewRPC[addIn, addOut]("add", WithFlavor(Mercury))
	must(t, add.Handle(server, handleAdd))
	must(t, plain.Handle(server, func(_ context.Context, in addIn) (addOut, error) { return addOut{Sum: -in.X}, nil }))
	callAdd(t, ep)
	if out, err := plain.Call(patient(t), ep, addIn{X: 5}); err != nil || out.Sum != -5 {
		t.Errorf("plain add = %+v, %v", out, err)
	}
	if _, err := plain.Call(patient(t), ep.Provider(1), addIn{}); codes.Of(err) != codes.InvalidArg {
		t.Errorf("a provider for an RPC without: %v", err)
	}
	provider, err := server.NewProvider(3, "x")
	must(t, err)
	if err := plain.Handle(provider, nil); codes.Of(err) != codes.InvalidArg {
		t.Errorf("registering an RPC without providers for one: %v", err)
	}
	if got, want := plain.ID(9), uint64(0xb885cce); got != want {
		t.Errorf("id %#x, want %#x", got, want)
	}
	if got, want := NewRPC[struct{}, struct{}]("", WithID(7)).ID(0), uint64(7); got != want {
		t.Errorf("id %#x, want %#x", got, want)
	}
}

func TestNewRPCPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"arguments cannot be encoded": func() { NewRPC[chan int, struct{}]("x") },
		"results cannot be encoded":   func() { NewRPC[struct{}, map[string]int]("x") },
		"flavour":                     func() { NewOneWay[struct{}]("x", WithFlavor(9)) },
	} {
		func() {
			defer func() {
				if v := fmt.Sprint(recover()); !strings.Contains(v, name) || !strings.Contains(v, `"x"`) {
					t.Errorf("panic %q does not say %q", v, name)
				}
			}()
			f()
		}()
	}
}

// TestProviderIDs checks both spellings of "no provider": the macro's 65535 and margo_register_name's 0.
// parity: G23
func TestProviderIDs(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	zero, err := server.NewProvider(0, "zero")
	must(t, err)
	must(t, add.Handle(zero, func(context.Context, addIn) (addOut, error) { return addOut{Sum: 0}, nil }))
	callAdd(t, ep)
	callAdd(t, ep.Provider(wire.DefaultProvider))
	if out, err := add.Call(patient(t), ep.Provider(0), addIn{X: 1}); err != nil || out.Sum != 0 {
		t.Errorf("provider 0: %+v, %v", out, err)
	}
	if got, want := add.ID(0), uint64(0xc8c9c5c8)<<32; got != want {
		t.Errorf("id %#x, want %#x", got, want)
	}
	if _, err := server.NewProvider(wire.DefaultProvider, "x"); codes.Of(err) != codes.InvalidArg {
		t.Errorf("provider 65535: %v", err)
	}
}

// TestProviders checks that providers of one RPC name get their own calls, with their own data, and their identities.
// parity: H42 G21 G25 G28 G43 G45
func TestProviders(t *testing.T) {
	server, ep := pair(t, nil)
	for id := range uint16(3) {
		p, err := server.NewProvider(id, fmt.Sprintf("kind%d", id))
		must(t, err)
		data := int32(id) * 100
		must(t, add.Handle(p, func(ctx context.Context, in addIn) (addOut, error) {
			if info := InfoFrom(ctx); info.Provider != id || info.RPC != "add" || info.ID != add.ID(id) {
				return addOut{}, fmt.Errorf("wrong info %+v", info)
			}
			return addOut{Sum: data + in.X}, nil
		}))
	}
	for id := range uint16(3) {
		h := ep.Provider(id)
		out, err := add.Call(patient(t), h, addIn{X: 7})
		if err != nil || out.Sum != int32(id)*100+7 {
			t.Errorf("provider %d: %+v, %v", id, out, err)
		}
		if got, err := identityOf(t, h); err != nil || got != fmt.Sprintf("kind%d", id) {
			t.Errorf("identity of %d: %q, %v", id, got, err)
		}
		if h.ID != id || !h.Endpoint.Equal(ep) {
			t.Errorf("handle %+v", h)
		}
	}
	_, err := identityOf(t, ep.Provider(9))
	wantCode(t, err, codes.NoEntry, "__identity__@9")
	_, err = identityOf(t, ep.Provider(wire.DefaultProvider))
	wantCode(t, err, codes.NoEntry, "without a handler")
}

// parity: T29
func TestProviderTaken(t *testing.T) {
	server := listening(t, nil)
	first, err := server.NewProvider(1, "first")
	must(t, err)
	_, err = server.NewProvider(1, "second")
	wantCode(t, err, codes.Exist, `"first"`, `"second"`)
	must(t, first.Close())
	must(t, first.Close())
	second, err := server.NewProvider(1, "second")
	must(t, err)
	if second.id != 1 || second.identity != "second" {
		t.Errorf("provider %d %q", second.id, second.identity)
	}
}

// serves reports whether the inventory of e has an RPC of this name.
func serves(e *Engine, name string) bool {
	return slices.ContainsFunc(e.State(-1).RPCs, func(r stats.RPC) bool { return r.Name == name })
}

// TestRegister checks registering, asking and removing.
// parity: H41 G24
func TestRegister(t *testing.T) {
	server, ep := pair(t, nil)
	if serves(server, "add") {
		t.Error("registered before")
	}
	wantCode(t, add.Remove(server), codes.NoEntry, "add")
	must(t, add.Handle(server, handleAdd))
	again := NewRPC[addIn, addOut]("add")
	if !serves(server, "add") || again.ID(1) != add.ID(1) {
		t.Error("the same name is not the same procedure")
	}
	wantCode(t, again.Handle(server, handleAdd), codes.Exist, `"add" is registered already for provider 65535`)
	page, err := os.ReadFile("docs/from-margo.md")
	if err != nil || !strings.Contains(string(page), `is registered already for provider 65535`) {
		t.Errorf("the page for Margo's users does not quote that error: %v", err)
	}
	callAdd(t, ep)
	must(t, add.Remove(server))
	_, err = add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.NoEntry)
	must(t, add.Handle(server, handleAdd))
	callAdd(t, ep)
	client := calling(t, nil)
	wantCode(t, add.Handle(client, handleAdd), codes.InvalidArg, "does not listen")
	if err := add.Handle((*Provider)(nil), handleAdd); codes.Of(err) != codes.InvalidArg {
		t.Errorf("no registrar: %v", err)
	}
}

// TestNoSuchRPC checks what a caller is told about a procedure that the peer does not know.
// parity: H55 D08
func TestNoSuchRPC(t *testing.T) {
	_, ep := pair(t, nil)
	_, err := add.Call(patient(t), ep.Provider(42), addIn{})
	wantCode(t, err, codes.NoEntry, "add@42", ep.String(), "provider 42", "0xc8c9c5c80000002a", "65535")
	if e, _ := errors.AsType[*Error](err); !e.Remote {
		t.Error("not said by the peer")
	}
	_, err = NewRPC[addIn, addOut]("add", WithFlavor(Mercury)).Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.NoEntry, "add", ep.String(), "0xb885cce")
}

// TestUnknownIsLogged checks that a server's log tells what would have been right.
// parity: D08
func TestUnknownIsLogged(t *testing.T) {
	var text strings.Builder
	var mu sync.Mutex
	audit.Reset()
	log := slog.New(slog.NewTextHandler(lockedWriter{&mu, &text}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server, ep := pair(t, &Config{Logger: log})
	p, err := server.NewProvider(3, "x")
	must(t, err)
	must(t, add.Handle(p, handleAdd))
	_, err = add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.NoEntry)
	mu.Lock()
	defer mu.Unlock()
	for _, word := range []string{"not registered", "provider=65535", "add@3"} {
		if !strings.Contains(text.String(), word) {
			t.Errorf("the log does not say %q:\n%s", word, text.String())
		}
	}
	if n := strings.Count(text.String(), "not registered"); n != 1 {
		t.Errorf("%d lines about RPCs that are not registered, want 1: the question about checksums is none:\n%s", n, text.String())
	}
}

// TestCodecPanics checks that a type whose own encoding panics does not keep an engine from closing.
func TestCodecPanics(t *testing.T) {
	_, ep := pair(t, nil)
	rpc := NewRPC[rude, struct{}]("rude")
	for _, f := range []func(){
		func() { rpc.Start(patient(t), ep, rude{}) },
		func() { _, _ = rpc.Call(patient(t), ep, rude{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

// rude is a type whose encoding panics.
type rude struct{}

func (rude) AppendProc([]byte) ([]byte, error) { panic("no") }
func (*rude) DecodeProc([]byte) (int, error)   { panic("no") }

// TestNullHandler checks names that are registered without a handler.
// parity: G38
func TestNullHandler(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, nil))
	_, err := add.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.NoEntry, "without a handler")
	plain := NewRPC[addIn, addOut]("add", WithFlavor(Mercury))
	must(t, plain.HandleCall(server, nil))
	_, err = plain.Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.InvalidArg)
	once := NewOneWay[addIn]("once")
	must(t, once.Handle(server, nil))
	must(t, once.Send(patient(t), ep, addIn{}))
}

// TestHandlerErrors checks which code the caller of a failing handler sees.
// parity: H05 G38 T32
func TestHandlerErrors(t *testing.T) {
	server, ep := pair(t, nil)
	var fail error
	fails := NewRPC[struct{}, addOut]("fails")
	plain := NewRPC[struct{}, addOut]("fails", WithFlavor(Mercury))
	h := func(context.Context, struct{}) (addOut, error) { return addOut{Sum: 9}, fail }
	must(t, fails.Handle(server, h))
	must(t, plain.Handle(server, h))
	for _, test := range []struct {
		err  error
		want codes.Code
	}{
		{codes.Busy, codes.Busy},
		{fmt.Errorf("wrapped: %w", codes.NoMem), codes.NoMem},
		{&Error{Op: "x", Code: codes.Access}, codes.Access},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.Timeout},
		{io.EOF, codes.OtherError},
		{codes.Code(0), codes.OtherError},
	} {
		fail = test.err
		for _, rpc := range []*RPC[struct{}, addOut]{fails, plain} {
			out, err := rpc.Call(patient(t), ep, struct{}{})
			wantCode(t, err, test.want, "fails", ep.String())
			if e, _ := errors.AsType[*Error](err); !e.Remote || out.Sum != 0 {
				t.Errorf("%v: remote %v, result %+v", test.err, e.Remote, out)
			}
		}
	}
	fail = codes.Code(99) // unknown codes pass
	_, err := fails.Call(patient(t), ep, struct{}{})
	wantCode(t, err, 99, "HG return code 99")
}

// TestCallOddities checks calls that cannot work, and one to oneself.
// parity: H53 G40
func TestCallOddities(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	for _, to := range []Target{nil, (*Endpoint)(nil), &Endpoint{}, ProviderHandle{}} {
		_, err := add.Call(patient(t), to, addIn{})
		wantCode(t, err, codes.InvalidArg, "endpoint")
	}
	callAdd(t, server.Self())
	if !server.Self().Equal(find(t, server, server.Addr())) || server.Self().Equal(nil) {
		t.Error("self is not self")
	}
	callAdd(t, ep)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := add.Call(canceled, server.Self(), addIn{})
	wantCode(t, err, codes.Canceled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not match context.Canceled", err)
	}
}

// parity: H23 H53
func TestNoLoopback(t *testing.T) {
	server := listening(t, &Config{NoLoopback: true})
	must(t, add.Handle(server, handleAdd))
	if _, err := add.Call(patient(t), server.Self(), addIn{}); err == nil {
		t.Error("a call to oneself works although it is switched off")
	}
}

// TestBadArguments checks that a caller whose arguments do not decode is told, and that the server lives on.
func TestBadArguments(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	_, err := NewRPC[int32, addOut]("add").Call(patient(t), ep, 1)
	wantCode(t, err, codes.Overflow, "add")
	headless := NewRPC[struct{}, codes.Code]("add", WithID(add.ID(wire.DefaultProvider)))
	code, err := headless.Call(patient(t), ep, struct{}{})
	if err != nil || code != codes.Overflow {
		t.Errorf("without Margo's header: %v, %v", code, err)
	}
	_, err = NewRPC[addIn, [100]int64]("add").Call(patient(t), ep, addIn{})
	wantCode(t, err, codes.Overflow, "add", "4 remain")
	callAdd(t, ep)
}

// TestLarge checks arguments and results that do not fit into a message.
// parity: H51
func TestLarge(t *testing.T) {
	server, ep := pair(t, nil)
	type blob struct {
		N    uint32
		Data []byte `proc:"count=N"`
	}
	echo := NewRPC[blob, blob]("echo")
	must(t, echo.Handle(server, func(_ context.Context, in blob) (blob, error) { return in, nil }))
	for _, n := range []uint32{0, 1, 4000, 5000, 1 << 20} {
		in := blob{N: n, Data: make([]byte, n)}
		for i := range in.Data {
			in.Data[i] = byte(i * 7)
		}
		out, err := echo.Call(patient(t), ep, in)
		if err != nil || string(out.Data) != string(in.Data) {
			t.Fatalf("%d bytes: %d bytes back, %v", n, len(out.Data), err)
		}
		p := echo.Start(patient(t), ep, in)
		if out, err = p.Wait(); err != nil || string(out.Data) != string(in.Data) {
			t.Fatalf("%d bytes, started: %d bytes back, %v", n, len(out.Data), err)
		}
	}
	if s := server.Stats(); s.RequestsExtra == 0 || s.ResponsesExtra == 0 {
		t.Errorf("no overflow in %+v", s)
	}
}

// parity: H43 G27
func TestOneWay(t *testing.T) {
	server, ep := pair(t, nil)
	got := make(chan int32, 300)
	note := NewOneWay[addIn]("note")
	must(t, note.Handle(server, func(_ context.Context, in addIn) error {
		got <- in.X
		return io.ErrUnexpectedEOF // logged, and nobody is told
	}))
	if !serves(server, "note") || note.Name() != "note" || note.ID(1) != wire.ID("note", 1) {
		t.Error("not registered as such")
	}
	var sum int32
	for i := range int32(300) {
		must(t, note.Send(patient(t), ep, addIn{X: i}))
	}
	for range 300 {
		sum += soon(t, "request", got)
	}
	if sum != 299*150 {
		t.Errorf("sum of what arrived is %d", sum)
	}
	must(t, note.Remove(server))
	must(t, note.Send(patient(t), ep, addIn{})) // nobody says that there is nobody
}

// TestOneWayMixed checks peers that disagree about whether there is a response.
func TestOneWayMixed(t *testing.T) {
	server, ep := pair(t, nil)
	ran := make(chan struct{}, 1)
	must(t, NewOneWay[addIn]("mixed").Handle(server, func(context.Context, addIn) error {
		ran <- struct{}{}
		return nil
	}))
	if _, err := NewRPC[addIn, struct{}]("mixed").Call(patient(t), ep, addIn{}); err != nil {
		t.Errorf("call of a one-way handler: %v", err)
	}
	soon(t, "handler", ran)
	must(t, NewRPC[addIn, addOut]("twoway").Handle(server, func(context.Context, addIn) (addOut, error) {
		ran <- struct{}{}
		return addOut{}, nil
	}))
	must(t, NewOneWay[addIn]("twoway").Send(patient(t), ep, addIn{}))
	soon(t, "handler", ran)
}

// TestManyInFlight has 16 goroutines keep 16 calls each in flight.
// parity: H57
func TestManyInFlight(t *testing.T) {
	server, ep := pair(t, nil)
	must(t, add.Handle(server, handleAdd))
	calls := int32(500)
	if brief() {
		calls = 100
	}
	var wg sync.WaitGroup
	for g := range int32(16) {
		wg.Go(func() {
			var ps []*Pending[addOut]
			for i := range calls {
				ps = append(ps, add.Start(patient(t), ep, addIn{X: g, Y: i}))
				if len(ps) == 16 {
					if out, err := ps[0].Wait(); err != nil || out.Sum != g+i-15 {
						t.Errorf("call %d of %d: %+v, %v", i-15, g, out, err)
						return
					}
					ps = ps[1:]
				}
			}
			for _, p := range ps {
				if _, err := p.Wait(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// identityOf asks for the identity of a provider.
func identityOf(t *testing.T, h ProviderHandle) (string, error) {
	t.Helper()
	out, err := identityRPC.Call(patient(t), h, struct{}{})
	if err != nil {
		return "", err
	}
	return *out.Identity, nil
}
