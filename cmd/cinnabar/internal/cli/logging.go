package cli

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"strings"

	"cinnabar"
	"cinnabar/margo"

	"github.com/spf13/cobra"
)

// logLevels are the values of --log-level, the most detailed one first.
var logLevels = []string{"trace", "debug", "info", "warning", "error", "critical"}

// mercuryLevels maps values of --log-level to the levels of Mercury's layers that have other names.
var mercuryLevels = map[string]string{"trace": "debug", "critical": "fatal"}

// logging is the value of --log-level with its logger; without that option, the logger and the interface that the environment names.
type logging struct {
	logger       *slog.Logger // of engines; nil: none
	level        string       // empty without --log-level
	netInterface string       // for Config.Interface
}

type loggingKey struct{}

// addLogLevel adds --log-level to root, for all of its sub-commands. The log goes to w.
func addLogLevel(root *cobra.Command, w io.Writer) {
	var level string
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		ctx, err := withLogging(cmd.Context(), level, cmd.Flags().Changed("log-level"), w)
		if err == nil {
			cmd.SetContext(ctx)
		}
		return err
	}
	root.PersistentFlags().StringVar(&level, "log-level", "", "log to standard error: "+strings.Join(logLevels, ", ")+" (default the level in MARGO_LOG_LEVEL or HG_LOG_LEVEL of the environment, or no log)")
	mustComplete(root.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions(logLevels, cobra.ShellCompDirectiveNoFileComp)))
}

// withLogging returns a context with the logger for engines, devices and receivers: one that writes records of level and above to w
// if the option --log-level is given, otherwise the one for which the environment asks.
func withLogging(ctx context.Context, level string, given bool, w io.Writer) (context.Context, error) {
	env, err := margo.ConfigFromEnv(nil)
	if err != nil {
		return nil, Usagef("%v", err)
	}
	l := logging{logger: env.Logger, netInterface: env.Interface}
	if given {
		logger, err := margo.NewLogger(w, margo.LogLevels{Margo: level, Mercury: cmp.Or(mercuryLevels[level], level)})
		if err != nil || level == "" {
			return nil, Usagef("invalid --log-level %q: one of %s", level, strings.Join(logLevels, ", "))
		}
		l.logger, l.level = logger, level
	}
	return context.WithValue(ctx, loggingKey{}, l), nil
}

// LoggerOf returns the logger of --log-level, nil without that option.
func LoggerOf(ctx context.Context) *slog.Logger {
	l, _ := ctx.Value(loggingKey{}).(logging)
	if l.level == "" {
		return nil
	}
	return l.logger
}

// LogLevelOf returns the value of --log-level, empty without that option.
func LogLevelOf(ctx context.Context) string {
	l, _ := ctx.Value(loggingKey{}).(logging)
	return l.level
}

// Logged returns cfg, or a new configuration, with the logger of --log-level, or without that option with the logger and the network
// interface that the environment names.
func Logged(ctx context.Context, cfg *cinnabar.Config) *cinnabar.Config {
	cfg = cmp.Or(cfg, &cinnabar.Config{})
	if l, ok := ctx.Value(loggingKey{}).(logging); ok {
		cfg.Logger = l.logger
		cfg.Interface = cmp.Or(cfg.Interface, l.netInterface)
	}
	return cfg
}
