package native_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// chat is a stream of numbers in both directions.
var chat = native.NewStream[int64, int64]("chat", native.WithDetail[*quotaError]("quota"))

// upload is a stream of large elements to the server, which answers with their lengths.
var upload = native.NewStream[blob, blob]("upload")

// echoStream returns each element.
func echoStream[T any](ctx context.Context, s *native.ServerStream[T, T]) error {
	for v, err := range s.Receive(ctx) {
		if err != nil {
			return err
		}
		if err := s.Send(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// numbers sends n numbers and closes the direction.
func numbers(ctx context.Context, s *native.ClientStream[int64, int64], n int64) error {
	for i := range n {
		if err := s.Send(ctx, i); err != nil {
			return fmt.Errorf("send %d: %w", i, err)
		}
	}
	return s.CloseSend()
}

// wantNumbers receives the numbers below n, and the end.
func wantNumbers(ctx context.Context, s *native.ClientStream[int64, int64], n int64) error {
	next := int64(0)
	for v, err := range s.Receive(ctx) {
		if err != nil {
			return fmt.Errorf("after %d: %w", next, err)
		}
		if v != next {
			return fmt.Errorf("received %d, want %d", v, next)
		}
		next++
	}
	if next != n {
		return fmt.Errorf("%d numbers, want %d", next, n)
	}
	return nil
}

// streamCase is one stream of the conformance table: the handler, and the client.
type streamCase struct {
	name   string
	config *cinnabar.Config
	late   bool // on a slow machine the time may be over before the handler is called
	serve  func(ctx context.Context, s *native.ServerStream[int64, int64]) error
	client func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint)
}

func openChat(t *testing.T, ctx context.Context, to cinnabar.Target) *native.ClientStream[int64, int64] { //nolint:revive // the test comes first
	t.Helper()
	s, err := chat.Open(ctx, to)
	must(t, err)
	return s
}

var errPlanned = errors.New("planned")

// streamCases is modelled on the conformance tests of gRPC.
var streamCases = []streamCase{
	{name: "both ways", serve: echoStream[int64], client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		done := make(chan error)
		go func() { done <- numbers(ctx, s, 10000) }()
		must(t, wantNumbers(ctx, s, 10000))
		must(t, <-done)
		must(t, s.Wait(ctx))
	}},
	{name: "ping pong", serve: echoStream[int64], client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		must(t, s.Send(ctx, 0))
		for v, err := range s.Receive(ctx) {
			must(t, err)
			if v == 100 {
				must(t, s.CloseSend())
			} else if v < 100 {
				must(t, s.Send(ctx, v+1))
			}
		}
		must(t, s.Wait(ctx))
	}},
	{name: "empty", serve: func(context.Context, *native.ServerStream[int64, int64]) error { return nil }, client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		must(t, wantNumbers(ctx, s, 0))
		if err := s.Send(ctx, 1); !errors.Is(err, io.EOF) {
			t.Errorf("Send after the end: %v", err)
		}
	}},
	{name: "client closes at once", serve: echoStream[int64], client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		must(t, s.CloseSend())
		if err := s.CloseSend(); !errors.Is(err, codes.InvalidArg) {
			t.Errorf("the second CloseSend: %v", err)
		}
		if err := s.Send(ctx, 1); !errors.Is(err, codes.InvalidArg) {
			t.Errorf("Send after CloseSend: %v", err)
		}
		must(t, wantNumbers(ctx, s, 0))
	}},
	{name: "server sends after the half close", serve: func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
		for _, err := range s.Receive(ctx) {
			if err != nil {
				return err
			}
		}
		for i := range int64(3000) {
			if err := s.Send(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}, client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		must(t, numbers(ctx, s, 3000))
		must(t, wantNumbers(ctx, s, 3000))
	}},
	{name: "server ends before the client", serve: func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
		for i := range int64(2) {
			if err := s.Send(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}, client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		must(t, wantNumbers(ctx, s, 2))
		err := numbers(ctx, s, 1<<20)
		if !errors.Is(err, io.EOF) {
			t.Errorf("Send: %v", err)
		}
	}},
	{name: "error with details and metadata", serve: func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
		if err := s.Send(ctx, 0); err != nil {
			return err
		}
		if err := native.SetMetadata(ctx, "cost", native.MetadataFrom(ctx)["tenant"]); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", codes.NoMem, &quotaError{Limit: 7})
	}, client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, native.WithMetadata(ctx, native.Metadata{"tenant": "blue"}), ep)
		err := wantNumbers(ctx, s, 1)
		wantError(t, err, codes.NoMem)
		if e, ok := errors.AsType[*quotaError](err); !ok || e.Limit != 7 || !strings.HasPrefix(err.Error(), "after 1: ") {
			t.Errorf("error %v", err)
		}
		if m := s.Metadata(); m["cost"] != "blue" {
			t.Errorf("metadata %v", m)
		}
		wantError(t, s.Wait(ctx), codes.NoMem)
		wantError(t, s.Send(ctx, 1), codes.NoMem)
	}},
	{name: "panic", serve: func(context.Context, *native.ServerStream[int64, int64]) error { panic("planned") }, client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		wantError(t, wantNumbers(ctx, s, 0), codes.OtherError)
	}},
	{name: "client cancels", serve: echoStream[int64], client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		must(t, s.Send(ctx, 0))
		for v, err := range s.Receive(ctx) {
			if v != 0 || err != nil {
				wantError(t, err, codes.Canceled, "planned")
				break
			}
			s.Cancel(errPlanned)
		}
		wantError(t, s.Send(ctx, 1), codes.Canceled, "planned")
		wantError(t, s.Wait(ctx), codes.Canceled, "planned")
	}},
	{name: "deadline", late: true, serve: func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
		d, ok := ctx.Deadline()
		if left := time.Until(d); !ok || left > 50*time.Millisecond {
			return fmt.Errorf("%v are left", left)
		}
		<-ctx.Done()
		return ctx.Err()
	}, client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		s := openChat(t, short, ep)
		wantError(t, wantNumbers(ctx, s, 0), codes.Timeout)
	}},
	{name: "server's limit of time", late: true, config: &cinnabar.Config{MaxHandlerTime: 20 * time.Millisecond}, serve: echoStream[int64], client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		wantError(t, wantNumbers(ctx, s, 0), codes.Timeout)
	}},
	{name: "a context of one operation", serve: echoStream[int64], client: func(t *testing.T, ctx context.Context, ep *cinnabar.Endpoint) {
		s := openChat(t, ctx, ep)
		short, cancel := context.WithCancel(ctx)
		cancel()
		if err := wantNumbers(short, s, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("Receive with a context that has ended: %v", err)
		}
		must(t, s.Send(short, 0)) // it need not wait
		for range 10 {            // each leaves an element to the next one
			must(t, s.Send(ctx, 1))
			for _, err := range s.Receive(ctx) {
				must(t, err)
				break
			}
		}
		must(t, s.CloseSend())
		n := 0
		for _, err := range s.Receive(ctx) {
			must(t, err)
			n++
		}
		if n != 1 {
			t.Errorf("%d elements are left, want 1", n)
		}
	}},
}

