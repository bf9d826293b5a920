package hg

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// parity: H55
func TestUnknownRPC(t *testing.T) {
	for _, mode := range []wire.ChecksumMode{wire.NoChecksums, wire.Checksums} {
		n := natest.New(natest.Config{})
		server, client := open(t, n, Config{Checksums: mode}), open(t, n, Config{Checksums: mode})
		_, err := call(t, client, server.ep.Addr(), 99, nil)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != codes.NoEntry || !e.Remote || e.Addr != server.ep.Addr().String() {
			t.Errorf("mode %d: %v, want NoEntry from the peer", mode, err)
		}
		k := client.NewCall()
		k.Start(server.ep.Addr(), 99, CallOptions{OneWay: true}, nil)
		if err := k.Wait(t.Context()); err != nil {
			t.Errorf("mode %d, one-way: %v", mode, err)
		}
		k.Free()
	}
}

// TestOverflow sends payloads that do not fit into messages and counts what is on the network for them.
// parity: H51 D26
func TestOverflow(t *testing.T) {
	large := pattern(1 << 20)
	for _, mode := range []wire.ChecksumMode{wire.NoChecksums, wire.Checksums, wire.Detect} {
		n := natest.New(natest.Config{Seed: uint64(mode)})
		arrived := make(chan []byte, 1)
		server := open(t, n, Config{Checksums: mode, Dispatch: handler(func(r *Request) {
			switch {
			case r.OneWay():
				arrived <- bytes.Clone(r.Input())
			case r.ID() == 1: // swallow
				_ = r.Respond(context.Background(), nil)
			case r.ID() == 2: // produce
				if err := r.Respond(context.Background(), large); err != nil {
					t.Error(err)
				}
			default:
				echo(r)
			}
		})})
		client := open(t, n, Config{Checksums: mode})
		if mode == wire.Detect {
			if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, tc := range []struct {
			name           string
			id             ID
			in, out        int
			oneWay         bool
			serverGets     uint64
			clientGets     uint64
			serverMessages uint64 // responses and acks
			clientAcks     uint64
		}{
			{"neither", 3, 10, 10, false, 0, 0, 1, 0},
			{"request", 1, 1 << 20, 0, false, 1, 0, 1, 0},
			{"response", 2, 0, 1 << 20, false, 0, 1, 1, 1},
			{"both", 3, 1 << 20, 1 << 20, false, 1, 1, 1, 1},
			{"one-way", 4, 1 << 20, 0, true, 1, 0, 1, 0},
		} {
			s0, c0 := server.ep.Counts(), client.ep.Counts()
			k := client.NewCall()
			k.Start(server.ep.Addr(), tc.id, CallOptions{OneWay: tc.oneWay}, append(k.Input(), large[:tc.in]...))
			if err := k.Wait(t.Context()); err != nil || !bytes.Equal(k.Output(), large[:tc.out]) {
				t.Errorf("mode %d %s: %d bytes, %v", mode, tc.name, len(k.Output()), err)
			}
			k.Free()
			if tc.oneWay && !bytes.Equal(<-arrived, large) {
				t.Errorf("mode %d %s: something else arrives", mode, tc.name)
			}
			s1, c1 := server.ep.Counts(), client.ep.Counts()
			if s1.Gets-s0.Gets != tc.serverGets || c1.Gets-c0.Gets != tc.clientGets || s1.Responses-s0.Responses != tc.serverMessages || c1.Responses-c0.Responses != tc.clientAcks {
				t.Errorf("mode %d %s: server %+v to %+v, client %+v to %+v", mode, tc.name, s0, s1, c0, c1)
			}
		}
	}
}

// parity: H23
func TestNoOverflow(t *testing.T) {
	n := natest.New(natest.Config{})
	errs := make(chan error, 1)
	server := open(t, n, Config{NoOverflow: true, Dispatch: handler(func(r *Request) {
		errs <- r.Respond(context.Background(), make([]byte, 5000))
	})})
	client := open(t, n, Config{NoOverflow: true})
	if _, err := call(t, client, server.ep.Addr(), 1, make([]byte, 5000)); codeFrom(t, err) != codes.Overflow {
		t.Errorf("request: %v", err)
	}
	_, err := call(t, client, server.ep.Addr(), 1, nil)
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != codes.Overflow || !e.Remote {
		t.Errorf("response, caller: %v", err)
	}
	if err := <-errs; codeFrom(t, err) != codes.Overflow {
		t.Errorf("response, handler: %v", err)
	}
}

// TestManyCalls has 256 calls in flight from 16 goroutines; each answer must be that to its question.
// parity: H57
func TestManyCalls(t *testing.T) {
	n := natest.New(natest.Config{Seed: 7})
	server, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			calls := make([]*Call, 16)
			for round := range 10 {
				for i := range calls {
					k := client.NewCall()
					in := binary.LittleEndian.AppendUint64(k.Input(), uint64(g<<32|round<<16|i))
					k.Start(server.ep.Addr(), 1, CallOptions{}, append(in, make([]byte, i*400)...))
					calls[i] = k
				}
				for i, k := range calls {
					if err := k.Wait(t.Context()); err != nil {
						t.Error(err)
					} else if got := binary.LittleEndian.Uint64(k.Output()); got != uint64(g<<32|round<<16|i) {
						t.Errorf("answer %#x to question %#x", got, g<<32|round<<16|i)
					}
					k.Free()
				}
			}
		})
	}
	wg.Wait()
}

