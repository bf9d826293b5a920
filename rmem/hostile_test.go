package rmem

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar"
	"cinnabar/internal/devicetest"
	"cinnabar/internal/hostquota"
)

// TestEndOfRegionEndsAllKeys has a region end in each way: when that has happened, no client reaches its memory.
func TestEndOfRegionEndsAllKeys(t *testing.T) {
	for name, end := range map[string]func(s VerbsServer, owner *Client, r *Region) error{
		"free":   func(_ VerbsServer, _ *Client, r *Region) error { return r.Free(t.Context()) },
		"revoke": func(s VerbsServer, _ *Client, r *Region) error { s.Revoke(r.ID()); return nil },
		"death":  func(_ VerbsServer, owner *Client, _ *Region) error { return owner.Close() },
		"lease": func(s VerbsServer, _ *Client, r *Region) error {
			_, err := r.Renew(t.Context(), time.Nanosecond)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, lender, dev := serveVerbs(t, Config{})
			owner, other := dialVerbs(t, s, dev), dialVerbs(t, s, dev)
			r := alloc(t, owner, 100)
			if name == "lease" {
				var err error
				must(t, r.Free(devicetest.Context(t)))
				r, err = owner.AllocLease(devicetest.Context(t), 100, time.Hour)
				must(t, err)
			}
			mem := lender.onlyMemory()
			opened, err := other.Open(devicetest.Context(t), r.Handle())
			must(t, err)
			must(t, end(s, owner, r))
			eventually(t, "the region has ended", func() bool { return len(s.Stats().Regions) == 0 })
			if _, err := opened.WriteAt([]byte("too late"), 0); err == nil {
				t.Error("written after the end")
			}
			<-other.Done()
			if bytes.Contains(mem, []byte("too late")) {
				t.Error("the memory is written")
			}
			eventually(t, "nothing is counted any more", func() bool {
				return lender.book.Used(hostquota.Regions) == 0 && lender.book.Used(hostquota.Memory) == 0
			})
		})
	}
}

// TestGuessesAreDelayed has a host guess handles: each refusal is answered later than the one before, up to a second, and
// further requests are not looked at while many of them wait. Other hosts are answered at once, and the state is bounded.
func TestGuessesAreDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, session, _ := plainLender(t, func(*lender, uint64) {})
		guesser, other := l.callerOf("guesser", hostquota.ProcessHost(0, 1)), l.callerOf("other", hostquota.ProcessHost(0, 2))
		guess := func(by *caller) (r response, took time.Duration) {
			begin := time.Now()
			q := request{Op: uint32(opStat), ID: 42}
			if d, done := l.answer(&q, &r, by, func() { l.serve(&q, &r, by) }); d > 0 {
				time.Sleep(d) //nolint:forbidigo // simulated time
				done()
			}
			return r, time.Since(begin)
		}
		last := time.Duration(0)
		for i := range 30 {
			r, took := guess(guesser)
			if !errors.Is(r.meaning(), ErrUnknown) || took < last || took > mostDelay || i < freeRefusals && took > 0 {
				t.Errorf("guess %d: %v after %v", i, r.meaning(), took)
			}
			last = took
		}
		if last != mostDelay {
			t.Errorf("the last guess took %v", last)
		}
		if _, took := guess(other); took != 0 {
			t.Errorf("another host waited for %v", took)
		}
		var wg sync.WaitGroup
		for range mostDelayed {
			wg.Go(func() { guess(guesser) })
		}
		synctest.Wait()
		if r, took := guess(guesser); !errors.Is(r.meaning(), ErrBusy) || took != 0 {
			t.Errorf("%v after %v, though %d answers wait", r.meaning(), took, mostDelayed)
		}
		proper := func(q *request) (r response) { // of another user of the host that guesses
			if d, _ := l.answer(q, &r, guesser, func() { l.serve(q, &r, guesser) }); d != 0 {
				t.Errorf("an answer that is no refusal is delayed by %v", d)
			}
			return r
		}
		lent := proper(&request{Op: uint32(opAlloc), Session: session, Size: 8, Lease: int64(time.Hour)})
		must(t, lent.meaning())
		renewed := proper(&request{Op: uint32(opRenew), ID: lent.ID, Secret: lent.Secret, Lease: int64(time.Hour)})
		must(t, renewed.meaning())
		freed := proper(&request{Op: uint32(opFree), ID: lent.ID, Secret: lent.Secret})
		must(t, freed.meaning())
		wg.Wait()
		time.Sleep(forgetAfter) //nolint:forbidigo // simulated time
		if _, took := guess(guesser); took != 0 {
			t.Errorf("a guess after %v took %v", forgetAfter, took)
		}
		for i := range 2 * mostRefused {
			guess(l.callerOf("many", hostquota.ProcessHost(0, int32(100+i))))
		}
		l.refusals.mu.Lock()
		defer l.refusals.mu.Unlock()
		if n := len(l.refusals.hosts); n > mostRefused {
			t.Errorf("%d hosts are remembered", n)
		}
		if st := l.stats(); st.Denied < 30+mostDelayed {
			t.Errorf("%d are counted", st.Denied)
		}
	})
}