// TestStreamConformance runs the table over each network, and checks that nothing is left at the server.
// parity: A05
func TestStreamConformance(t *testing.T) {
	onAllNetworks(t, func(t *testing.T, network string) {
		for _, c := range streamCases {
			t.Run(c.name, func(t *testing.T) {
				server, ep := pair(t, network, c.config, nil)
				ended := make(chan error, 1)
				must(t, chat.Handle(server, func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
					defer func() { ended <- ctx.Err() }()
					return c.serve(ctx, s)
				}))
				ctx, cancel := context.WithCancel(patient(t))
				defer cancel()
				c.client(t, ctx, ep)
				if !c.late {
					_ = soon(t, "end of the handler", ended)
				}
				waitUntil(t, "no request is left", func() bool { return server.Stats().RequestsActive == 0 })
			})
		}
	})
}

// TestStreamElements sends elements of many lengths both ways.
// parity: A05
func TestStreamElements(t *testing.T) {
	sizes := []int{0, 1, 100, 3000, 4096, 5000, 0, 1 << 16, 1 << 18, 1<<18 - 12, 7, 1 << 20, 0, 16 << 20, 1}
	whole := bytes.Repeat([]byte("cinnabar"), 2<<20)
	onAllNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		must(t, upload.Handle(server, echoStream[blob]))
		ctx := patient(t)
		s, err := upload.Open(ctx, ep)
		must(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, n := range sizes {
				check(t, s.Send(ctx, blob{whole[:n]}))
			}
			check(t, s.CloseSend())
		})
		var got []int
		for v, err := range s.Receive(ctx) {
			must(t, err)
			if !bytes.Equal(v.Data, whole[:len(v.Data)]) {
				t.Errorf("element %d has other bytes", len(got))
			}
			got = append(got, len(v.Data))
		}
		wg.Wait()
		if fmt.Sprint(got) != fmt.Sprint(sizes) {
			t.Errorf("lengths %v, want %v", got, sizes)
		}
	})
}

