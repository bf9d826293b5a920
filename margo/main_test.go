package margo

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The RPCs of tests.
type (
	addIn  struct{ X, Y int32 }
	addOut struct{ Sum int32 }
)

var (
	add   = cinnabar.NewRPC[addIn, addOut]("add")
	relay = cinnabar.NewRPC[addIn, addOut]("relay")
)

func handleAdd(_ context.Context, in addIn) (addOut, error) { return addOut{in.X + in.Y}, nil }

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listening returns an engine that serves requests until the test ends.
func listening(t testing.TB, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	return opened(t, e, err)
}

// calling returns an engine for calls.
func calling(t testing.TB, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	return opened(t, e, err)
}

func opened(t testing.TB, e *cinnabar.Engine, err error) *cinnabar.Engine {
	t.Helper()
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// reach returns the endpoint that the engine from has for the engine to.
func reach(t testing.TB, from, to *cinnabar.Engine) *cinnabar.Endpoint {
	t.Helper()
	ep, err := from.Lookup(to.Addr())
	must(t, err)
	return ep
}

// idle waits until no handler of e runs.
func idle(t testing.TB, e *cinnabar.Engine) {
	waitFor(t, func() bool { return e.Stats().Handlers.Running == 0 })
}

// waitFor waits until the condition holds.
func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	for !condition() {
		if t.Context().Err() != nil {
			t.Fatal("the test has ended")
		}
		runtime.Gosched()
	}
}

// errWriter is a writer that fails.
type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, context.Canceled }

// configured returns an engine with this configuration that serves requests until the test ends.
func configured(t testing.TB, c *Config) *cinnabar.Engine {
	t.Helper()
	e, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", c)
	return opened(t, e, err)
}

// logger returns a logger in Margo's format.
func logger(t testing.TB, w io.Writer, levels LogLevels) *slog.Logger {
	t.Helper()
	log, err := NewLogger(w, levels)
	must(t, err)
	return log
}

// wantInvalid checks that err has CodeInvalidArg and these texts.
func wantInvalid(t testing.TB, err error, texts ...string) {
	t.Helper()
	if !errors.Is(err, codes.InvalidArg) {
		t.Errorf("error %v, want one of HG_INVALID_ARG", err)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q, want %q in it", err, text)
		}
	}
}
