package native_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

type (
	addIn  struct{ X, Y int32 }
	addOut struct{ Sum int32 }
)

var add = native.New[addIn, addOut]("add")

func handleAdd(_ context.Context, in addIn) (addOut, error) { return addOut{in.X + in.Y}, nil }

// blob is an argument or result of any length.
type blob struct {
	Data []byte `proc:"counted=uint64"`
}

var echo = native.New[blob, blob]("echo")

func handleEcho(_ context.Context, in blob) (blob, error) { return in, nil }

// wait is an RPC whose handler ends with its context.
var wait = native.New[struct{}, struct{}]("wait")

// serveWait makes e serve wait. began has a value for each handler that begins, ended the cause of the end of its context.
func serveWait(t *testing.T, on cinnabar.Registrar) (began <-chan context.Context, ended <-chan error) {
	t.Helper()
	b, e := make(chan context.Context, 100), make(chan error, 100)
	must(t, wait.Handle(on, func(ctx context.Context, _ struct{}) (struct{}, error) {
		b <- ctx
		<-ctx.Done()
		e <- context.Cause(ctx)
		return struct{}{}, ctx.Err()
	}))
	return b, e
}

// wantError checks the code and parts of the text of an error of Call.
func wantError(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	e, ok := errors.AsType[*cinnabar.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("error %v, want code %v", err, code)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not contain %q", err, s)
		}
	}
}

// TestCall makes short and long calls over each network, to the engine and to a provider, and to a process itself.
// parity: A04
func TestCall(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		provider, err := server.NewProvider(7, "adders")
		must(t, err)
		must(t, add.Handle(server, handleAdd))
		must(t, echo.Handle(server, handleEcho))
		must(t, add.Handle(provider, func(_ context.Context, in addIn) (addOut, error) { return addOut{in.X * in.Y}, nil }))
		for to, want := range map[cinnabar.Target]int32{ep: 7, ep.Provider(7): 12, server.Self(): 7} {
			if out, err := add.Call(patient(t), to, addIn{3, 4}); err != nil || out.Sum != want {
				t.Errorf("add at %v = %v, %v, want %d", to, out, err, want)
			}
		}
		for _, n := range []int{0, 1, 4000, 5000, 1 << 20} {
			data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, n/5+1)[:n]
			if out, err := echo.Call(patient(t), ep, blob{data}); err != nil || !bytes.Equal(out.Data, data) {
				t.Errorf("echo of %d bytes: %d bytes, %v", n, len(out.Data), err)
			}
		}
		must(t, add.Remove(server))
		_, err = add.Call(patient(t), ep, addIn{})
		wantError(t, err, codes.NoEntry, `no native RPC "add"`, "programs in C")
	})
}

// TestBulk pulls memory by handles: in the handler of a native RPC by one in the arguments, and at the caller by one in the result. With AutoSM
// calls over ofi+tcp travel over shared memory, and handles have another form.
func TestBulk(t *testing.T) {
	type handle struct{ From cinnabar.BulkHandle }
	swap := native.New[handle, handle]("swap")
	want := bytes.Repeat([]byte("cinnabar "), 10000)
	run := func(t *testing.T, network string, cfg *cinnabar.Config) {
		server, client := listen(t, network, cfg), listen(t, network, cfg)
		own, err := server.Expose(cinnabar.ReadOnly, want)
		must(t, err)
		defer own.Close()
		must(t, swap.Handle(server, func(ctx context.Context, in handle) (handle, error) {
			got := make([]byte, in.From.Len())
			if _, err := in.From.On(cinnabar.InfoFrom(ctx).Peer).ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
				return handle{}, fmt.Errorf("pull %d bytes: %w", len(got), err)
			}
			return handle{own.Handle()}, nil
		}))
		mine, err := client.Expose(cinnabar.ReadOnly, want)
		must(t, err)
		defer mine.Close()
		ep := find(t, client, server)
		out, err := swap.Call(patient(t), ep, handle{mine.Handle()})
		must(t, err)
		got := make([]byte, out.From.Len())
		if _, err := out.From.On(ep).ReadAt(patient(t), got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("pull %d bytes: %v", len(got), err)
		}
	}
	onNetworks(t, func(t *testing.T, network string) { run(t, network, nil) })
	if runtime.GOOS == "linux" {
		t.Run("AutoSM", func(t *testing.T) { run(t, tcp, &cinnabar.Config{AutoSM: true}) })
	}
}

