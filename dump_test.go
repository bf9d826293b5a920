package cinnabar

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
	"cinnabar/stats"
)

// dumped returns what e's state is, with one space in the place of several.
func dumped(t *testing.T, e *Engine) string {
	t.Helper()
	var b strings.Builder
	must(t, e.DumpState(&b))
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// wantLines checks that text has these lines, in this order.
func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	rest := "\n" + text + "\n"
	for _, line := range lines {
		_, after, ok := strings.Cut(rest, "\n"+line+"\n")
		if !ok {
			t.Errorf("no line %q, in this place, in:\n%s", line, text)
			return
		}
		rest = "\n" + after
	}
}

// TestDumpState looks at a server that hangs, and at who calls it.
// parity: H09 G90
func TestDumpState(t *testing.T) {
	cfg := &Config{Checksums: NoChecksums, Pools: []PoolConfig{{Name: "p", Workers: 2, Kind: PoolPriority}}, Logger: new(logLines).logger()}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		p, err := s.server.Provider(7, "sleepers")
		must(t, err)
		must(t, nap.Handle(p, handleNap, InPool(s.server.Pool("p"))))
		relay := NewRPC[struct{}, struct{}]("relay")
		must(t, relay.Handle(s.server, func(ctx context.Context, _ struct{}) (struct{}, error) {
			_, err := nap.Call(ctx, s.server.Self().Provider(7), 9000)
			return struct{}{}, err
		}))
		calls := make(chan *Call[addIn, addOut], 1)
		must(t, add.HandleCall(s.server, func(c *Call[addIn, addOut]) { calls <- c }))
		timer := s.server.NewTimer(func(context.Context) {})
		must(t, timer.Start(time.Hour))
		lent, err := s.server.Expose(ReadOnly, make([]byte, 100))
		must(t, err)
		pools, err := s.server.AllocPool(ReadWrite, 3, 64)
		must(t, err)

		elapse(time.Second)
		held := add.Start(t.Context(), s.ep, addIn{})
		elapse(time.Second)
		relayed := relay.Start(t.Context(), s.ep, struct{}{})
		elapse(time.Second)
		one := nap.Start(t.Context(), s.ep.Provider(7), 8000)
		elapse(time.Second)
		two := nap.Start(t.Context(), s.ep.Provider(7), 1000)
		elapse(500 * time.Millisecond)
		server, client := s.server.Addr(), s.client.Addr()
		text := dumped(t, s.server)
		wantLines(t, text,
			"engine "+server+", listening, for 4.5s",
			"calls under way: 1", "call nap@7 "+server+" 2.5s within relay", "transfers under way: 0",
			"requests: 5", "waiting relay "+client+" 2.5s in no pool", "running nap@7 "+client+" 1.5s in pool p",
			"running nap@7 "+server+" 2.5s in pool p", "queued nap@7 "+client+" 500ms in pool p",
			"held add "+client+" 3.5s since its handler has returned",
			"memory exposed: 4, 292 bytes",
			"pools: 1", "handlers in no pool fifo_wait 4096 running 0, waiting 1, queued 0, most 1, served 2, refused 0",
			"p prio_wait 2 running 2, waiting 0, queued 1, most 2, served 2, refused 0", "timers started: 1",
			"providers: 1", "7 sleepers",
			"counters: 9", "rpc_req_recv_count 4")
		for _, part := range []string{"1 × read-only bulk of 100 bytes in 1 segments", "3 × read-write bulk of 64 bytes", "TestDumpState.func1 at ", "in pool p"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in:\n%s", part, text)
			}
		}
		wantLines(t, dumped(t, s.client),
			"engine "+client+", for calls only, for 4.5s", "calls under way: 4",
			"call add "+server+" 3.5s", "call relay "+server+" 2.5s", "call nap@7 "+server+" 1.5s", "call nap@7 "+server+" 500ms")

		must(t, (<-calls).Respond(addOut{}))
		for _, p := range []interface{ Done() <-chan struct{} }{held, relayed, one, two} {
			<-p.Done()
		}
		must(t, errors.Join(timer.Cancel(t.Context()), lent.Close(), pools.Close()))
		synctest.Wait()
		wantLines(t, dumped(t, s.server), "calls under way: 0", "requests: 0", "memory exposed: 0, 0 bytes", "timers started: 0")
		wantLines(t, dumped(t, s.client), "calls under way: 0", "requests: 0")
	})
}

// errWriter fails.
type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, context.Canceled }

// parity: G90
func TestDumpStateWriter(t *testing.T) {
	if err := calling(t, nil).DumpState(errWriter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("DumpState = %v", err)
	}
}

// TestDumpTransfer looks at a transfer that does not get on.
// parity: G90
func TestDumpTransfer(t *testing.T) {
	simulate(t, natest.Config{Delay: time.Hour}, &Config{Checksums: NoChecksums, NoEager: true, TransferStall: -1}, func(t *testing.T, s *sim) {
		theirs, err := s.server.Expose(ReadOnly, make([]byte, 100))
		must(t, err)
		mine, err := s.client.Expose(WriteOnly, make([]byte, 60))
		must(t, err)
		p := theirs.Handle().On(s.ep).StartPull(t.Context(), mine)
		elapse(time.Minute)
		wantLines(t, dumped(t, s.client), "calls under way: 0", "transfers under way: 1", "pull 60 bytes "+s.server.Addr()+" 1m0s")
		if n, err := p.Wait(); n != 60 || err != nil {
			t.Errorf("pulled %d, %v", n, err)
		}
		wantLines(t, dumped(t, s.client), "transfers under way: 0")
		must(t, errors.Join(theirs.Close(), mine.Close()))
	})
}

