package cinnabar

import (
	"log/slog"

	"cinnabar/internal/audit"
	"cinnabar/internal/logtest"
)

// logLines are the lines that an engine logs from Warn on.
type logLines struct{ logtest.Buffer }

// logger returns a logger that writes to w. Lines about this host that other tests have provoked suppress none of the caller's.
func (w *logLines) logger() *slog.Logger {
	audit.Reset()
	panics.Reset()
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
