package cli

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"strings"

	"cinnabar"

	"github.com/spf13/cobra"
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

// addLogLevel adds --log-level to root, for all of its sub-commands. The log goes to w.
func addLogLevel(root *cobra.Command, w io.Writer) {
	var level string
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("log-level") {
			return nil
		}
		ctx, err := withLogging(cmd.Context(), level, w)
		if err == nil {
			cmd.SetContext(ctx)
		}
		return err
	}
	root.PersistentFlags().StringVar(&level, "log-level", "", "log to standard error: "+strings.Join(logLevels, ", ")+" (default the level in MARGO_LOG_LEVEL or HG_LOG_LEVEL of the environment, or no log)")
}

// withLogging returns a context with a logger that writes records of level and above to w. Commands give it to their engines,
// devices and receivers.
func withLogging(ctx context.Context, level string, w io.Writer) (context.Context, error) {
	l, err := cinnabar.ParseLogLevel(level)
	if err != nil {
		return nil, Usagef("invalid --log-level %q: one of %s", level, strings.Join(logLevels, ", "))
	}
	cinnabar.SetLogLevel(l) // for all loggers of NewLogger, because the process runs one command
	return context.WithValue(ctx, loggingKey{}, logging{cinnabar.NewLogger(w), level}), nil
}

// LoggerOf returns the logger of --log-level, nil without that option.
func LoggerOf(ctx context.Context) *slog.Logger {
	l, _ := ctx.Value(loggingKey{}).(logging)
	return l.logger
}

// LogLevelOf returns the value of --log-level, empty without that option.
func LogLevelOf(ctx context.Context) string {
	l, _ := ctx.Value(loggingKey{}).(logging)
	return l.level
}

// Logged returns cfg, or a new configuration, with the logger of --log-level. Without that option the engine's log depends on the
// environment.
func Logged(ctx context.Context, cfg *cinnabar.Config) *cinnabar.Config {
	cfg = cmp.Or(cfg, &cinnabar.Config{})
	if l, ok := ctx.Value(loggingKey{}).(logging); ok {
		cfg.Logger = l.logger
		cfg.MercuryLog.Level = cmp.Or(mercuryLevels[l.level], l.level)
	}
	return cfg
}