// TestStreamHoldsBack has neither side of a stream received. Its senders wait, at both sides; other streams and calls of the same connection go
// on. Then the elements arrive, all and in order.
// parity: A05
func TestStreamHoldsBack(t *testing.T) {
	onAllNetworks(t, func(t *testing.T, network string) {
		server, ep := pair(t, network, nil, nil)
		release, ctx := make(chan struct{}), patient(t)
		must(t, add.Handle(server, handleAdd))
		must(t, chat.Handle(server, func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
			if native.MetadataFrom(ctx)["slow"] != "" {
				<-release
			}
			return echoStream(ctx, s)
		}))
		slow := openChat(t, native.WithMetadata(ctx, native.Metadata{"slow": "yes"}), ep)
		const n = 20000
		sent := make(chan error, 1)
		go func() { sent <- numbers(ctx, slow, n) }()
		soonErr := func(step string, f func(ctx context.Context) error) {
			t.Helper()
			if err := f(ctx); err != nil {
				t.Errorf("%s: %v", step, err)
			}
		}
		for range 3 {
			soonErr("a call", func(ctx context.Context) error { _, err := add.Call(ctx, ep, addIn{1, 2}); return err })
			soonErr("a stream", func(ctx context.Context) error {
				s := openChat(t, ctx, ep)
				done := make(chan error)
				go func() { done <- numbers(ctx, s, 5000) }()
				return errors.Join(wantNumbers(ctx, s, 5000), <-done)
			})
		}
		brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := slow.Wait(brief); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the stream ends with %v", err)
		}
		select {
		case err := <-sent:
			t.Errorf("the sender is not held back: %v", err)
		default:
		}
		close(release)
		must(t, wantNumbers(ctx, slow, n))
		must(t, soon(t, "sender", sent))
	})
}

// TestStreamPeers ends the process of either side in the midst of a stream. The other side's stream ends, and nothing of it is left.
// parity: A05
func TestStreamPeers(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		for _, side := range []string{"server", "client"} {
			t.Run(side, func(t *testing.T) {
				server, client := listen(t, network, nil), open(t, network, nil)
				began, ended := make(chan struct{}), make(chan error, 1)
				must(t, chat.Handle(server, func(ctx context.Context, s *native.ServerStream[int64, int64]) error {
					close(began)
					err := echoStream(ctx, s)
					ended <- err
					return err
				}))
				ctx := patient(t)
				s := openChat(t, ctx, find(t, client, server))
				must(t, s.Send(ctx, 1))
				soon(t, "handler", began)
				result := make(chan error, 1)
				go func() {
					var last error
					for _, err := range s.Receive(ctx) {
						last = err
					}
					result <- last
				}()
				if side == "server" {
					must(t, server.Close())
				} else {
					must(t, client.Close())
				}
				if err := soon(t, "end of the client's side", result); err == nil {
					t.Error("the client's side ends without an error")
				}
				if err := soon(t, "end of the handler", ended); err == nil {
					t.Error("the handler receives no error")
				}
				if err := s.Send(ctx, 1); err == nil {
					t.Error("Send succeeds after the end")
				}
				waitUntil(t, "no request is left", func() bool { return server.Stats().RequestsActive == 0 })
			})
		}
	})
}

// TestStreamMismatch calls what is not a stream as one, and the reverse.
// parity: A05
func TestStreamMismatch(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	unary, plain := native.New[int64, int64]("chat"), cinnabar.NewRPC[int64, int64]("plain")
	must(t, plain.Handle(server, func(_ context.Context, n int64) (int64, error) { return n, nil }))
	ctx := patient(t)
	refused := func(s *native.Stream[int64, int64], code codes.Code, texts ...string) {
		t.Helper()
		c, err := s.Open(ctx, ep)
		if err != nil { // the refusal has come already
			wantError(t, err, code, texts...)
			return
		}
		if err := c.Send(ctx, 1); err != nil {
			wantError(t, err, code, texts...)
		}
		for _, err := range c.Receive(ctx) {
			wantError(t, err, code, texts...)
		}
		wantError(t, c.Wait(ctx), code, texts...)
	}
	refused(chat, codes.NoEntry, `no native RPC "chat"`, "programs in C")
	refused(native.NewStream[int64, int64]("plain"), codes.ProtoNoSupport, "in another flavour")
	must(t, unary.Handle(server, func(_ context.Context, n int64) (int64, error) { return n, nil }))
	refused(chat, codes.ProtoNoSupport, `the caller opens a stream "chat", which is an RPC of native.New here`)
	if err := chat.Handle(server, echoStream[int64]); !errors.Is(err, codes.Exist) {
		t.Errorf("both are registered: %v", err)
	}
	must(t, unary.Remove(server))
	must(t, chat.Handle(server, echoStream[int64]))
	_, err := unary.Call(ctx, ep, 1)
	wantError(t, err, codes.ProtoNoSupport, `the caller makes a call of "chat", which is a stream of native.NewStream here`)
	must(t, chat.Remove(server))
	must(t, chat.Handle(server, nil))
	refused(chat, codes.NoEntry)
}

