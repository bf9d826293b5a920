package cinnabar

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// lineHandler writes lines in Margo's format.
type lineHandler struct {
	*lineWriter
	attrs slog.Handler // writes attributes to the lineWriter's buffer
}

// lineWriter is what the handlers of one logger share.
type lineWriter struct {
	w io.Writer

	mu sync.Mutex
	// +checklocks:mu
	buf bytes.Buffer
}

func newLineHandler(w io.Writer) *lineHandler {
	l := &lineWriter{w: w}
	attrs := slog.NewTextHandler(bufferOf{l}, &slog.HandlerOptions{Level: slog.Level(math.MinInt), ReplaceAttr: attributesOnly})
	return &lineHandler{lineWriter: l, attrs: attrs}
}

// bufferOf is the writer to a lineWriter's buffer, for use while its lock is held.
type bufferOf struct{ l *lineWriter }

// +checklocksignore
func (b bufferOf) Write(p []byte) (int, error) { return b.l.buf.Write(p) }

// attributesOnly drops level and text, which stand in the line already. The text is empty where this is used, so that
// an attribute of the same name is told from it.
func attributesOnly(groups []string, a slog.Attr) slog.Attr {
	_, isLevel := a.Value.Any().(slog.Level)
	if len(groups) == 0 && (a.Key == slog.LevelKey && isLevel || a.Key == slog.MessageKey && a.Value.String() == "") {
		return slog.Attr{}
	}
	return a
}

// Enabled implements [slog.Handler].
func (h *lineHandler) Enabled(_ context.Context, l slog.Level) bool {
	return l >= globalLevel().Level()
}

// Handle implements [slog.Handler]; the level has been asked for.
func (h *lineHandler) Handle(ctx context.Context, r slog.Record) error {
	only := slog.NewRecord(time.Time{}, r.Level, "", 0)
	r.Attrs(func(a slog.Attr) bool {
		only.AddAttrs(a)
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Reset()
	fmt.Fprintf(&h.buf, "[%s] %s ", levelName(r.Level), r.Message)
	if err := h.attrs.Handle(ctx, only); err != nil {
		return err
	}
	line := append(bytes.TrimRight(h.buf.Bytes(), " \n"), '\n')
	_, err := h.w.Write(line)
	return err
}

// WithAttrs implements [slog.Handler].
func (h *lineHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return &lineHandler{lineWriter: h.lineWriter, attrs: h.attrs.WithAttrs(as)}
}

// WithGroup implements [slog.Handler].
func (h *lineHandler) WithGroup(name string) slog.Handler {
	return &lineHandler{lineWriter: h.lineWriter, attrs: h.attrs.WithGroup(name)}
}

// logs are an engine's loggers, one for each layer, on the handler of Config.Logger.
type logs struct {
	handler slog.Handler
	own     bool          // the handler is a lineHandler: it has no level but those here
	level   slog.LevelVar // Margo's
	mercury atomic.Pointer[mercuryRule]
}

// newLogs makes the loggers of an engine with that configuration.
func newLogs(logger *slog.Logger, m MercuryLog, getenv func(string) string) *logs {
	l := &logs{handler: logger.Handler()}
	l.level.Set(math.MinInt)
	if _, l.own = l.handler.(*lineHandler); l.own {
		l.level.Set(globalLevel().Level())
	}
	rule, err := m.rule(getenv)
	if err != nil { // in the environment, since Config is checked
		rule = &mercuryRule{given: true, level: math.MaxInt}
	}
	l.mercury.Store(rule)
	return l
}

// layer returns the logger that a layer below Margo's is told.
func (cfg *Config) layer(subsys string) *slog.Logger {
	if cfg.logs == nil {
		return cfg.Logger // the configuration of no engine
	}
	return cfg.logs.layer(subsys)
}

// layer returns the logger of a layer: "" is Margo's, "rpc" Mercury's core, "na" the network.
func (l *logs) layer(subsys string) *slog.Logger {
	if l.handler == slog.DiscardHandler {
		return slog.New(l.handler)
	}
	return slog.New(&layerHandler{Handler: l.handler, logs: l, subsys: subsys})
}

// layerHandler lets through what an engine's levels allow.
type layerHandler struct {
	slog.Handler
	logs   *logs
	subsys string
}

// Enabled implements [slog.Handler].
func (h *layerHandler) Enabled(ctx context.Context, level slog.Level) bool {
	if !h.logs.own && !h.Handler.Enabled(ctx, level) {
		return false
	}
	if h.subsys == "" {
		return level >= h.logs.level.Level()
	}
	return h.logs.mercury.Load().allows(h.subsys, level, h.logs.own)
}

// WithAttrs implements [slog.Handler].
func (h *layerHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return &layerHandler{Handler: h.Handler.WithAttrs(as), logs: h.logs, subsys: h.subsys}
}

// WithGroup implements [slog.Handler].
func (h *layerHandler) WithGroup(name string) slog.Handler {
	return &layerHandler{Handler: h.Handler.WithGroup(name), logs: h.logs, subsys: h.subsys}
}