// TestDelayedAnswersHoldNoWorker has a client guess handles of a server whose pool has one worker. The worker does not wait
// with the answers: a proper request behind the guesses is served.
func TestDelayedAnswersHoldNoWorker(t *testing.T) {
	e := engine(t)
	pool, err := e.AddPool(cinnabar.PoolConfig{Name: "one", Workers: 1})
	must(t, err)
	s, err := Serve(e, Config{Provider: provider, Pool: pool})
	must(t, err)
	closing(t, s)
	c, _ := dial(t, e)
	ctx := devicetest.Context(t)
	var wg sync.WaitGroup
	for range 40 { // the worker would take more than 20 s for their delays
		wg.Go(func() {
			if _, err := c.srv.ask(ctx, &request{Op: uint32(opStat), ID: 42}); !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrBusy) {
				t.Error(err)
			}
		})
	}
	for s.Stats().Denied < freeRefusals+4 && ctx.Err() == nil {
		runtime.Gosched()
	}
	begin := time.Now()
	must(t, alloc(t, c, 8).Free(ctx))
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("a request behind guesses took %v", took)
	}
	wg.Wait()
}

// TestHostsHaveShares has one host take all the memory and all places for clients that it gets, with many clients: another
// host still finds something.
func TestHostsHaveShares(t *testing.T) {
	cfg, err := Config{Quota: 1 << 20, MaxClients: 100}.filled()
	must(t, err)
	l := new(lender)
	*l = newLender(cfg, func(size int64, _ bool) (memory, error) { return &plainMemory{b: heapMemory(size)}, nil })
	greedy, late := l.callerOf("greedy", hostquota.ProcessHost(0, 1)), l.callerOf("late", hostquota.ProcessHost(0, 2))
	take := func(by *caller, session uint64) error {
		var r response
		l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 4096}, &r, by)
		return r.meaning()
	}
	clients := 0
	for ; ; clients++ {
		var r response
		session, ok := l.open(&r, greedy)
		if !ok {
			if !errors.Is(r.meaning(), ErrQuota) {
				t.Error(r.meaning())
			}
			break
		}
		for range 10 {
			if err := take(greedy, session); err != nil && !errors.Is(err, ErrQuota) {
				t.Error(err)
			}
		}
	}
	session, ok := l.open(&response{}, late)
	if clients < 50 || clients >= 100 || !ok {
		t.Errorf("one host has %d clients, the next one any: %v", clients, ok)
	}
	if err := take(late, session); err != nil {
		t.Errorf("the late host's: %v", err)
	}
	if st := l.stats(); st.Used > st.Quota*9/16+4096 || st.Used < st.Quota/2 || st.Refused == 0 {
		t.Errorf("%d of %d bytes are lent to the greedy host, %d refusals", st.Used, st.Quota, st.Refused)
	}
	for _, id := range l.closeAll() {
		l.closeSession(id, "test")
	}
	if n := l.book.Used(hostquota.Connections) + l.book.Used(hostquota.Memory) + l.book.Used(hostquota.Regions); n != 0 {
		t.Errorf("%d are counted in the end", n)
	}
}

// copyRequest asks for a copy from the region of a bulk handle.
func copyRequest(t *testing.T, to *Region, source []byte) error {
	_, err := to.ask(devicetest.Context(t), "copy to", &request{Op: uint32(opCopy), Size: 8, Source: source, SourceLen: uint32(len(source))})
	return err
}

// TestCopyFromElsewhereIsBounded has a client make the server copy from "another server", which the client has chosen and which
// never answers. The server connects nowhere unless it is allowed, waits no longer than the limit, and does so only so
// often for one host.
func TestCopyFromElsewhereIsBounded(t *testing.T) {
	if protocol() != "ofi+tcp" {
		t.Skip("the other server is a TCP listener")
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { _ = c.Close() }) // the dialer may have closed it before
			wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() }) // when the test's context has ended

	s, e := serve(t, Config{})
	c, mine := dial(t, e)
	source := silentSource(t, mine, ln.Addr().(*net.TCPAddr))
	r := alloc(t, c, 100)
	wantError(t, "not allowed", copyRequest(t, r, source), ErrElsewhere)
	asked := ""
	s.cfg.CopyFrom = func(server string) bool { asked = server; return true }
	s.stall = 50 * time.Millisecond
	wantError(t, "silent", copyRequest(t, r, source), ErrServer)
	if want := "ofi+tcp://" + ln.Addr().String(); asked != want {
		t.Errorf("asked about %q, want %q", asked, want)
	}
	at, err := netip.ParseAddrPort(strings.TrimPrefix(mine.Addr(), "ofi+tcp://"))
	must(t, err)
	account := s.book.Account(hostquota.HostOf(at.Addr()))
	n := int64(0)
	for account.Take(hostquota.Pulls, 1) == nil {
		n++
	}
	wantError(t, "too many", copyRequest(t, r, source), ErrBusy)
	account.Give(hostquota.Pulls, n)
	if n < 8 || n >= mostFetches {
		t.Errorf("a host may have %d copies", n)
	}
}

// silentSource is the handle of a region that is said to be at an address.
func silentSource(t *testing.T, e *cinnabar.Engine, at *net.TCPAddr) []byte {
	t.Helper()
	b, err := e.Expose(cinnabar.ReadOnly, make([]byte, 64))
	must(t, err)
	closing(t, b)
	source, err := b.Bound().AppendBinary(nil)
	must(t, err)
	var h cinnabar.BulkHandle
	must(t, h.UnmarshalBinary(source))
	own, err := h.Owner(e)
	must(t, err)
	_, port, err := net.SplitHostPort(own.String()[len("ofi+tcp://"):])
	must(t, err)
	n, err := net.LookupPort("tcp", port)
	must(t, err)
	i := bytes.LastIndex(source, []byte{2, 0, byte(n >> 8), byte(n)}) // a struct sockaddr_in of this machine
	if i < 0 {
		t.Fatal("no address in the handle")
	}
	source[i+2], source[i+3] = byte(at.Port>>8), byte(at.Port)
	copy(source[i+4:], at.IP.To4())
	return source
}
