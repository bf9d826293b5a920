package hg

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// announcing makes a server, and calls to it whose inputs have n bytes each and come only as far as serve allows.
func announcing(t *testing.T, count, n int, cfg Config, serve func(offset int64) natest.Action) (server, client *node, calls []*Call, net *natest.Network) {
	net = natest.New(natest.Config{Chunk: 1 << 20, Fault: func(s *natest.Step) natest.Action {
		if s.Kind == natest.KindGet {
			return serve(s.Offset)
		}
		return natest.Proceed
	}})
	cfg.Dispatch = handler(echo)
	server, client = open(t, net, cfg), open(t, net, Config{})
	payload := make([]byte, n)
	for range count {
		k := client.NewCall()
		k.Start(server.ep.Addr(), 1, CallOptions{}, payload)
		calls = append(calls, k)
	}
	synctest.Wait()
	return server, client, calls, net
}

func lose(int64) natest.Action { return natest.Lose }

// TestUnservedOverflow: peers that announce payloads and do not serve them hold little memory for it, whatever they
// announce, and for a limited time.
func TestUnservedOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, size = 100, 16 << 20
		start := time.Now()
		server, _, calls, _ := announcing(t, count, size, Config{OverflowBudget: 32 << 20}, lose)
		if got, most := server.Stats().OverflowBytes, int64(count*(pullFirst+512)+pullFew*pullOpening); got == 0 || got > most {
			t.Errorf("%d bytes are held for %d announcements, want at most %d", got, count, most)
		}
		for i, k := range calls {
			err := k.Wait(t.Context())
			if e, ok := errors.AsType[*Error](err); !ok || e.Code != codes.Timeout || !e.Remote {
				t.Errorf("call %d: %v", i, err)
			}
			k.Free()
		}
		synctest.Wait()
		if got := time.Since(start); got != patience(pullTime, pullOpening) {
			t.Errorf("given up after %v", got)
		}
		if got := server.Stats(); got.OverflowBytes != 0 || got.RequestsActive != 0 || got.TransfersActive != 0 {
			t.Errorf("%d bytes are held for %d requests, %d transfers", got.OverflowBytes, got.RequestsActive, got.TransfersActive)
		}
	})
}

// TestUnservedResponse is the same for a response, to a caller without a deadline. The peer hears that its memory is not
// needed any more.
func TestUnservedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{Fault: func(s *natest.Step) natest.Action {
			if s.Kind == natest.KindGet {
				return natest.Lose
			}
			return natest.Proceed
		}})
		ended := make(chan error, 1)
		server := open(t, n, Config{Dispatch: handler(func(r *Request) { ended <- r.Respond(context.Background(), make([]byte, 1<<20)) })})
		client := open(t, n, Config{})
		start := time.Now()
		_, err := call(t, client, server.ep.Addr(), 1, nil)
		if got, want := time.Since(start), patience(pullTime, 1<<20); codeFrom(t, err) != codes.Timeout || !errors.Is(err, errSlowPull) || got != want {
			t.Errorf("%v after %v, want a time-out after %v", err, got, want)
		}
		if err := <-ended; err != nil {
			t.Errorf("respond: %v", err)
		}
	})
}

// TestStalledOverflow: a peer that stops in the middle holds a few times what it has sent.
func TestStalledOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, sent = 64 << 20, 2 * pullSecond
		moved := 0
		server, _, calls, _ := announcing(t, 1, size, Config{}, func(int64) natest.Action {
			if moved += 1 << 20; moved > sent {
				return natest.Lose
			}
			return natest.Proceed
		})
		if got := server.Stats().OverflowBytes; got != pullLeap*pullOpening {
			t.Errorf("%d bytes are held for %d", got, sent)
		}
		if err := calls[0].Wait(t.Context()); codeFrom(t, err) != codes.Timeout {
			t.Error(err)
		}
		calls[0].Free()
	})
}

