package cinnabar

import (
	"log/slog"
	"runtime"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
	"cinnabar/stats"
)

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
		p, err := s.server.NewProvider(3, "leaks")
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
		log.Want(t, 0, "operation is under way", "op=call", "rpc=nap", "peer="+s.server.Addr(), "age=3s")
		log.End(t, 1)
		elapse(time.Minute)
		must(t, s.server.Close())
		log.Want(t, 1, "exposed memory is not closed", "read-write bulk of 77 bytes in 1 segments", "count=1", "TestLeakWarnings.func1 at ")
		log.Want(t, 2, "call is not answered", "rpc=add@3", "peer="+s.client.Addr(), "age=1m4s")
		log.End(t, 3)
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
		log.Want(t, 0, "operation is under way", "rpc=nap", "age=1s")
		log.End(t, 1)
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
	log.Want(t, 0, "more is left behind", "more=5")
	log.Want(t, 1, "read-only bulk of 0 bytes")
	log.End(t, maxWarnings+1)
	runtime.KeepAlive(all)

	quiet := calling(t, &Config{Logger: slog.New(slog.DiscardHandler)})
	b, err := quiet.Expose(ReadOnly, make([]byte, 1))
	must(t, err)
	must(t, quiet.Close())
	must(t, b.Close())
}
