package cinnabar

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"cinnabar/internal/na/natest"
	"cinnabar/stats"
)

// TestHostLeavesHandlersToOthers has one host ask for all handlers of a server and keep them, which once left none to the
// clients of other hosts.
// parity: A07
func TestHostLeavesHandlersToOthers(t *testing.T) {
	simulate(t, natest.Config{}, &Config{MaxHandlers: 16, MaxQueued: 1000}, func(t *testing.T, s *sim) {
		must(t, block.Handle(s.server, handleBlock))
		must(t, add.Handle(s.server, handleAdd))
		good, _ := s.open(t, nil, false)
		var held []*Pending[struct{}]
		for range 100 {
			held = append(held, block.Start(context.Background(), s.ep, struct{}{}))
		}
		synctest.Wait()
		if n := s.server.Stats().Handlers; n.Running+n.Waiting != 9 {
			t.Errorf("one host has %d of 16 handlers, want 9", n.Running+n.Waiting)
		}
		to := reach(t, good, s.server)
		for range 10 {
			if out, err := add.Call(context.Background(), to, addIn{X: 1, Y: 2}); err != nil || out.Sum != 3 {
				t.Errorf("a call of another host: %+v, %v", out, err)
			}
		}
		must(t, s.client.Close())
		for _, p := range held {
			_, _ = p.Wait()
		}
		must(t, good.Close())
	})
}

// TestSecurityStats checks that refused and obeyed requests are counted by cause, and that quotas are shown.
func TestSecurityStats(t *testing.T) {
	has := func(e *Engine, event, cause string) bool {
		return slices.ContainsFunc(e.Stats().Security.Events, func(x stats.SecurityEvent) bool {
			return x.Event == event && x.Cause == cause && x.Count == 1
		})
	}
	simulate(t, natest.Config{}, nil, func(t *testing.T, s *sim) {
		if out, err := shutdownRPC.Call(t.Context(), s.ep, struct{}{}); err != nil || out.Ret != -1 {
			t.Errorf("shutdown: %+v, %v; want a refusal", out, err)
		}
		if !has(s.server, "remote shutdown", "refused: Config.AllowRemoteShutdown is not set") {
			t.Errorf("counted are %+v", s.server.Stats().Security.Events)
		}
		for _, q := range s.server.Stats().Security.Quotas {
			if q.Limit <= 0 || q.Resource == "" || q.Refused != 0 {
				t.Errorf("quota %+v", q)
			}
		}
	})
	simulate(t, natest.Config{}, &Config{AllowRemoteShutdown: true}, func(t *testing.T, s *sim) {
		if out, err := shutdownRPC.Call(t.Context(), s.ep, struct{}{}); err != nil || out.Ret != 0 {
			t.Errorf("shutdown: %+v, %v", out, err)
		}
		if !has(s.server, "remote shutdown", "obeyed") {
			t.Errorf("counted are %+v", s.server.Stats().Security.Events)
		}
	})
}
