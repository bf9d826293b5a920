package margo

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/internal/logtest"
)

// parity: G85
func TestLogLevels(t *testing.T) {
	for name, level := range map[string]slog.Level{"trace": -8, "debug": -4, "info": 0, "warning": 4, "error": 8, "critical": 12} {
		if got, err := ParseLogLevel(name); err != nil || got != level || levelName(level) != name {
			t.Errorf("%s: %v, %v, and back %s", name, got, err, levelName(level))
		}
	}
	_, err := ParseLogLevel("warn")
	wantInvalid(t, err, "none of trace, debug, info, warning, error, critical")
	for level, name := range map[slog.Level]string{-100: "trace", -5: "trace", -1: "debug", 3: "info", 7: "warning", 100: "critical"} {
		if got := levelName(level); got != name {
			t.Errorf("level %d is %s, want %s", level, got, name)
		}
	}
}

// TestLogger compares lines with those of Margo's logger.
// parity: G85 T15
func TestLogger(t *testing.T) {
	var b bytes.Buffer
	h, err := NewLogHandler(NewLineHandler(&b), LogLevels{Margo: "trace"})
	must(t, err)
	log := slog.New(h)
	ctx := context.Background()
	log.Log(ctx, LevelTrace, "one")
	log.Debug("Got response: 36")
	log.Info("Server running at address ofi+tcp://127.0.0.1:1234")
	log.Warn("three", "peer", "a b", "n", 4, "msg", "own", "level", "own", "time", "own")
	log.With("k", "v").Error("four", "msg", "")
	log.WithGroup("g").With("k", "v").Log(ctx, LevelCritical, "five", "error", errors.New("x\ny"), "level", slog.LevelInfo)
	log.Info("")
	const want = `[trace] one
[debug] Got response: 36
[info] Server running at address ofi+tcp://127.0.0.1:1234
[warning] three peer="a b" n=4 msg=own level=own time=own
[error] four k=v
[critical] five g.k=v g.error="x\ny" g.level=INFO
[info]
`
	if b.String() != want {
		t.Errorf("lines:\n%swant:\n%s", &b, want)
	}
	must(t, h.SetLevels(LogLevels{Margo: "error"}))
	b.Reset()
	log.Warn("not heard")
	log.Error("heard")
	if b.String() != "[error] heard\n" {
		t.Errorf("lines: %s", &b)
	}
}

// TestTutorialLogs are the levels of Margo's tutorials: the client's lines at debug are logged at that level only.
// parity: G85
func TestTutorialLogs(t *testing.T) {
	for level, want := range map[string]string{
		"": "[error] oops", "info": "[info] Calling|[error] oops", "debug": "[info] Calling|[debug] Got response: 36|[error] oops", "critical": "",
	} {
		var lines logtest.Buffer
		log := logger(t, &lines, LogLevels{Margo: level})
		log.Info("Calling")
		log.Debug("Got response: 36")
		log.Error("oops")
		if got := strings.Join(lines.Lines(), "|"); got != want {
			t.Errorf("%s: %q", level, got)
		}
	}
}

// telling is an attribute that logs where it is formatted, to the logger that formats it.
type telling struct{ log *slog.Logger }

func (v telling) LogValue() slog.Value {
	v.log.Error("formatting")
	return slog.StringValue("told")
}

// TestLogWhileFormatting: an attribute's own methods may log to the same logger.
func TestLogWhileFormatting(t *testing.T) {
	var lines logtest.Buffer
	log := logger(t, &lines, LogLevels{})
	log.Error("outer", "value", telling{log})
	lines.Want(t, 0, "[error] formatting")
	lines.Want(t, 1, "[error] outer value=told")
	lines.End(t, 2)
}

