package verbs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs/verbstest/memdev"
)

// TestMain fails the package if a goroutine or a mapping is left behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := hostmem.Mapped(); n != 0 && code == 0 {
			_, _ = os.Stderr.WriteString("mappings left behind\n")
			code = 1
		}
		os.Exit(code)
	}))
}

// must returns v or ends the test.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wantErr checks that err matches target and says all of texts.
func wantErr(t *testing.T, err, target error, texts ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got %v, want an error that matches %v", err, target)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("got %q, want it to say %q", err, s)
		}
	}
}

// closeAll closes what a test made, in order, when the test ends.
func closeAll(t *testing.T, what ...interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		for _, c := range what {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// testContext ends long after any healthy test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// memDevice opens a device in memory that really moves data.
func memDevice(t *testing.T) *Device {
	t.Helper()
	dev := NewDevice(memdev.Open(memdev.Config{}))
	closeAll(t, dev)
	return dev
}

// logLines is a slog handler that hands the messages to a channel.
type logLines struct {
	slog.Handler
	lines chan string
}

func newLogLines() logLines {
	return logLines{Handler: slog.DiscardHandler, lines: make(chan string, 16)}
}

func (l logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l logLines) Handle(_ context.Context, r slog.Record) error {
	l.lines <- r.Message
	return nil
}
