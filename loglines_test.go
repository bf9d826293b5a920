package cinnabar

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"cinnabar/internal/audit"
)

// logLines are the lines that an engine logs from Warn on.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *logLines) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

// logger returns a logger that writes to w. Lines about this host that other tests have provoked suppress none of the caller's.
func (w *logLines) logger() *slog.Logger {
	audit.Reset()
	panics.Reset()
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (w *logLines) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Split(strings.TrimSuffix(w.buf.String(), "\n"), "\n")
}

// want checks that line i has all these texts.
func (w *logLines) want(t *testing.T, i int, texts ...string) {
	t.Helper()
	ls := w.lines()
	if i >= len(ls) {
		t.Fatalf("there is no line %d in %q", i, ls)
	}
	for _, text := range texts {
		if !strings.Contains(ls[i], text) {
			t.Errorf("line %d is %q, want %q in it", i, ls[i], text)
		}
	}
}

// end checks that there are n lines.
func (w *logLines) end(t *testing.T, n int) {
	t.Helper()
	if ls := w.lines(); len(ls) != n {
		t.Errorf("%d lines, want %d: %q", len(ls), n, ls)
	}
}