// TestCounters makes 10 calls with 2 bulks, and reads Mercury's counters.
// parity: H09 H23 G93
func TestCounters(t *testing.T) {
	server, ep := pair(t, &Config{Checksums: NoChecksums})
	must(t, add.Handle(server, handleAdd))
	type counter stats.Counter
	var before []stats.Counter
	for round := range 2 {
		for range 10 {
			callAdd(t, ep)
		}
		for range 2 {
			b, err := ep.e.Expose(ReadOnly, make([]byte, 10))
			must(t, err)
			must(t, b.Close())
		}
		s := ep.e.Stats()
		got := s.Counters()
		want := []counter{
			{"rpc_req_sent_count", 10}, {"rpc_req_recv_count", 0}, {"rpc_resp_sent_count", 0}, {"rpc_resp_recv_count", 10},
			{"rpc_req_extra_count", 0}, {"rpc_resp_extra_count", 0}, {"rpc_req_recv_active_count", 0}, {"rpc_multi_recv_copy_count", 0},
			{"bulk_count", 2},
		}
		for i := range want {
			since := got[i]
			if round > 0 {
				since.Value -= before[i].Value
			} else if since.Name == "rpc_req_sent_count" || since.Name == "rpc_resp_recv_count" {
				continue // the question whether the server has checksums counts, too
			}
			if counter(since) != want[i] {
				t.Errorf("round %d: counter %+v, want %+v", round, since, want[i])
			}
		}
		before = got
	}
}

// TestLeakWarnings leaves behind one of everything, and checks that each is named when its engine ends.
// parity: G94
func TestLeakWarnings(t *testing.T) {
	log := new(logLines) // and the client's, since simulate has one Config
	simulate(t, natest.Config{}, &Config{Checksums: NoChecksums, Logger: log.logger()}, func(t *testing.T, s *sim) {
		var kept *Call[addIn, addOut]
		p, err := s.server.Provider(3, "leaks")
		must(t, err)
		must(t, add.HandleCall(p, func(c *Call[addIn, addOut]) { kept = c }))
		must(t, nap.Handle(s.server, handleNap))
		lent, err := s.server.Expose(ReadWrite, make([]byte, 77))
		must(t, err)
		for range 2 * maxWarnings {
			b, err := s.server.Expose(ReadOnly, make([]byte, 5))
			must(t, err)
			must(t, b.Close())
		}
		heeded := add.Start(t.Context(), s.ep.Provider(3), addIn{})
		elapse(time.Second)

		_ = nap.Start(t.Context(), s.ep, 5000)
		elapse(2 * time.Second)
		go func() { _, _ = heeded.Wait() }()
		elapse(time.Second)
		must(t, s.client.Close())
		log.want(t, 0, "operation is under way", "op=call", "rpc=nap", "peer="+s.server.Addr(), "age=3s")
		log.end(t, 1)
		elapse(time.Minute)
		must(t, s.server.Close())
		log.want(t, 1, "exposed memory is not closed", "read-write bulk of 77 bytes in 1 segments", "count=1", "TestLeakWarnings.func1 at ")
		log.want(t, 2, "call is not answered", "rpc=add@3", "peer="+s.client.Addr(), "age=1m4s")
		log.end(t, 3)
		_ = kept.Fail(codes.Canceled)
		must(t, lent.Close())
	})
}

// TestLeakWarningHooked leaves a call behind that was started on an engine with a monitor.
func TestLeakWarningHooked(t *testing.T) {
	log := new(logLines)
	cfg := &Config{Checksums: NoChecksums, Logger: log.logger(), Monitor: new(journal)}
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) {
		must(t, nap.Handle(s.server, handleNap))
		_ = nap.Start(t.Context(), s.ep, 5000)
		elapse(time.Second)
		must(t, s.client.Close())
		log.want(t, 0, "operation is under way", "rpc=nap", "age=1s")
		log.end(t, 1)
		elapse(time.Minute)
	})
}

// TestLeakWarningsMany leaves behind more than is reported.
// parity: G94
func TestLeakWarningsMany(t *testing.T) {
	log := new(logLines)
	e := calling(t, &Config{Logger: log.logger()})
	var all []*Bulk
	for i := range maxWarnings + 5 {
		b, err := e.Expose(ReadOnly, make([]byte, i))
		must(t, err)
		all = append(all, b)
	}
	must(t, e.Close())
	log.want(t, 0, "more is left behind", "more=5")
	log.want(t, 1, "read-only bulk of 0 bytes")
	log.end(t, maxWarnings+1)
	runtime.KeepAlive(all)

	quiet := calling(t, &Config{Logger: slog.New(slog.DiscardHandler)})
	b, err := quiet.Expose(ReadOnly, make([]byte, 1))
	must(t, err)
	must(t, quiet.Close())
	must(t, b.Close())
}

// TestDumpHasPlaces checks that the state says where memory was made, also for an engine that logs nothing.
func TestDumpHasPlaces(t *testing.T) {
	e := listening(t, nil)
	b, err := e.Alloc(ReadOnly, 100)
	must(t, err)
	defer func() { _ = b.Close() }()
	pool, err := e.AllocPool(ReadOnly, 2, 50)
	must(t, err)
	defer func() { _ = pool.Close() }()
	var state strings.Builder
	must(t, e.DumpState(&state))
	if n := strings.Count(state.String(), "TestDumpHasPlaces at "); n != 2 || strings.Contains(state.String(), "not known") {
		t.Errorf("%d places, want 2:\n%s", n, state.String())
	}
}
