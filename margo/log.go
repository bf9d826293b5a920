package margo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"cinnabar/margo/internal/conf"
)

// Levels of Margo's for which slog has no name. With them the levels are, the most detailed one first: LevelTrace,
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
	return 0, argumentError("parse log level", "%q is none of trace, debug, info, warning, error, critical", name)
}

// LogLevels are the levels of a [LogHandler], by the names that Margo and Mercury have for them.
type LogLevels struct {
	// Margo is the level of the program's lines and of the engine's (margo_set_log_level): trace, debug, info, warning, error or
	// critical. Empty stands for warning.
	Margo string
	// Mercury is the level of the lines of Mercury's core, which is the subsystem "rpc" in "hg", and of the network, which is "na"
	// (HG_Set_log_level): none, fatal, error, warning, min_debug, info or debug. Empty stands for warning.
	Mercury string
	// Subsystems names the subsystems of Mercury that log, separated by commas (HG_Set_log_subsys). A subsystem that is
	// not named is logged if the one to which it belongs is; a ~ before a name excludes it: "hg,na,~rpc". Empty stands for "hg,na".
	Subsystems string
}

// defaultMargoLevel and the others are the values for which empty strings in LogLevels stand.
const (
	defaultMargoLevel    = "warning"
	defaultMercuryLevel  = "warning"
	defaultMercurySubsys = "hg,na"
)

// logRule is a parsed LogLevels.
type logRule struct {
	margo, mercury slog.Level
	subsystems     []string
}

// parse returns the rule, or an error that names the level that does not exist.
func (l LogLevels) parse() (*logRule, error) {
	margo, err := ParseLogLevel(orDefault(l.Margo, defaultMargoLevel))
	if err != nil {
		return nil, err
	}
	name := orDefault(l.Mercury, defaultMercuryLevel)
	mercury, ok := conf.LogLevel(name)
	if !ok {
		return nil, argumentError("parse log level", "log level of Mercury's layers: want %s, got %q", conf.LogLevelNames, name)
	}
	list := orDefault(l.Subsystems, defaultMercurySubsys)
	return &logRule{margo, mercury, strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })}, nil
}

// orDefault returns s, or standard if s is empty.
func orDefault(s, standard string) string {
	if s == "" {
		return standard
	}
	return s
}

// parents are the subsystems to which others belong (HG_LOG_SUBSYS_REGISTER).
var parents = map[string]string{"rpc": "hg", "hg": "hg_all", "na": "hg_all"}

// includes reports whether a subsystem is named, or belongs to one that is (hg_log_outlet_update_level).
func (r *logRule) includes(subsystem string) bool {
	for ; subsystem != ""; subsystem = parents[subsystem] {
		off, on := slices.Index(r.subsystems, "~"+subsystem), slices.Index(r.subsystems, subsystem)
		if off >= 0 || on >= 0 {
			return off < 0 || on >= 0 && on < off // the first mention counts
		}
	}
	return false
}

// level returns the level from which on lines of a subsystem are logged; "" stands for the engine and the program.
func (r *logRule) level(subsystem string) slog.Level {
	switch {
	case subsystem == "":
		return r.margo
	case r.includes(subsystem):
		return r.mercury
	}
	return math.MaxInt
}

// subsystemKey is the key of the attribute that lines of the layers below an engine have: see [cinnabar.Config].Logger.
const subsystemKey = "subsys"

// LogHandler is a [slog.Handler] that has Margo's and Mercury's levels. It drops the lines that its [LogLevels] exclude and passes the
// others to another handler, which applies its own level as well. It knows the lines of Mercury's layers by the attribute
// "subsys", which it does not pass on. Engines with loggers that share a LogHandler share its levels. It is safe for
// concurrent use.
type LogHandler struct {
	next      slog.Handler
	rule      *atomic.Pointer[logRule] // shared by the handlers that WithAttrs and WithGroup have derived
	subsystem string
	grouped   bool // WithGroup was called, so the attributes of the engine are not at the top
}

// NewLogHandler returns a LogHandler with these levels that passes lines to next. The error is an [*cinnabar.Error] of
// codes.InvalidArg that names the level that does not exist.
func NewLogHandler(next slog.Handler, levels LogLevels) (*LogHandler, error) {
	h := &LogHandler{next: next, rule: new(atomic.Pointer[logRule])}
	if err := h.SetLevels(levels); err != nil {
		return nil, err
	}
	return h, nil
}

// NewLogger returns a logger that writes lines in Margo's format, such as "[info] text", to w, with these levels. It is
// [NewLogHandler] on [NewLineHandler].
func NewLogger(w io.Writer, levels LogLevels) (*slog.Logger, error) {
	h, err := NewLogHandler(NewLineHandler(w), levels)
	if err != nil {
		return nil, err
	}
	return slog.New(h), nil
}

// SetLevels changes the levels (margo_set_log_level, HG_Set_log_level, HG_Set_log_subsys), also of the loggers that are derived from
// h. The error is that of NewLogHandler, and leaves the levels as they were.
func (h *LogHandler) SetLevels(levels LogLevels) error {
	rule, err := levels.parse()
	if err != nil {
		return err
	}
	h.rule.Store(rule)
	return nil
}

// Enabled implements [slog.Handler].
func (h *LogHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.rule.Load().level(h.subsystem) && h.next.Enabled(ctx, l)
}

// Handle implements [slog.Handler].
func (h *LogHandler) Handle(ctx context.Context, r slog.Record) error {
	if err := h.next.Handle(ctx, r); err != nil {
		return fmt.Errorf("margo: log: %w", err)
	}
	return nil
}

// WithAttrs implements [slog.Handler].
func (h *LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	if !h.grouped {
		attrs = slices.DeleteFunc(slices.Clone(attrs), func(a slog.Attr) bool {
			if a.Key != subsystemKey {
				return false
			}
			derived.subsystem = a.Value.String()
			return true
		})
	}
	if len(attrs) > 0 {
		derived.next = h.next.WithAttrs(attrs)
	}
	return &derived
}

// WithGroup implements [slog.Handler].
func (h *LogHandler) WithGroup(name string) slog.Handler {
	derived := *h
	derived.next, derived.grouped = h.next.WithGroup(name), true
	return &derived
}
