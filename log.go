package cinnabar

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// Levels of Margo's that slog has no name for. In all there are, the most talkative first: LevelTrace,
// [slog.LevelDebug], [slog.LevelInfo], [slog.LevelWarn], [slog.LevelError], LevelCritical (enum margo_log_level).
const (
	LevelTrace    = slog.LevelDebug - 4
	LevelCritical = slog.LevelError + 4
)

// levelNames are Margo's names of the levels.
var levelNames = []struct {
	level slog.Level
	name  string
}{
	{LevelTrace, "trace"}, {slog.LevelDebug, "debug"}, {slog.LevelInfo, "info"},
	{slog.LevelWarn, "warning"}, {slog.LevelError, "error"}, {LevelCritical, "critical"},
}

// levelName returns the name of the nearest level that is not above l.
func levelName(l slog.Level) string {
	name := levelNames[0].name
	for _, n := range levelNames {
		if n.level <= l {
			name = n.name
		}
	}
	return name
}

// ParseLogLevel returns the level that Margo has under name: trace, debug, info, warning, error or critical.
func ParseLogLevel(name string) (slog.Level, error) {
	for _, n := range levelNames {
		if n.name == name {
			return n.level, nil
		}
	}
	return 0, argumentError("parse log level", "", "", "%q is none of trace, debug, info, warning, error, critical", name)
}

// Variables of the environment that say what is logged.
const (
	envLogLevel  = "MARGO_LOG_LEVEL"
	envHGLevel   = "HG_LOG_LEVEL"
	envHGSubsys  = "HG_LOG_SUBSYS"
	defaultLevel = slog.LevelWarn
)

// globalLevel is the level of loggers that belong to no engine. It is first what MARGO_LOG_LEVEL says.
var globalLevel = sync.OnceValue(func() *slog.LevelVar {
	v := &slog.LevelVar{}
	v.Set(defaultLevel)
	if l, err := ParseLogLevel(os.Getenv(envLogLevel)); err == nil {
		v.Set(l)
	}
	return v
})

// SetLogLevel sets the level of what [NewLogger] makes, where it belongs to no engine, and that of engines that are
// opened later (margo_set_global_log_level). Until then it is MARGO_LOG_LEVEL of the environment, or
// [slog.LevelWarn].
func SetLogLevel(level slog.Level) { globalLevel().Set(level) }

// NewLogger returns a logger that writes lines in Margo's format, "[info] text", to w, which gets each in one Write;
// attributes follow the text. As [Config].Logger it has the engine's level ([Engine.SetLogLevel]), otherwise that of
// [SetLogLevel].
func NewLogger(w io.Writer) *slog.Logger { return slog.New(newLineHandler(w)) }

// Log returns the logger for what a program has to say about this engine (margo_info and its kin): Config.Logger at the
// engine's level.
//
//	eng.Log().Debug(fmt.Sprintf("Got response: %d", out.Ret))
func (e *Engine) Log() *slog.Logger { return e.log }

// SetLogLevel sets the level below which nothing is logged by or for this engine (margo_set_log_level). With a logger of
// [NewLogger], which begins at the level of [SetLogLevel], that is all that counts; with another, its handler's own level
// counts as well. What Mercury's layers have to say has a level of its own ([Engine.SetMercuryLog]).
func (e *Engine) SetLogLevel(level slog.Level) { e.cfg.logs.level.Set(level) }

// standardLogger is the logger of an engine that is given none: silent, unless the environment asks for lines.
func standardLogger(getenv func(string) string) *slog.Logger {
	if logsByEnvironment(getenv) {
		return NewLogger(os.Stderr)
	}
	return slog.New(slog.DiscardHandler)
}

// logsByEnvironment reports whether the environment sets a log level.
func logsByEnvironment(getenv func(string) string) bool {
	return getenv(envLogLevel) != "" || getenv(envHGLevel) != ""
}

// note logs msg about peer at Warn, within the limit on lines for each host (package audit).
func (e *Engine) note(peer na.Addr, msg string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !e.log.Enabled(ctx, slog.LevelWarn) {
		return
	}
	suppressed, ok := audit.Allow(peer.Account().Host())
	if !ok {
		return
	}
	attrs = append([]slog.Attr{slog.String(logPeer, peer.String())}, attrs...)
	if suppressed > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", suppressed))
	}
	e.log.LogAttrs(ctx, slog.LevelWarn, msg, attrs...)
}

// maxLogged limits the text of an error or a panic in bytes, because it may contain arguments of a peer: a handler's error names the
// file that it does not find, and the name has a gigabyte.
const maxLogged = 4096

// logged is an error of the program, or the value of a panic, in a log line.
type logged struct{ value any }

// LogValue implements [slog.LogValuer].
func (l logged) LogValue() slog.Value {
	if text := fmt.Sprint(l.value); len(text) > maxLogged {
		return slog.StringValue(shortened(text))
	}
	return slog.AnyValue(l.value)
}

// shortened returns the first bytes of a text that is longer than maxLogged, with its length.
func shortened(text string) string {
	if len(text) <= maxLogged {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxLogged], ""), len(text))
}

// panics limits the lines about panics for each caller's host. It is a limit of its own, because other lines about the host could
// otherwise suppress the first panic.
var panics = audit.NewLimiter()

// panicked logs a panic in the program's handler or timer. Without a logger it prints the panic on standard error, as package
// net/http does. peer is the caller of the handler, and nil for a timer.
func (e *Engine) panicked(msg, rpc string, peer na.Addr, value any, stack []byte) {
	from, host := "none", hostquota.Host{}
	if peer != nil {
		from, host = peer.String(), peer.Account().Host()
	}
	suppressed, ok := panics.Allow(host)
	if !ok {
		return
	}
	if e.unlogged {
		text := strings.ReplaceAll(shortened(fmt.Sprint(value)), "\n", "\n\t") // indented, so that a line of value cannot pass for a log line
		if suppressed > 0 {
			text += fmt.Sprintf(" (and %d more panics)", suppressed)
		}
		_, _ = fmt.Fprintf(os.Stderr, "cinnabar: %s (rpc %s, peer %s): %s\n%s", msg, rpc, from, text, stack) // there is nowhere else to report a failure
		return
	}
	attrs := []any{logRPC, rpc, logPeer, from, "panic", logged{value}, "stack", string(stack)}
	if suppressed > 0 {
		attrs = append(attrs, "suppressed", suppressed)
	}
	e.log.Error(msg, attrs...)
}

// noteEnvironment warns of values that cannot be meant.
func noteEnvironment(log *slog.Logger, getenv func(string) string) {
	if name := getenv(envLogLevel); name != "" {
		if _, err := ParseLogLevel(name); err != nil {
			log.Warn("environment: "+envLogLevel+" is no level, warning is used", "value", name)
		}
	}
	if _, err := (MercuryLog{}).rule(getenv); err != nil {
		log.Warn("environment: "+envHGLevel+" is no level, nothing is logged of Mercury's layers", logError, err)
	}
}