// TestCancel cancels calls whose handlers run.
// parity: A04
func TestCancel(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		began, ended := serveWait(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		for range 3 {
			go func() {
				_, err := wait.Call(ctx, ep, struct{}{})
				result <- err
			}()
		}
		for range 3 {
			soon(t, "handler", began)
		}
		other, err := native.New[struct{}, struct{}]("other"), error(nil)
		must(t, other.Handle(server, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }))
		cancel()
		for range 3 {
			wantError(t, soon(t, "result", result), codes.Canceled)
			if err := soon(t, "end of the context", ended); !errors.Is(err, codes.Canceled) || !strings.Contains(err.Error(), "the caller has cancelled") {
				t.Errorf("the context ends with %v", err)
			}
		}
		_, err = other.Call(patient(t), ep, struct{}{})
		must(t, err)
	})
}

// TestCancelWaiting cancels a call that waits for a worker. Its handler is not called.
func TestCancelWaiting(t *testing.T) {
	server, ep := pair(t, tcp, &cinnabar.Config{Pools: []cinnabar.PoolConfig{{Name: "one", Workers: 1}}}, nil)
	release, began := make(chan struct{}), make(chan string, 10)
	call := native.New[blob, struct{}]("call")
	must(t, call.Handle(server, func(_ context.Context, in blob) (struct{}, error) {
		began <- string(in.Data)
		<-release
		return struct{}{}, nil
	}, cinnabar.WithPool(server.LookupPool("one"))))
	results := make(chan error, 3)
	start := func(ctx context.Context, name string) {
		go func() {
			_, err := call.Call(ctx, ep, blob{[]byte(name)})
			results <- err
		}()
	}
	start(patient(t), "first")
	soon(t, "first handler", began)
	ctx, cancel := context.WithCancel(patient(t))
	start(ctx, "second")
	waitUntil(t, "the second request waits", func() bool { return server.Stats().RequestsActive == 2 })
	received := server.Stats().RequestsRecvd
	cancel()
	wantError(t, soon(t, "second result", results), codes.Canceled)
	waitUntil(t, "the cancel is received", func() bool { return server.Stats().RequestsRecvd > received })
	_, err := add.Call(patient(t), ep, addIn{}) // a later message, so that the cancel has taken effect
	wantError(t, err, codes.NoEntry)
	start(patient(t), "third")
	close(release)
	must(t, soon(t, "result", results))
	must(t, soon(t, "result", results))
	if name := soon(t, "third handler", began); name != "third" {
		t.Errorf("handler of %q is called", name)
	}
}

// waitUntil waits until is returns true.
func waitUntil(t *testing.T, event string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx := patient(t); !is(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not so after %v: %s", testLimit, event)
		}
	}
}

// TestCancelOfOtherClient cancels calls from a second client by the ids of the first one. They go on.
func TestCancelOfOtherClient(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		began, ended := serveWait(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() {
			_, err := wait.Call(ctx, ep, struct{}{})
			result <- err
		}()
		handler := soon(t, "handler", began)
		stranger := find(t, open(t, network, nil), server)
		must(t, native.SendCancel(patient(t), stranger, native.CallID(handler)))
		_, err := add.Call(patient(t), stranger, addIn{}) // a later message, so that the cancel has arrived
		wantError(t, err, codes.NoEntry)
		if handler.Err() != nil {
			t.Error("a stranger has cancelled the call")
		}
		cancel()
		wantError(t, soon(t, "result", result), codes.Canceled)
		if err := soon(t, "end of the context", ended); !errors.Is(err, codes.Canceled) {
			t.Errorf("the context ends with %v", err)
		}
	})
}