// TestLostOverflow: with the connection, the pulls and their memory go at once.
func TestLostOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client, calls, n := announcing(t, 5, 1<<20, Config{}, lose)
		n.Cut(client.ep, server.ep)
		for _, k := range calls {
			if err := k.Wait(t.Context()); codeFrom(t, err) != codes.HostUnreach {
				t.Errorf("after the loss: %v", err)
			}
			k.Free()
		}
		synctest.Wait()
		if got := server.Stats(); got.OverflowBytes != 0 || got.RequestsActive != 0 {
			t.Errorf("after the loss %d bytes are held for %d requests", got.OverflowBytes, got.RequestsActive)
		}
	})
}

// TestManyPullsBeginSmall checks that a host that announces many payloads and serves none holds pullLeast bytes for most of them, and
// that a payload which is served grows as usual.
func TestManyPullsBeginSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, size = 2 * pullMany, 1 << 20
		served := 0
		server, client, calls, _ := announcing(t, count, size, Config{}, func(int64) natest.Action {
			if served++; served > count {
				return natest.Proceed
			}
			return natest.Lose
		})
		most := int64(pullFew*pullOpening + (pullMany+1)*pullFirst + (count-pullMany-1)*pullLeast)
		if got := server.Stats().OverflowBytes; got < count*pullLeast || got > most {
			t.Errorf("%d bytes are held for %d announcements, want at most %d", got, count, most)
		}
		if out, err := call(t, client, server.ep.Addr(), 1, make([]byte, size)); err != nil || len(out) != size {
			t.Errorf("a call whose payload is served: %d bytes, %v", len(out), err)
		}
		for _, k := range calls {
			k.Cancel()
			_ = k.Wait(t.Context()) // the server does not answer in time
			k.Free()
		}
		synctest.Wait()
	})
}

// TestHostLeavesPullsToOthers has a host announce more inputs than are pulled at once, and serve none, which once left no
// room for the inputs of others. Each announcement costs the host the first part and its descriptor.
func TestHostLeavesPullsToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := hostquota.NewBook(hostquota.Limits{hostquota.Pulls: 64, hostquota.Memory: 1 << 30})
		var bad *node
		n := natest.New(natest.Config{Quota: book, Fault: func(s *natest.Step) natest.Action {
			if s.Kind == natest.KindGet && s.To == bad.ep {
				return natest.Lose
			}
			return natest.Proceed
		}})
		server := open(t, n, Config{Dispatch: handler(echo)})
		bad = open(t, n, Config{})
		good := open(t, n, Config{})
		var calls []*Call
		for range 100 {
			k := bad.NewCall()
			k.Start(server.ep.Addr(), 1, CallOptions{}, make([]byte, 1<<20))
			calls = append(calls, k)
		}
		synctest.Wait()
		if got := book.Used(hostquota.Pulls); got != 36 {
			t.Errorf("one host has %d of 64 pulls, want 36", got)
		}
		if got, most := book.Used(hostquota.Memory), int64(36*(pullFirst+512)+pullFew*pullOpening); got == 0 || got > most {
			t.Errorf("%d bytes are counted, want at most %d", got, most)
		}
		for range 5 {
			if out, err := call(t, good, server.ep.Addr(), 1, make([]byte, 100_000)); err != nil || len(out) != 100_000 {
				t.Errorf("a call of another host: %d bytes, %v", len(out), err)
			}
		}
		for i, k := range calls {
			if err := k.Wait(t.Context()); codeFrom(t, err) != codes.Again && codeFrom(t, err) != codes.Timeout {
				t.Errorf("call %d: %v", i, err)
			}
			k.Free()
		}
		synctest.Wait()
		for _, r := range []hostquota.Resource{hostquota.Pulls, hostquota.Memory, hostquota.Unsent} {
			if got := book.Used(r); got != 0 {
				t.Errorf("%d %v are counted in the end", got, r)
			}
		}
	})
}

// TestUnknownRPCIsNotPulled announces an input for an RPC that is not registered, which was fetched once before the id was
// looked at.
func TestUnknownRPCIsNotPulled(t *testing.T) {
	n := natest.New(natest.Config{Direct: true})
	server, client := open(t, n, Config{Dispatch: knows(7)}), open(t, n, Config{})
	if _, err := call(t, client, server.ep.Addr(), 1, make([]byte, 10000)); codeFrom(t, err) != codes.NoEntry {
		t.Error(err)
	}
	if got := server.ep.Counts().Gets; got != 0 {
		t.Errorf("%d reads for an RPC that is not registered, want none", got)
	}
	if _, err := call(t, client, server.ep.Addr(), 7, make([]byte, 1000)); err != nil {
		t.Error(err)
	}
}