// TestReuse makes 10,000 calls with one Call over three targets.
// parity: H44 G37
func TestReuse(t *testing.T) {
	n := natest.New(natest.Config{Direct: true})
	client := open(t, n, Config{})
	var targets []*node
	for range 3 {
		targets = append(targets, open(t, n, Config{Dispatch: inline{}}))
	}
	for i := range 10000 {
		k := client.NewCall()
		k.Start(targets[i%3].ep.Addr(), ID(i), CallOptions{}, append(k.Input(), byte(i)))
		if err := k.Wait(t.Context()); err != nil || !bytes.Equal(k.Output(), []byte{byte(i)}) {
			t.Fatalf("call %d: % x, %v", i, k.Output(), err)
		}
		k.Free()
	}
}

// TestNested has A call B, B call C and C call A, 64 at once.
func TestNested(t *testing.T) {
	n := natest.New(natest.Config{Seed: 3})
	var a, b, c *node
	forward := func(from, to **node) handler {
		return func(r *Request) {
			k := (*from).NewCall()
			defer k.Free()
			k.Start((*to).ep.Addr(), r.ID(), CallOptions{}, append(append(k.Input(), r.Input()...), '+'))
			if err := k.Wait(context.Background()); err != nil {
				_ = r.Fail(codes.OtherError)
				return
			}
			_ = r.Respond(context.Background(), append(r.Output(), k.Output()...))
		}
	}
	a = open(t, n, Config{Dispatch: handler(echo)})
	b = open(t, n, Config{Dispatch: forward(&b, &c)})
	c = open(t, n, Config{Dispatch: forward(&c, &a)})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if out, err := call(t, a, b.ep.Addr(), 5, []byte("x")); err != nil || string(out) != "x++" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	wg.Wait()
}

// TestRespondDoesNotWait: responses that the network does not take yet neither block nor lose their memory.
func TestRespondDoesNotWait(t *testing.T) {
	n := natest.New(natest.Config{})
	responded := make(chan error, 10)
	server := open(t, n, Config{Dispatch: handler(func(r *Request) { responded <- r.Respond(context.Background(), append(r.Output(), r.Input()...)) })})
	client := open(t, n, Config{})
	n.Hold(server.ep)
	calls := make([]*Call, 10)
	for i := range calls {
		calls[i] = client.NewCall()
		calls[i].Start(server.ep.Addr(), 1, CallOptions{}, append(calls[i].Input(), byte(i)))
	}
	for range calls {
		if err := <-responded; err != nil {
			t.Error(err)
		}
	}
	if got := server.Unsent(); got != 10 {
		t.Errorf("%d responses are unsent, want 10", got)
	}
	n.Release(server.ep)
	for i, k := range calls {
		if err := k.Wait(t.Context()); err != nil || !bytes.Equal(k.Output(), []byte{byte(i)}) {
			t.Errorf("call %d: % x, %v", i, k.Output(), err)
		}
		k.Free()
	}
}