// TestClose closes the engine of either side while a handler runs. The handler's context and the call end.
func TestClose(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		for _, side := range []string{"server", "client"} {
			t.Run(side, func(t *testing.T) {
				server, client := listen(t, network, nil), open(t, network, nil)
				began, ended := serveWait(t, server)
				ctx, ep, result := patient(t), find(t, client, server), make(chan error)
				go func() {
					_, err := wait.Call(ctx, ep, struct{}{})
					result <- err
				}()
				soon(t, "handler", began)
				if side == "server" {
					must(t, server.Close())
				} else {
					must(t, client.Close())
				}
				if err := soon(t, "result", result); err == nil || ctx.Err() != nil {
					t.Errorf("the call ends with %v", err)
				}
				if err := soon(t, "end of the context", ended); err == nil || strings.Contains(err.Error(), "the caller has cancelled") {
					t.Errorf("the context ends with %v", err)
				}
			})
		}
	})
}

// TestDeadline checks that a handler's context has the deadline of its caller, and the server's limit.
// parity: A04
func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		name           string
		caller, server time.Duration
		min, max       time.Duration // of the time that the handler has; 0: no deadline
	}{
		{"none", 0, 0, 0, 0},
		{"caller's", time.Hour, 0, time.Hour - testLimit, time.Hour},
		{"server's", 0, time.Hour, time.Hour - testLimit, time.Hour},
		{"clipped", 5 * time.Hour, time.Hour, time.Hour - testLimit, time.Hour},
		{"shorter than the server's", time.Hour, 5 * time.Hour, time.Hour - testLimit, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, ep := pair(t, tcp, &cinnabar.Config{MaxHandlerTime: c.server}, nil)
			left := native.New[struct{}, int64]("left")
			must(t, left.Handle(server, func(ctx context.Context, _ struct{}) (int64, error) {
				if d, ok := ctx.Deadline(); ok {
					return int64(time.Until(d)), nil
				}
				return 0, nil
			}))
			ctx, cancel := context.WithCancel(t.Context())
			if c.caller > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.caller)
			}
			defer cancel()
			got, err := left.Call(ctx, ep, struct{}{})
			if err != nil || time.Duration(got) < c.min || time.Duration(got) > c.max {
				t.Errorf("the handler has %v, %v; want between %v and %v", time.Duration(got), err, c.min, c.max)
			}
		})
	}
}

// lateTimer is a context whose deadline has passed, and whose timer has not fired yet.
type lateTimer struct{ context.Context }

func (lateTimer) Deadline() (time.Time, bool) { return time.Now().Add(-time.Nanosecond), true }

// TestDeadlineBeforeItsTimer makes a call at its deadline.
func TestDeadlineBeforeItsTimer(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	must(t, add.Handle(server, handleAdd))
	_, err := add.Call(lateTimer{patient(t)}, ep, addIn{})
	wantError(t, err, codes.Timeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// quotaError and placeError are details, one as a pointer and one as a value.
type quotaError struct {
	Limit uint64
	Name  string
}

func (e *quotaError) Error() string { return fmt.Sprintf("quota of %d for %s", e.Limit, e.Name) }

type placeError struct{ Line uint32 }

func (e placeError) Error() string { return fmt.Sprintf("line %d", e.Line) }

var fail = native.New[struct{}, struct{}]("fail", native.WithDetail[*quotaError]("quota"), native.WithDetail[placeError]("place"))

// TestErrors checks that code, text and details of an error survive, also through a service between.
// parity: A04
func TestErrors(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		must(t, fail.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
			check(t, native.SetMetadata(ctx, "kind", "quota"))
			return struct{}{}, fmt.Errorf("%w: store\x1b[2J\n: %w: %w", codes.NoMem, &quotaError{7, "tenant"}, placeError{12})
		}))
		relay := native.New[struct{}, struct{}]("relay", native.WithDetail[*quotaError]("quota"))
		must(t, relay.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
			_, err := fail.Call(ctx, server.Self(), struct{}{})
			return struct{}{}, err
		}))
		var m native.Metadata
		_, err := fail.Call(patient(t), ep, struct{}{}, native.ReceiveMetadata(&m))
		wantError(t, err, codes.NoMem, "peer answers HG_NOMEM", `store\x1b[2J\n: quota of 7 for tenant: line 12`)
		if e, ok := errors.AsType[*cinnabar.Error](err); !ok || !e.Remote || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("error %q", err)
		}
		if q, ok := errors.AsType[*quotaError](err); !ok || *q != (quotaError{7, "tenant"}) {
			t.Errorf("detail %v", q)
		}
		if p, ok := errors.AsType[placeError](err); !ok || p.Line != 12 {
			t.Errorf("detail %v", p)
		}
		if diff := cmp.Diff(native.Metadata{"kind": "quota"}, m); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
		_, err = relay.Call(patient(t), ep, struct{}{})
		wantError(t, err, codes.NoMem, "tenant")
		if q, ok := errors.AsType[*quotaError](err); !ok || q.Limit != 7 {
			t.Errorf("detail through a service: %v", q)
		}
	})
}

