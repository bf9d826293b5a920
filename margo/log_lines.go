package margo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"
)

// lineHandler writes lines in Margo's format.
type lineHandler struct {
	*lineWriter
	with []func(slog.Handler) slog.Handler // attributes and groups, in their order
}

// lineWriter is shared by the handlers of one logger. Its lock is held for a Write only, never while attributes are
// formatted, because a method of the program may format them, and may log.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLineHandler returns a handler that writes lines in Margo's format, "[info] text", to w, each in one Write; attributes follow
// the text. It writes lines of all levels; a [LogHandler] before it selects them.
func NewLineHandler(w io.Writer) slog.Handler {
	return &lineHandler{lineWriter: &lineWriter{w: w}}
}

func (l *lineWriter) write(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(line)
	return err
}

// attributesOnly drops level and text, which stand in the line already. The text is empty where this is used, which
// distinguishes it from an attribute of the same name.
func attributesOnly(groups []string, a slog.Attr) slog.Attr {
	_, isLevel := a.Value.Any().(slog.Level)
	if len(groups) == 0 && (a.Key == slog.LevelKey && isLevel || a.Key == slog.MessageKey && a.Value.String() == "") {
		return slog.Attr{}
	}
	return a
}

// Enabled implements [slog.Handler].
func (h *lineHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
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
