package hg

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/logtest"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// TestBuildsMeet has processes of all builds call each other: they understand each other or say why not, at both ends.
// parity: H63 D27
func TestBuildsMeet(t *testing.T) {
	modes := []string{wire.NoChecksums: "without", wire.Checksums: "with", wire.Detect: "detect"}
	for client := range modes {
		for server := range modes {
			t.Run(modes[client]+" calls "+modes[server], func(t *testing.T) {
				n := natest.New(natest.Config{})
				log := &logtest.Buffer{}
				audit.Reset()
				to := open(t, n, Config{Checksums: wire.ChecksumMode(server), Dispatch: handler(knownOnly), Logger: slog.New(slog.NewTextHandler(log, nil))})
				from := open(t, n, Config{Checksums: wire.ChecksumMode(client)})
				in := pattern(100)
				out, err := call(t, from, to.ep.Addr(), 1, in)
				if client == server || wire.ChecksumMode(client) == wire.Detect || wire.ChecksumMode(server) == wire.Detect {
					if err != nil || !bytes.Equal(out, in) {
						t.Errorf("%d bytes, %v", len(out), err)
					}
					return
				}
				if codeFrom(t, err) != codes.ProtoNoSupport {
					t.Errorf("caller is told %v", err)
				}
				if _, err := call(t, from, to.ep.Addr(), 1, in); codeFrom(t, err) != codes.ProtoNoSupport {
					t.Errorf("caller is told %v the second time", err)
				}
				if lines := strings.Count(log.String(), "checksums"); lines == 0 || !strings.Contains(log.String(), "malformed request") {
					t.Errorf("log of the server: %s", log)
				}
			})
		}
	}
}

// knownOnly is echo for one RPC.
func knownOnly(r *Request) {
	if r.ID() != 1 {
		_ = r.Fail(codes.NoEntry)
		return
	}
	echo(r)
}

// TestFlippedByte changes one byte of each message under way; the caller learns of it, or of the loss of its request.
// parity: H62 H107
func TestFlippedByte(t *testing.T) {
	for _, tc := range []struct {
		name   string
		kind   natest.Kind
		at     int
		remote bool // told by the peer
		lost   bool
	}{
		{"request, id", natest.KindRequest, 5, false, true},
		{"request, checksum of the header", natest.KindRequest, 13, false, true},
		{"request, payload", natest.KindRequest, 25, true, false},
		{"request, checksum of the payload", natest.KindRequest, 17, true, false},
		{"response, cookie", natest.KindResponse, 2, false, false},
		{"response, checksum of the header", natest.KindResponse, 5, false, false},
		{"response, payload", natest.KindResponse, 30, false, false},
		{"response, checksum of the payload", natest.KindResponse, 18, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				flips := 1
				n := natest.New(natest.Config{Fault: func(s *natest.Step) natest.Action {
					if s.Kind == tc.kind && s.Arrives && flips > 0 {
						flips--
						s.Data[tc.at] ^= 0x10
					}
					return natest.Proceed
				}})
				server, client := open(t, n, Config{Checksums: wire.Checksums, Dispatch: handler(echo)}), open(t, n, Config{Checksums: wire.Checksums})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				k := client.NewCall()
				k.Start(server.ep.Addr(), 1, CallOptions{}, append(k.Input(), pattern(40)...))
				err := k.Wait(ctx)
				k.Free()
				e, _ := errors.AsType[*Error](err)
				want := codes.ChecksumError
				if tc.lost {
					want = codes.Timeout
				}
				if e == nil || e.Code != want || e.Remote != tc.remote {
					t.Errorf("%v, want %v", err, want)
				}
				if dropped := server.Stats().RequestsDropped; (dropped == 1) != (tc.kind == natest.KindRequest) {
					t.Errorf("%d requests dropped", dropped)
				}
				if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
					t.Errorf("next call: %v", err)
				}
			})
		})
	}
}

// TestFlippedOverflow changes pulled payloads: the checksum covers what is pulled.
func TestFlippedOverflow(t *testing.T) {
	n := natest.New(natest.Config{})
	data := pattern(10000)
	changing := func(r *Request) {
		if r.ID() == 1 {
			data[500]++
			return
		}
		echo(r)
	}
	client := open(t, n, Config{Checksums: wire.Checksums})
	server := open(t, n, Config{Checksums: wire.Checksums, Dispatch: handler(changing)})
	// The request's checksum is computed at Start, the peer pulls later.
	n.Hold(client.ep)
	k := client.NewCall()
	k.Start(server.ep.Addr(), 2, CallOptions{}, data)
	data[500]++
	n.Release(client.ep)
	err := k.Wait(t.Context())
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != codes.ChecksumError || !e.Remote {
		t.Errorf("request: %v", err)
	}
	k.Free()
	if out, err := call(t, client, server.ep.Addr(), 2, data); err != nil || !bytes.Equal(out, data) {
		t.Errorf("unchanged: %v", err)
	}
}

// build answers as a process of C does that has no RPC registered.
type build struct {
	ep   *natest.Endpoint
	long bool
	old  bool // before 2.4.1: does not know the mark
	mute bool
	cut  bool // answers are cut to one byte

	mu       sync.Mutex
	requests [][]byte
	ops      []na.Op
}

func (b *build) Complete(*na.Op) {}