// TestUnknownDetail calls with other declared details than those of the server.
func TestUnknownDetail(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	must(t, fail.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		return struct{}{}, errors.Join(&quotaError{7, "tenant"}, placeError{12})
	}))
	older := native.New[struct{}, struct{}]("fail", native.WithDetail[*quotaError]("place")) // of another type there
	_, err := older.Call(patient(t), ep, struct{}{})
	wantError(t, err, codes.OtherError, "quota of 7")
	e, _ := errors.AsType[*native.Error](err)
	if len(e.Details) != 2 {
		t.Fatalf("details %v", e.Details)
	}
	for i, want := range []string{`detail "quota" of`, `detail "place" of 4 bytes cannot be decoded`} {
		if d, ok := errors.AsType[*native.UnknownDetail](e.Details[i]); !ok || !strings.Contains(d.Error(), want) {
			t.Errorf("detail %d is %v, want %q", i, e.Details[i], want)
		}
	}
}

// TestLongError returns an error that exceeds the limits of text and details.
func TestLongError(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	must(t, fail.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		return struct{}{}, errors.Join(placeError{1}, &quotaError{7, strings.Repeat("é", 20000)})
	}))
	_, err := fail.Call(patient(t), ep, struct{}{})
	wantError(t, err, codes.OtherError, "left out")
	e, _ := errors.AsType[*native.Error](err)
	if !e.Truncated || len(e.Text) > 4096 || len(e.Text) < 4093 || strings.ContainsRune(e.Text, '\uFFFD') {
		t.Errorf("text of %d bytes, truncated %v", len(e.Text), e.Truncated)
	}
	if len(e.Details) != 1 || !errors.Is(e.Details[0], placeError{1}) {
		t.Errorf("details %v", e.Details)
	}
}

// TestFailuresLeave has more calls fail than a server has workers, before and in their handlers. None of them makes room for a request that
// has to be refused, because the only worker is busy and no request may wait.
func TestFailuresLeave(t *testing.T) {
	server, ep := pair(t, tcp, &cinnabar.Config{MaxHandlers: 1, MaxQueued: -1}, nil)
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { return addOut{}, codes.NoMem }))
	shorter := native.New[struct{ X int32 }, addOut]("add")
	for range 5 {
		_, err := add.Call(patient(t), ep, addIn{})
		wantError(t, err, codes.NoMem)
		_, err = shorter.Call(patient(t), ep, struct{ X int32 }{1})
		wantError(t, err, codes.Overflow)
	}
	began, _ := serveWait(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := wait.Call(ctx, ep, struct{}{})
		result <- err
	}()
	soon(t, "handler", began)
	_, err := add.Call(patient(t), ep, addIn{})
	wantError(t, err, codes.Again)
	cancel()
	wantError(t, soon(t, "result", result), codes.Canceled)
}

