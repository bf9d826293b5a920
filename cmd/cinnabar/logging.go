package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"strings"

	"cinnabar"
)

// logLevels are the values of --log-level, the most detailed one first.
var logLevels = []string{"trace", "debug", "info", "warning", "error", "critical"}

// mercuryLevels maps values of --log-level to the levels of Mercury's layers that have other names.
var mercuryLevels = map[string]string{"trace": "debug", "critical": "fatal"}

// logging is the value of --log-level with its logger.
type logging struct {
	logger *slog.Logger
	level  string
}

type loggingKey struct{}

// withLogging returns a context with a logger that writes records of level and above to w. Commands give it to their engines,
// devices and receivers.
func withLogging(ctx context.Context, level string, w io.Writer) (context.Context, error) {
	l, err := cinnabar.ParseLogLevel(level)
	if err != nil {
		return nil, usagef("invalid --log-level %q: one of %s", level, strings.Join(logLevels, ", "))
	}
	cinnabar.SetLogLevel(l) // for all loggers of NewLogger, because the process runs one command
	return context.WithValue(ctx, loggingKey{}, logging{cinnabar.NewLogger(w), level}), nil
}

// loggerOf returns the logger of --log-level, nil without that option.
func loggerOf(ctx context.Context) *slog.Logger {
	l, _ := ctx.Value(loggingKey{}).(logging)
	return l.logger
}

// logLevelOf returns the value of --log-level, empty without that option.
func logLevelOf(ctx context.Context) string {
	l, _ := ctx.Value(loggingKey{}).(logging)
	return l.level
}

// logged returns cfg, or a new configuration, with the logger of --log-level. Without that option the engine's log depends on the
// environment.
func logged(ctx context.Context, cfg *cinnabar.Config) *cinnabar.Config {
	cfg = cmp.Or(cfg, &cinnabar.Config{})
	if l, ok := ctx.Value(loggingKey{}).(logging); ok {
		cfg.Logger = l.logger
		cfg.MercuryLog.Level = cmp.Or(mercuryLevels[l.level], l.level)
	}
	return cfg
}