// TestDeadline: a call to a peer that never answers ends with its context, and its memory is free at once.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{})
		stuck := make(chan struct{})
		server := open(t, n, Config{Dispatch: handler(func(r *Request) {
			<-stuck
			echo(r)
		})})
		client := open(t, n, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		k := client.NewCall()
		start := time.Now()
		k.Start(server.ep.Addr(), 1, CallOptions{}, nil)
		err := k.Wait(ctx)
		if codeFrom(t, err) != codes.Timeout || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		k.Free()

		cause := errors.New("changed my mind")
		ctx2, cancel2 := context.WithCancelCause(t.Context())
		k = client.NewCall()
		k.Start(server.ep.Addr(), 1, CallOptions{}, nil)
		time.AfterFunc(time.Second, func() { cancel2(cause) })
		if err := k.Wait(ctx2); codeFrom(t, err) != codes.Canceled || !errors.Is(err, cause) {
			t.Error(err)
		}
		k.Free()
		close(stuck) // the late answers meet nobody
		if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
			t.Errorf("call after late answers: %v", err)
		}
	})
}

// TestCanceledContextSucceeds: a call that needs no waiting does not care for its context.
func TestCanceledContextSucceeds(t *testing.T) {
	client, server := newPair(t, wire.NoChecksums)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k := client.NewCall()
	k.Start(server.ep.Addr(), 1, CallOptions{}, nil)
	if err := k.Wait(ctx); err != nil {
		t.Error(err)
	}
	k.Free()
}

// TestMissingAcks: an old release does not acknowledge overflow of one-way calls; a client may vanish from its call.
// parity: H51 D26
func TestMissingAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A peer that takes requests and does nothing with them.
		silent := natest.New(natest.Config{})
		deaf := silent.Open(mute{})
		client := open(t, silent, Config{})
		k := client.NewCall()
		start := time.Now()
		k.Start(client.at(t, deaf), 1, CallOptions{OneWay: true}, make([]byte, 3<<20))
		if err := k.Wait(t.Context()); err != nil {
			t.Errorf("one-way: %v", err)
		}
		k.Free()
		if got, want := time.Since(start), oneWayAckTime+3*time.Second; got != want {
			t.Errorf("one-way took %v, want %v", got, want)
		}
		if got := client.ep.Registered(); client.Stats().AcksMissing != 1 || got != 1 {
			t.Errorf("acks missing %d, payloads lent %d: the peer may be late", client.Stats().AcksMissing, got)
		}
		elapse(patience(ackTime, 3<<20))
		synctest.Wait()
		if got := client.ep.Registered(); got != 0 {
			t.Errorf("%d payloads are lent for ever", got)
		}

		// A caller that does not pull the response.
		ended := make(chan error, 1)
		n := natest.New(natest.Config{})
		server := open(t, n, Config{Dispatch: handler(func(r *Request) { ended <- r.Respond(context.Background(), make([]byte, 1<<20)) })})
		caller := openRaw(n)
		head := make([]byte, wire.FormShort.Size())
		wire.PutRequest(head, wire.Request{ID: 1})
		start = time.Now()
		caller.request(server.ep.Addr(), head)
		err := <-ended
		if got, want := time.Since(start), ackTime+time.Second; codeFrom(t, err) != codes.Timeout || got != want {
			t.Errorf("respond: %v after %v, want Timeout after %v", err, got, want)
		}
	})
}

// mute takes requests and does not answer.
type mute struct{}

func (mute) Request(*na.Message) na.Task { return nil }