// TestHandleRefused checks that the error of Handle names the RPC, and not that of the cancels.
func TestHandleRefused(t *testing.T) {
	err := add.Handle(open(t, tcp, nil), handleAdd)
	wantError(t, err, codes.InvalidArg, "add", "does not listen")
	if strings.Contains(err.Error(), "cancel") {
		t.Error(err)
	}
}

// TestPanic checks that the text of a panic does not travel.
func TestPanic(t *testing.T) {
	server, ep := pair(t, tcp, &cinnabar.Config{Logger: slog.New(slog.DiscardHandler)}, nil)
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) { panic("secret") }))
	_, err := add.Call(patient(t), ep, addIn{})
	wantError(t, err, codes.OtherError)
	if strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// TestMetadata carries metadata of requests and responses, and refuses what exceeds the limits, on both sides.
// parity: A04
func TestMetadata(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	tags := native.New[struct{}, struct{}]("tags")
	full := native.Metadata{}
	for i := range native.MaxMetadataKeys {
		full[fmt.Sprintf("key-%02d", i)] = strings.Repeat("\xff", native.MaxMetadataBytes/native.MaxMetadataKeys-6)
	}
	must(t, tags.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		m := native.MetadataFrom(ctx)
		for k, v := range m {
			m[k] = "" // of a copy
			check(t, native.SetMetadata(ctx, k, v))
		}
		if len(m) == native.MaxMetadataKeys {
			for _, key := range []string{"more", "key-00"} {
				if err := native.SetMetadata(ctx, key, strings.Repeat("x", 1000)); !errors.Is(err, codes.InvalidArg) {
					t.Errorf("metadata beyond the limit: %v", err)
				}
			}
		}
		return struct{}{}, nil
	}))
	for _, want := range []native.Metadata{nil, {"tenant": "a\nb", "empty": ""}, full} {
		var got native.Metadata
		_, err := tags.Call(native.WithMetadata(patient(t), want), ep, struct{}{}, native.ReceiveMetadata(&got))
		must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
	}
	ctx := native.WithMetadata(native.WithMetadata(patient(t), native.Metadata{"a": "1", "b": "1"}), native.Metadata{"b": "2"})
	var got native.Metadata
	_, err := tags.Call(ctx, ep, struct{}{}, native.ReceiveMetadata(&got))
	must(t, err)
	if diff := cmp.Diff(native.Metadata{"a": "1", "b": "2"}, got); diff != "" {
		t.Errorf("merged metadata (-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		m    native.Metadata
		want string
	}{
		{native.Metadata{"": ""}, `metadata key ""`},
		{native.Metadata{"Tenant": ""}, `metadata key "Tenant"`},
		{native.Metadata{strings.Repeat("k", 129): ""}, "1 to 128"},
		{native.Metadata{"k": strings.Repeat("v", native.MaxMetadataBytes)}, "metadata has 16385 bytes in keys and values, at most 16384"},
	} {
		_, err := tags.Call(native.WithMetadata(patient(t), c.m), ep, struct{}{})
		wantError(t, err, codes.InvalidArg, c.want)
	}
	_, err = tags.Call(native.WithMetadata(native.WithMetadata(patient(t), full), native.Metadata{"one": ""}), ep, struct{}{})
	wantError(t, err, codes.InvalidArg, "metadata has 65 keys, at most 64")
	if err := native.SetMetadata(t.Context(), "k", "v"); !errors.Is(err, codes.InvalidArg) || !strings.Contains(err.Error(), "not that of a handler") {
		t.Errorf("metadata outside a handler: %v", err)
	}
}

// TestLateMetadata sets metadata after the response is made.
func TestLateMetadata(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	contexts := make(chan context.Context, 1)
	must(t, add.Handle(server, func(ctx context.Context, in addIn) (addOut, error) {
		contexts <- ctx
		return addOut{}, nil
	}))
	_, err := add.Call(patient(t), ep, addIn{})
	must(t, err)
	if err := native.SetMetadata(<-contexts, "k", "v"); !errors.Is(err, codes.InvalidArg) || !strings.Contains(err.Error(), "made already") {
		t.Error(err)
	}
}