// knows answers requests of one RPC, and has no other.
type knows ID

func (k knows) Unknown(id ID) codes.Code {
	if id != ID(k) {
		return codes.NoEntry
	}
	return 0
}

func (k knows) Dispatch(r *Request) na.Task { return inline{}.Dispatch(r) }

// TestOverflowInParts has payloads around the sizes at which another part is asked for, both ways, with plenty of
// memory and with little.
func TestOverflowInParts(t *testing.T) {
	for name, budget := range map[string]int64{"plenty": 0, "scarce": 48 << 20} {
		t.Run(name, func(t *testing.T) {
			sizes := []int{pullFirst, pullFirst + 1, 4*pullFirst + 1, pullSecond + 1}
			if budget == 0 {
				sizes = []int{pullSecond, pullSecond + 1}
			}
			if !invariants.Race { // for which it is much memory
				sizes = append(sizes, 4*pullSecond+1)
			}
			n := natest.New(natest.Config{Chunk: 1 << 20})
			server := open(t, n, Config{Checksums: wire.Checksums, Dispatch: handler(echo), OverflowBudget: budget})
			client := open(t, n, Config{Checksums: wire.Checksums, OverflowBudget: budget})
			if budget > 0 {
				for _, c := range []*Class{server.Class, client.Class} {
					held := budget/pullPlenty + 1
					c.count.budget.Add(held)
					defer c.count.budget.Add(-held)
				}
			}
			for _, size := range sizes {
				in := bytes.Repeat(pattern(251), size/251+1)[:size]
				if out, err := call(t, client, server.ep.Addr(), 1, in); err != nil || !bytes.Equal(out, in) {
					t.Errorf("%d bytes: %d come back, %v", size, len(out), err)
				}
			}
		})
	}
}

// TestCancelPull cancels calls whose response is pulled in parts, at every moment of it: small parts, and now and then
// those that are asked for by another goroutine.
func TestCancelPull(t *testing.T) {
	for at := range 30 {
		size, budget := 16*pullFirst+1, int64(4*pullSecond)
		if at%10 == 0 && !invariants.Race || at == 10 {
			size, budget = 4*pullSecond+1, 0
		}
		synctest.Test(t, func(t *testing.T) {
			var cancel func()
			gets := 0
			n := natest.New(natest.Config{Seed: uint64(at), Chunk: size / 16, Delay: time.Millisecond, Fault: func(s *natest.Step) natest.Action {
				if s.Kind == natest.KindGet {
					if gets++; gets == at/2+1 {
						go cancel()
						if at%2 == 1 {
							return natest.Lose
						}
					}
				}
				return natest.Proceed
			}})
			server := open(t, n, Config{Dispatch: handler(func(r *Request) { _ = r.Respond(context.Background(), make([]byte, size)) })})
			client := open(t, n, Config{OverflowBudget: budget})
			held := budget/pullPlenty + 1
			client.count.budget.Add(held)
			defer client.count.budget.Add(-held)
			ctx, end := context.WithCancel(t.Context())
			cancel = end
			k := client.NewCall()
			k.Start(server.ep.Addr(), 1, CallOptions{}, nil)
			if err := k.Wait(ctx); err != nil && codeFrom(t, err) != codes.Canceled {
				t.Error(err)
			}
			k.Free()
			end()
			if s := client.Stats(); s.CallsActive != 0 || s.TransfersActive != 0 || s.OverflowBytes != held {
				t.Errorf("cancel at read %d: %d calls, %d transfers, %d bytes are left", at/2+1, s.CallsActive, s.TransfersActive, s.OverflowBytes)
			}
			if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
				t.Errorf("next call: %v", err)
			}
			elapse(time.Second) // what is still on its way arrives
		})
	}
}