// TestStreamLimits opens more streams than one host may have. Those beyond are refused, and there is room again after the end of one.
// parity: A05
func TestStreamLimits(t *testing.T) {
	server, ep := pair(t, tcp, &cinnabar.Config{MaxHandlers: 16}, nil)
	must(t, chat.Handle(server, echoStream[int64]))
	ctx := patient(t)
	echo := func(s *native.ClientStream[int64, int64]) error {
		if err := s.Send(ctx, 1); err != nil {
			return err
		}
		for _, err := range s.Receive(ctx) {
			return err
		}
		return io.ErrUnexpectedEOF
	}
	var open []*native.ClientStream[int64, int64]
	for range 4 {
		s := openChat(t, ctx, ep)
		must(t, echo(s))
		open = append(open, s)
	}
	wantError(t, openChat(t, ctx, ep).Wait(ctx), codes.Again, "4 streams of this host", "a quarter of Config.MaxHandlers")
	open[0].Cancel(nil)
	waitUntil(t, "a stream has ended", func() bool { return echo(openChat(t, ctx, ep)) == nil })
	must(t, echo(open[1]))
	for _, s := range open {
		s.Cancel(nil)
	}
}

// TestStreamSelf streams within one process, through interceptors, to a provider, and from a handler.
func TestStreamSelf(t *testing.T) {
	calls := 0
	var mu sync.Mutex
	count := func(ctx context.Context, _ *cinnabar.CallInfo, next func(context.Context) error) error {
		mu.Lock()
		calls++
		mu.Unlock()
		return next(ctx)
	}
	server := listen(t, tcp, &cinnabar.Config{Interceptors: []cinnabar.Interceptor{count}})
	provider, err := server.NewProvider(7, "streams")
	must(t, err)
	must(t, chat.Handle(provider, echoStream[int64]))
	relay := native.New[int64, int64]("relay")
	must(t, relay.Handle(server, func(ctx context.Context, n int64) (sum int64, err error) {
		s, err := chat.Open(ctx, server.Self().Provider(7))
		if err != nil {
			return 0, err
		}
		go func() { check(t, numbers(ctx, s, n)) }()
		for v, err := range s.Receive(ctx) {
			if err != nil {
				return 0, err
			}
			sum += v
		}
		return sum, s.Wait(ctx)
	}))
	sum, err := relay.Call(patient(t), server.Self(), 2000)
	if err != nil || sum != 1999*1000 {
		t.Errorf("sum %d, %v", sum, err)
	}
	if mu.Lock(); calls == 0 {
		t.Error("no interceptor is called")
	}
	mu.Unlock()
}

// TestStreamLarge sends a million elements, and one of 1 GiB each way, over each network.
// parity(slow): A05
func TestStreamLarge(t *testing.T) {
	if os.Getenv("CINNABAR_LARGE") == "" {
		t.Skip("set CINNABAR_LARGE=1 for a million elements, and elements of 1 GiB")
	}
	onAllNetworks(t, func(t *testing.T, network string) {
		cfg := &cinnabar.Config{MaxMemory: 12 << 30, MaxOverflow: 3 << 29}
		server, ep := pair(t, network, cfg, cfg)
		must(t, chat.Handle(server, echoStream[int64]))
		must(t, upload.Handle(server, echoStream[blob]))
		ctx, cancel := context.WithTimeout(t.Context(), 10*testLimit)
		defer cancel()
		s := openChat(t, ctx, ep)
		done := make(chan error)
		go func() { done <- numbers(ctx, s, 1e6) }()
		must(t, wantNumbers(ctx, s, 1e6))
		must(t, <-done)
		big, err := upload.Open(ctx, ep)
		must(t, err)
		data := bytes.Repeat([]byte("cinnabar"), 1<<27)
		must(t, big.Send(ctx, blob{data}))
		must(t, big.CloseSend())
		for v, err := range big.Receive(ctx) {
			if err != nil || !bytes.Equal(v.Data, data) {
				t.Errorf("%d bytes, %v", len(v.Data), err)
			}
		}
		must(t, big.Wait(ctx))
	})
}
