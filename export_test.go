package cinnabar

import (
	"testing"
	"time"

	"cinnabar/internal/na/natest"
)

// Simulated runs a test of another package with an engine on a simulated network, a client's endpoint of it, and time that is the test's.
func Simulated(t *testing.T, cfg *Config, test func(t *testing.T, server *Engine, ep *Endpoint)) {
	t.Helper()
	simulate(t, natest.Config{}, cfg, func(t *testing.T, s *sim) { test(t, s.server, s.ep) })
}

// Elapse lets simulated time pass.
func Elapse(d time.Duration) { elapse(d) }