// TestTrace carries a trace context through three services, each in an engine of its own; the second one begins a span.
// parity: A04
func TestTrace(t *testing.T) {
	want, err := native.ParseTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
	must(t, err)
	traces := make(chan native.Trace, 4)
	hop := native.New[struct{}, struct{}]("hop")
	var next *cinnabar.Endpoint // of the last service there is none
	for i := range 3 {
		server, client := listen(t, tcp, nil), open(t, tcp, nil)
		to := next
		must(t, hop.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
			traces <- native.TraceFrom(ctx)
			if to == nil {
				return struct{}{}, nil
			}
			if i == 1 {
				ctx = native.WithTrace(ctx, native.TraceFrom(ctx).Child())
			}
			return hop.Call(ctx, to, struct{}{})
		}))
		next = find(t, client, server)
	}
	_, err = hop.Call(native.WithTrace(patient(t), want), next, struct{}{})
	must(t, err)
	for i := range 3 {
		got := soon(t, "trace", traces)
		if i == 2 {
			if got.SpanID == want.SpanID {
				t.Error("the new span is not passed on")
			}
			got.SpanID = want.SpanID
		}
		if got != want {
			t.Errorf("service %d has trace %v, want %v", i, got, want)
		}
	}
	_, err = hop.Call(patient(t), next, struct{}{})
	must(t, err)
	if got := soon(t, "trace", traces); !got.IsZero() {
		t.Errorf("trace %v of a call without one", got)
	}
	bad := want
	bad.State = "A=1"
	_, err = hop.Call(native.WithTrace(patient(t), bad), next, struct{}{})
	wantError(t, err, codes.InvalidArg, "tracestate member")
}

// TestFlavors calls a native RPC where one of Margo or Mercury is served, and the reverse. Both may be served by one name.
// parity: A04
func TestFlavors(t *testing.T) {
	plain := cinnabar.NewRPC[addIn, addOut]("add")
	mercury := cinnabar.NewRPC[addIn, addOut]("add", cinnabar.WithFlavor(cinnabar.Mercury))
	onNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		must(t, plain.Handle(server, handleAdd))
		_, err := add.Call(patient(t), ep, addIn{})
		wantError(t, err, codes.ProtoNoSupport, "an RPC of package native is called with that package")
		must(t, add.Handle(server, handleAdd))
		_, err = plain.Call(patient(t), ep, addIn{1, 2})
		must(t, err)
		_, err = add.Call(patient(t), ep, addIn{1, 2})
		must(t, err)
		must(t, plain.Remove(server))
		_, err = plain.Call(patient(t), ep, addIn{1, 2})
		wantError(t, err, codes.ProtoNoSupport, "an RPC of package native is called with that package")
		_, err = mercury.Call(patient(t), ep, addIn{1, 2})
		wantError(t, err, codes.ProtoNoSupport, "an RPC of package native is called with that package")
		long := cinnabar.NewRPC[blob, struct{}]("add")
		_, err = long.Call(patient(t), ep, blob{make([]byte, 10000)})
		wantError(t, err, codes.ProtoNoSupport, "an RPC of package native is called with that package")
	})
}