// TestCloseEndsCalls closes either end with calls in flight.
func TestCloseEndsCalls(t *testing.T) {
	for _, which := range []string{"client", "server"} {
		synctest.Test(t, func(t *testing.T) {
			n := natest.New(natest.Config{})
			stuck := make(chan struct{})
			server := open(t, n, Config{Dispatch: handler(func(r *Request) {
				<-stuck
				echo(r)
			})})
			client := open(t, n, Config{})
			calls := make([]*Call, 20)
			for i := range calls {
				calls[i] = client.NewCall()
				calls[i].Start(server.ep.Addr(), 1, CallOptions{}, make([]byte, i*500))
			}
			synctest.Wait() // the requests are there
			closing, want := client, codes.Canceled
			if which == "server" {
				closing, want = server, codes.HostUnreach
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := closing.Close(ctx)
			if wantErr := which == "server"; (err != nil) != wantErr {
				t.Errorf("close of the %s with running handlers: %v", which, err)
			}
			for _, k := range calls {
				if err := k.Wait(t.Context()); codeFrom(t, err) != want {
					t.Errorf("close of the %s: %v, want %v", which, err, want)
				}
				k.Free()
			}
			k := client.NewCall()
			k.Start(server.ep.Addr(), 1, CallOptions{}, nil)
			if err := k.Wait(t.Context()); codeFrom(t, err) != want {
				t.Errorf("call after close of the %s: %v, want %v", which, err, want)
			}
			k.Free()
			close(stuck)
			synctest.Wait()
		})
	}
}

// TestAbandonedCall cancels a call whose operations the network does not give back for a while.
func TestAbandonedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := newScripted()
		c := New(Config{})
		c.Attach(ep)
		c.Serve()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		k := c.NewCall()
		k.Start(&ep.peer, 1, CallOptions{}, nil)
		start := time.Now()
		if err := k.Wait(ctx); codeFrom(t, err) != codes.Timeout || time.Since(start) != time.Second+settleTime {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		k.Free() // as one does after Wait
		if got := c.Stats().CallsActive; got != 1 {
			t.Errorf("%d calls are active, want the one that the network has", got)
		}
		ep.flying["receive"].Finish(0, &na.Error{Kind: na.Canceled})
		ep.flying["send"].Finish(0, &na.Error{Kind: na.Canceled})
		if got := c.Stats().CallsActive; got != 0 {
			t.Errorf("%d calls are active, want none", got)
		}
	})
}

// TestRequestsBeforeServe sends a request before the server's Class is attached. The request waits for Serve.
func TestRequestsBeforeServe(t *testing.T) {
	n := natest.New(natest.Config{})
	c := New(Config{})
	ep := n.Open(c)
	client := open(t, n, Config{})
	k := client.NewCall()
	k.Start(ep.Addr(), 1, CallOptions{}, nil)
	c.Attach(ep)
	c.Serve()
	if err := k.Wait(t.Context()); codeFrom(t, err) != codes.NoEntry {
		t.Error(err)
	}
	k.Free()
	closeEmpty(t, c, ep)
}

// counting counts completions.
type counting struct {
	done  chan struct{}
	calls atomic.Int32
}

func (c *counting) CallDone(k *Call) {
	c.calls.Add(1)
	k.Free()
	c.done <- struct{}{}
}

// TestNotify ends many calls in different ways at once; each is told once.
func TestNotify(t *testing.T) {
	n := natest.New(natest.Config{Seed: 11})
	server, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
	c := &counting{done: make(chan struct{}, 300)}
	var wg sync.WaitGroup
	for i := range 300 {
		k := client.NewCall()
		k.Notify(c)
		k.Start(server.ep.Addr(), 1, CallOptions{OneWay: i%3 == 0}, make([]byte, i*30))
	}
	wg.Wait()
	for range 300 {
		<-c.done
	}
	if got := c.calls.Load(); got != 300 {
		t.Errorf("%d completions", got)
	}
}

// TestCancelRaces cancels calls at random moments from another goroutine: each ends once, either way. On a machine that is
// so busy that nothing is pulled for seconds, the server may refuse one whose answer is long, see unackedTable.
// parity: H52 D04
func TestCancelRaces(t *testing.T) {
	n := natest.New(natest.Config{Seed: 5})
	server, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
	to := client.at(t, server.ep)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				k := client.NewCall()
				size := []int{10, 6000}[(i+g)%2]
				k.Start(to, 1, CallOptions{}, append(k.Input(), make([]byte, size)...))
				var canceler sync.WaitGroup
				canceler.Go(k.Cancel)
				if err := k.Wait(context.Background()); err != nil && codeFrom(t, err) != codes.Canceled && !(size > 1000 && codeFrom(t, err) == codes.Busy) {
					t.Error(err)
				} else if err == nil && len(k.Output()) != size {
					t.Errorf("%d bytes, want %d", len(k.Output()), size)
				}
				canceler.Wait()
				k.Free()
			}
		})
	}
	wg.Wait()
	if out, err := call(t, client, server.ep.Addr(), 1, []byte("still there")); err != nil || string(out) != "still there" {
		t.Errorf("%q, %v", out, err)
	}
}

func ExampleError() {
	err := error(&Error{Op: "call", Addr: "ofi+tcp://127.0.0.1:1234", Code: codes.NoEntry, Remote: true})
	fmt.Println(err)
	// Output: hg: call ofi+tcp://127.0.0.1:1234: peer answers HG_NOENTRY
}