// TestLevelsOfEngines has two engines write to one place, each with its level, and one with a logger of another make.
// parity: G85
func TestLevelsOfEngines(t *testing.T) {
	var lines logtest.Buffer
	out := NewLineHandler(&lines)
	var handlers []*LogHandler
	var loggers []*slog.Logger
	for range 2 {
		h, err := NewLogHandler(out, LogLevels{})
		must(t, err)
		handlers, loggers = append(handlers, h), append(loggers, slog.New(h).With("service", "x"))
	}
	a, b := loggers[0], loggers[1]
	must(t, handlers[0].SetLevels(LogLevels{Margo: "debug"}))
	a.Debug("from a")
	b.Debug("from b")
	b.WithGroup("g").With("k", 1, subsystemKey, "own").Warn("from b")
	lines.Want(t, 0, "[debug] from a service=x")
	lines.Want(t, 1, "[warning] from b service=x g.k=1 g.subsys=own")
	lines.End(t, 2)

	var buf logtest.Buffer
	c, err := NewLogHandler(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelInfo}), LogLevels{Margo: "debug"})
	must(t, err)
	log := slog.New(c)
	log.Debug("below the handler's own level")
	log.Info("logged")
	must(t, c.SetLevels(LogLevels{Margo: "error"}))
	log.Warn("below the level")
	buf.Want(t, 0, "msg=logged")
	buf.End(t, 1)
	wantInvalid(t, c.SetLevels(LogLevels{Margo: "loud"}), `"loud" is none of`)
	if log.Enabled(t.Context(), slog.LevelWarn) || !log.Enabled(t.Context(), slog.LevelError) {
		t.Error("levels that do not exist have changed the levels")
	}
	if _, err := NewLogHandler(c, LogLevels{Mercury: "loud"}); err == nil {
		t.Error("a handler has a level that does not exist")
	}
	failing := logger(t, errWriter{}, LogLevels{})
	if err := failing.Handler().Handle(t.Context(), slog.Record{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Handle = %v", err)
	}
}

// TestMercuryLog tries who is heard under which level and list, as C's outlets are.
// parity: H08
func TestMercuryLog(t *testing.T) {
	for _, tc := range []struct{ level, subsystems, want string }{
		{"", "", "rpc:warning na:warning"},
		{"debug", "", "rpc:debug na:debug"},
		{"DBG", "", "rpc:debug na:debug"},
		{"error", "", "rpc:error na:error"},
		{"none", "", "rpc: na:"},
		{"fatal", "", "rpc:critical na:critical"},
		{"debug", "rpc", "rpc:debug na:"},
		{"debug", "hg", "rpc:debug na:"},
		{"debug", "na", "rpc: na:debug"},
		{"debug", "hg_all", "rpc:debug na:debug"},
		{"debug", "hg_all,~rpc", "rpc: na:debug"},
		{"debug", "~rpc,hg,na", "rpc: na:debug"},
		{"debug", "rpc,~rpc", "rpc:debug na:"},
		{"debug", "~hg,rpc", "rpc:debug na:"},
		{"debug", "~hg_all", "rpc: na:"},
		{"debug", "poll", "rpc: na:"},
		{"info", "hg,na,~rpc", "rpc: na:info"},
	} {
		log := logger(t, &logtest.Buffer{}, LogLevels{Margo: "critical", Mercury: tc.level, Subsystems: tc.subsystems})
		got := "rpc:" + lowest(log.With(subsystemKey, "rpc")) + " na:" + lowest(log.With(subsystemKey, "na"))
		if got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

// lowest names the lowest of the layers' levels that is logged.
func lowest(log *slog.Logger) string {
	for _, n := range levelNames[1:] {
		if log.Enabled(context.Background(), n.level) {
			return n.name
		}
	}
	return ""
}

// TestMercuryLogOfEngine turns on the lines of an engine's network while the engine runs.
// parity: H08 H17
func TestMercuryLogOfEngine(t *testing.T) {
	var lines logtest.Buffer
	h, err := NewLogHandler(NewLineHandler(&lines), LogLevels{Mercury: "debug"})
	must(t, err)
	server := listening(t, &cinnabar.Config{Logger: slog.New(h)})
	lines.Want(t, 0, "[debug] endpoint opened", "address="+server.Addr(), `reason="it was asked for"`)
	if line := lines.Lines()[0]; strings.Contains(line, "subsys") {
		t.Errorf("the line has the attribute of the subsystem: %s", line)
	}
	wantInvalid(t, h.SetLevels(LogLevels{Mercury: "loud"}), `got "loud"`)
	must(t, h.SetLevels(LogLevels{Mercury: "debug", Subsystems: "hg"}))
	before := len(lines.Lines())
	must(t, add.Handle(server, handleAdd))
	connect := func() { // the network logs a connection
		_, err := add.Call(t.Context(), reach(t, calling(t, nil), server), addIn{})
		must(t, err)
	}
	connect()
	if got := lines.Lines(); len(got) != before {
		t.Errorf("the network has logged %q", got[before:])
	}
	must(t, h.SetLevels(LogLevels{Mercury: "debug", Subsystems: "na"}))
	connect()
	lines.Want(t, before, "[debug] connection request")
}
