package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"strings"

	"cinnabar"
)

// logLevels are the values of --log-level, the most talkative first.
var logLevels = []string{"trace", "debug", "info", "warning", "error", "critical"}

// mercuryLevels are the levels of Mercury's layers where theirs have other names.
var mercuryLevels = map[string]string{"trace": "debug", "critical": "fatal"}

// logging is the value of --log-level with its logger.
type logging struct {
	logger *slog.Logger
	level  string
}

type loggingKey struct{}

// withLogging returns a context whose engines, devices and receivers log to w from that level on.
func withLogging(ctx context.Context, level string, w io.Writer) (context.Context, error) {
	l, err := cinnabar.ParseLogLevel(level)
	if err != nil {
		return nil, usagef("invalid --log-level %q: one of %s", level, strings.Join(logLevels, ", "))
	}
	cinnabar.SetLogLevel(l) // of all loggers that NewLogger makes, in this process of one command
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

// logged returns cfg, or a new configuration, with the logger of --log-level. Without that option the engine logs as the
// environment says.
func logged(ctx context.Context, cfg *cinnabar.Config) *cinnabar.Config {
	cfg = cmp.Or(cfg, &cinnabar.Config{})
	if l, ok := ctx.Value(loggingKey{}).(logging); ok {
		cfg.Logger = l.logger
		cfg.MercuryLog.Level = cmp.Or(mercuryLevels[l.level], l.level)
	}
	return cfg
}