// TestHooks checks that interceptors and Monitor see native calls, their contexts and their errors.
func TestHooks(t *testing.T) {
	type seen struct {
		Server   bool
		RPC      string
		Code     codes.Code
		Metadata native.Metadata
		Text     string
	}
	var mu sync.Mutex
	var calls []seen
	hook := func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
		if !c.Server {
			ctx = native.WithMetadata(ctx, native.Metadata{"by": "hook"})
		}
		err := next(ctx)
		s := seen{Server: c.Server, RPC: c.RPC, Code: codes.Of(err), Metadata: native.MetadataFrom(ctx)}
		if e, ok := errors.AsType[*native.Error](err); ok {
			s.Text = e.Text
		}
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, s)
		return err
	}
	cfg := &cinnabar.Config{Interceptors: []cinnabar.Interceptor{hook}}
	server, ep := pair(t, tcp, cfg, cfg)
	must(t, fail.Handle(server, func(context.Context, struct{}) (struct{}, error) {
		return struct{}{}, fmt.Errorf("no room: %w", codes.NoMem)
	}))
	_, err := fail.Call(patient(t), ep, struct{}{})
	wantError(t, err, codes.NoMem, "no room")
	if diff := cmp.Diff([]seen{
		{true, "fail", codes.NoMem, native.Metadata{"by": "hook"}, ""},
		{false, "fail", codes.NoMem, nil, "no room: HG_NOMEM"},
	}, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestRefusingInterceptor checks that the error of an interceptor at the server travels like a handler's.
func TestRefusingInterceptor(t *testing.T) {
	refuse := func(ctx context.Context, _ *cinnabar.CallInfo, _ func(context.Context) error) error {
		check(t, native.SetMetadata(ctx, "by", "interceptor"))
		return fmt.Errorf("%w: not for you: %w", codes.Permission, placeError{3})
	}
	server, ep := pair(t, tcp, &cinnabar.Config{Interceptors: []cinnabar.Interceptor{refuse}}, nil)
	must(t, fail.Handle(server, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }))
	var m native.Metadata
	_, err := fail.Call(patient(t), ep, struct{}{}, native.ReceiveMetadata(&m))
	wantError(t, err, codes.Permission, "not for you")
	if m["by"] != "interceptor" {
		t.Errorf("metadata %v", m)
	}
	if p, ok := errors.AsType[placeError](err); !ok || p.Line != 3 {
		t.Errorf("detail %v", p)
	}
}

// TestInterceptorLeavesHandler has an interceptor return an error while the handler returns, which it leaves running. The caller receives the
// error.
func TestInterceptorLeavesHandler(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	leave := func(ctx context.Context, _ *cinnabar.CallInfo, next func(context.Context) error) error {
		go func() { ended <- next(ctx) }()
		<-began
		return fmt.Errorf("%w: too slow", codes.Busy)
	}
	server, ep := pair(t, tcp, &cinnabar.Config{Interceptors: []cinnabar.Interceptor{leave}}, nil)
	must(t, add.Handle(server, func(context.Context, addIn) (addOut, error) {
		began <- struct{}{}
		return addOut{1}, nil
	}))
	for range 50 {
		_, err := add.Call(patient(t), ep, addIn{})
		wantError(t, err, codes.Busy, "too slow")
		must(t, soon(t, "end of the handler", ended))
	}
}

// TestTypesDiffer checks that a caller whose arguments are shorter than the server's receives the text of the failure.
func TestTypesDiffer(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	must(t, add.Handle(server, handleAdd))
	shorter := native.New[struct{ X int32 }, addOut]("add")
	_, err := shorter.Call(patient(t), ep, struct{ X int32 }{1})
	wantError(t, err, codes.Overflow, "addIn", "Y")
}

// TestNew checks the panics of New.
func TestNew(t *testing.T) {
	for _, c := range []struct {
		want string
		new  func()
	}{
		{`RPC "x": its arguments cannot be encoded`, func() { native.New[map[string]int, struct{}]("x") }},
		{`RPC "x": its results cannot be encoded`, func() { native.New[struct{}, chan int]("x") }},
		{`RPC "x": "A B" is no name of a detail`, func() { native.New[struct{}, struct{}]("x", native.WithDetail[placeError]("A B")) }},
		{`two details are named "a"`, func() {
			native.New[struct{}, struct{}]("x", native.WithDetail[placeError]("a"), native.WithDetail[*quotaError]("a"))
		}},
		{`it must be no interface`, func() { native.New[struct{}, struct{}]("x", native.WithDetail[error]("a")) }},
		{`gzip: invalid compression level`, func() { native.Gzip(99) }},
	} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, c.want) {
					t.Errorf("panic %q, want %q", text, c.want)
				}
			}()
			c.new()
		}()
	}
}
