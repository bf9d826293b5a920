package cinnabar

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
)

// lineHandler writes lines in Margo's format.
type lineHandler struct {
	*lineWriter
	with []func(slog.Handler) slog.Handler // attributes and groups, in their order
}

// lineWriter is what the handlers of one logger share. Its lock is held for a Write only, never while attributes are
// formatted: what does that may be a method of the program's, which may log.
type lineWriter struct {
	mu invariants.Mutex
	w  io.Writer
}

func newLineHandler(w io.Writer) *lineHandler { return &lineHandler{lineWriter: &lineWriter{w: w}} }

func (l *lineWriter) write(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(line)
	return err
}

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
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "[%s] %s ", levelName(r.Level), r.Message)
	if err := h.attributes(&buf).Handle(ctx, only); err != nil {
		return err
	}
	return h.write(append(bytes.TrimRight(buf.Bytes(), " \n"), '\n'))
}

// attributes returns a handler that writes attributes to w.
func (h *lineHandler) attributes(w io.Writer) slog.Handler {
	var a slog.Handler = slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.Level(math.MinInt), ReplaceAttr: attributesOnly})
	for _, with := range h.with {
		a = with(a)
	}
	return a
}

// adding returns the handler with one more step.
func (h *lineHandler) adding(with func(slog.Handler) slog.Handler) slog.Handler {
	return &lineHandler{lineWriter: h.lineWriter, with: append(slices.Clip(h.with), with)}
}

// WithAttrs implements [slog.Handler].
func (h *lineHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return h.adding(func(a slog.Handler) slog.Handler { return a.WithAttrs(as) })
}

// WithGroup implements [slog.Handler].
func (h *lineHandler) WithGroup(name string) slog.Handler {
	return h.adding(func(a slog.Handler) slog.Handler { return a.WithGroup(name) })
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