func (b *build) Request(m *na.Message) na.Task {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, bytes.Clone(m.Data))
	marked := wire.RequestHeader(m.Data).Flags()&wire.FlagHasChecksums != 0
	if b.mute || marked && !b.long && !b.old {
		return nil // dropped
	}
	room := b.ep.Limits().ResponseRoom
	size := wire.FormShort.ErrorSize()
	f := wire.Response{Code: codes.NoEntry}
	if b.long {
		size, f.Form = wire.FormLong.ErrorSize(), wire.FormLong
	}
	msg := make([]byte, room+size)
	wire.PutResponse(msg[room:], f)
	if b.old {
		msg[room+1] = wire.RequestHeader(m.Data).Flags()
	}
	if b.cut {
		msg = msg[:room+1]
	}
	b.ops = append(b.ops, na.Op{Done: b})
	b.ep.SendExpected(&b.ops[len(b.ops)-1], m.From, m.Tag, msg)
	return nil
}

// TestDetect asks builds of C how they are made, once.
// parity: H63 D27
func TestDetect(t *testing.T) {
	for name, b := range map[string]*build{
		"without checksums": {}, "with checksums": {long: true}, "old without checksums": {old: true}, "old with checksums": {long: true, old: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := natest.New(natest.Config{})
			b.ops = make([]na.Op, 0, 10)
			b.ep = n.Open(b)
			client := open(t, n, Config{Checksums: wire.Detect})
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if _, err := call(t, client, b.ep.Addr(), 7, []byte("abc")); codeFrom(t, err) != codes.NoEntry {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if _, err := call(t, client, b.ep.Addr(), 7, []byte("abc")); codeFrom(t, err) != codes.NoEntry {
				t.Error(err)
			}
			if len(b.requests) != 4 {
				t.Fatalf("%d requests, want one question and three calls", len(b.requests))
			}
			q := wire.RequestHeader(b.requests[0])
			if len(q) != wire.FormLong.Size() || q.Flags() != 0 || q.CRC16() != q.Checksum() || q.ID() == 7 {
				t.Errorf("the question is % x", []byte(q))
			}
			for _, r := range b.requests[1:] {
				if got := wire.RequestHeader(r).Flags() != 0; got != b.long || wire.RequestHeader(r).ID() != 7 {
					t.Errorf("a call is % x", r)
				}
			}
		})
	}
}

// TestDetectEnds: calls that wait for the answer end as others do.
func TestDetectEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{})
		b := &build{mute: true, ops: make([]na.Op, 0, 10)}
		b.ep = n.Open(b)
		client := open(t, n, Config{Checksums: wire.Detect})
		to := client.at(t, b.ep)
		start := func() *Call {
			k := client.NewCall()
			k.Start(to, 7, CallOptions{}, append(k.Input(), "abc"...))
			return k
		}
		end := func(k *Call, want codes.Code) {
			t.Helper()
			if err := k.Wait(t.Context()); want == wire.Success && err != nil || want != wire.Success && codeFrom(t, err) != want {
				t.Errorf("%v, want %v", err, want)
			}
			k.Free()
		}
		one, two := start(), start()
		synctest.Wait()
		one.Cancel()
		end(one, codes.Canceled)
		if got := n.InFlight(); got != 1 {
			t.Errorf("%d operations in flight, want the question", got)
		}
		two.Cancel()
		end(two, codes.Canceled)
		synctest.Wait()
		if got, calls := n.InFlight(), client.Stats().CallsActive; got != 0 || calls != 0 {
			t.Errorf("%d operations in flight, %d calls, want the question withdrawn", got, calls)
		}
		three := start()
		synctest.Wait()
		n.Cut(client.ep, b.ep)
		end(three, codes.HostUnreach)

		// Another process, of another build, takes the address.
		b.mu.Lock()
		b.mute, b.long = false, true
		b.mu.Unlock()
		end(start(), codes.NoEntry)
		n.Kill(b.ep)
		b2 := &build{ops: make([]na.Op, 0, 10)}
		b2.ep = n.Reopen(b.ep, b2)
		end(start(), codes.NoEntry)
		if got := len(b2.requests); got != 2 {
			t.Errorf("%d requests at the new process, want a question and a call", got)
		}
	})
}

// TestDetectAgain has a peer send a malformed answer: its call fails, and the next one asks again, although the address of the peer is
// annotated with the build that it had before, and the connection is the same.
func TestDetectAgain(t *testing.T) {
	n := natest.New(natest.Config{})
	b := &build{ops: make([]na.Op, 0, 10)}
	b.ep = n.Open(b)
	client := open(t, n, Config{Checksums: wire.Detect})
	for step, want := range []codes.Code{codes.NoEntry, codes.ProtocolError, codes.NoEntry} {
		b.mu.Lock()
		b.cut = step == 1
		b.mu.Unlock()
		if _, err := call(t, client, b.ep.Addr(), 7, []byte("abc")); codeFrom(t, err) != want {
			t.Errorf("call %d: %v, want %v", step, err, want)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) != 5 {
		t.Errorf("%d requests, want two questions and three calls", len(b.requests))
	}
}

// TestDetectStrange: an answer that tells nothing is an error with a remedy.
func TestDetectStrange(t *testing.T) {
	n := natest.New(natest.Config{Fault: func(s *natest.Step) natest.Action { return natest.Proceed }})
	server := open(t, n, Config{Dispatch: handler(func(r *Request) { _ = r.Respond(context.Background(), make([]byte, 100)) })})
	client := open(t, n, Config{Checksums: wire.Detect})
	if _, err := call(t, client, server.ep.Addr(), 1, nil); codeFrom(t, err) != codes.ProtoNoSupport || !strings.Contains(err.Error(), "Config.Checksums") {
		t.Error(err)
	}
}
