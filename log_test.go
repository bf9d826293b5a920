package cinnabar

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"cinnabar/codes"
)

// parity: G85
func TestLogLevels(t *testing.T) {
	for name, level := range map[string]slog.Level{"trace": -8, "debug": -4, "info": 0, "warning": 4, "error": 8, "critical": 12} {
		if got, err := ParseLogLevel(name); err != nil || got != level || levelName(level) != name {
			t.Errorf("%s: %v, %v, and back %s", name, got, err, levelName(level))
		}
	}
	_, err := ParseLogLevel("warn")
	wantCode(t, err, codes.InvalidArg, "none of trace, debug, info, warning, error, critical")
	for level, name := range map[slog.Level]string{-100: "trace", -5: "trace", -1: "debug", 3: "info", 7: "warning", 100: "critical"} {
		if got := levelName(level); got != name {
			t.Errorf("level %d is %s, want %s", level, got, name)
		}
	}
}

// TestLogger compares lines with those of Margo's logger.
// parity: G85 T15
func TestLogger(t *testing.T) {
	SetLogLevel(LevelTrace)
	t.Cleanup(func() { SetLogLevel(defaultLevel) })
	var b bytes.Buffer
	log := NewLogger(&b)
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
	SetLogLevel(slog.LevelError)
	b.Reset()
	log.Warn("not heard")
	log.Error("heard")
	if b.String() != "[error] heard\n" {
		t.Errorf("lines: %s", &b)
	}
}

// TestTutorialLogs are the levels of Margo's tutorials: what the client says at debug is heard at that level only.
// parity: G85
func TestTutorialLogs(t *testing.T) {
	SetLogLevel(defaultLevel)
	for _, tc := range []struct{ global, own, want string }{
		{"", "", "[error] oops"},
		{"info", "", "[info] Calling|[error] oops"},
		{"debug", "", "[info] Calling|[debug] Got response: 36|[error] oops"},
		{"debug", "error", "[error] oops"},
		{"critical", "debug", "[info] Calling|[debug] Got response: 36|[error] oops"},
		{"critical", "", ""},
	} {
		if tc.global != "" {
			level, err := ParseLogLevel(tc.global)
			must(t, err)
			SetLogLevel(level)
		}
		var lines logLines
		e := calling(t, &Config{Logger: NewLogger(&lines)})
		SetLogLevel(defaultLevel) // an engine has the level of the time when it was opened
		if tc.own != "" {
			level, err := ParseLogLevel(tc.own)
			must(t, err)
			e.SetLogLevel(level)
		}
		e.Log().Info("Calling")
		e.Log().Debug("Got response: 36")
		e.Log().Error("oops")
		if got := strings.Join(lines.lines(), "|"); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
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
	SetLogLevel(defaultLevel)
	var lines logLines
	log := NewLogger(&lines)
	log.Error("outer", "value", telling{log})
	lines.want(t, 0, "[error] formatting")
	lines.want(t, 1, "[error] outer value=told")
	lines.end(t, 2)
}

// TestLevelsOfEngines has two engines on one logger, each with its level, and one on a logger of another make.
// parity: G85
func TestLevelsOfEngines(t *testing.T) {
	SetLogLevel(defaultLevel)
	var lines logLines
	log := NewLogger(&lines).With("service", "x")
	a, b := calling(t, &Config{Logger: log}), calling(t, &Config{Logger: log})
	a.SetLogLevel(slog.LevelDebug)
	a.Log().Debug("from a")
	b.Log().Debug("from b")
	b.Log().WithGroup("g").With("k", 1).Warn("from b")
	lines.want(t, 0, "[debug] from a service=x")
	lines.want(t, 1, "[warning] from b service=x g.k=1")
	lines.end(t, 2)

	var buf logLines
	c := calling(t, &Config{Logger: slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	c.SetLogLevel(slog.LevelDebug)
	c.Log().Debug("below the handler's own level")
	c.Log().Info("heard")
	c.SetLogLevel(slog.LevelError)
	c.Log().Warn("below the engine's level")
	buf.want(t, 0, "msg=heard")
	buf.end(t, 1)
	t.Setenv(envLogLevel, "")
	t.Setenv(envHGLevel, "")
	silent := calling(t, nil)
	silent.SetLogLevel(LevelTrace)
	if silent.Log().Enabled(t.Context(), LevelCritical) {
		t.Error("an engine without a logger logs")
	}
}

// TestLogOfEnvironment has the environment turn on the logging of a program that has no logger.
// parity: H08 G85
func TestLogOfEnvironment(t *testing.T) {
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	if standardLogger(getenv).Enabled(t.Context(), LevelCritical) {
		t.Error("logging is on without being asked for")
	}
	for _, name := range []string{envLogLevel, envHGLevel} {
		env = map[string]string{name: "error"}
		if _, ok := standardLogger(getenv).Handler().(*lineHandler); !ok {
			t.Errorf("%s does not turn logging on", name)
		}
	}
	var lines logLines
	env = map[string]string{envLogLevel: "loud", envHGLevel: "loud"}
	noteEnvironment(NewLogger(&lines), getenv)
	lines.want(t, 0, "[warning] environment: MARGO_LOG_LEVEL is no level", "value=loud")
	lines.want(t, 1, "[warning] environment: HG_LOG_LEVEL is no level", "want none, fatal, error, warning, min_debug, info or debug")
	if l := newLogs(NewLogger(&lines), MercuryLog{}, getenv); l.layer("na").Enabled(t.Context(), LevelCritical) {
		t.Error("a level that is none is not none")
	}
}

// TestMercuryLog tries who is heard under which level and list, as C's outlets are.
// parity: H08
func TestMercuryLog(t *testing.T) {
	none := map[string]string{}
	for _, tc := range []struct {
		m       MercuryLog
		env     map[string]string
		foreign bool   // a logger that is not NewLogger's and lets debug through
		want    string // which of rpc and na are heard at which level
	}{
		{MercuryLog{}, none, false, "rpc:warning na:warning"},
		{MercuryLog{}, none, true, "rpc:debug na:debug"},
		{MercuryLog{Level: "debug"}, none, false, "rpc:debug na:debug"},
		{MercuryLog{Level: "DBG"}, none, false, "rpc:debug na:debug"},
		{MercuryLog{Level: "error"}, none, true, "rpc:error na:error"},
		{MercuryLog{Level: "none"}, none, true, "rpc: na:"},
		{MercuryLog{Level: "fatal"}, none, false, "rpc:critical na:critical"},
		{MercuryLog{Level: "debug", Subsystems: "rpc"}, none, false, "rpc:debug na:"},
		{MercuryLog{Level: "debug", Subsystems: "hg"}, none, false, "rpc:debug na:"},
		{MercuryLog{Level: "debug", Subsystems: "na"}, none, false, "rpc: na:debug"},
		{MercuryLog{Level: "debug", Subsystems: "hg_all"}, none, false, "rpc:debug na:debug"},
		{MercuryLog{Level: "debug", Subsystems: "hg_all,~rpc"}, none, false, "rpc: na:debug"},
		{MercuryLog{Level: "debug", Subsystems: "~rpc,hg,na"}, none, false, "rpc: na:debug"},
		{MercuryLog{Level: "debug", Subsystems: "rpc,~rpc"}, none, false, "rpc:debug na:"},
		{MercuryLog{Level: "debug", Subsystems: "~hg,rpc"}, none, false, "rpc:debug na:"},
		{MercuryLog{Level: "debug", Subsystems: "~hg_all"}, none, false, "rpc: na:"},
		{MercuryLog{Level: "debug", Subsystems: "poll"}, none, false, "rpc: na:"},
		{MercuryLog{}, map[string]string{envHGLevel: "debug", envHGSubsys: "rpc"}, false, "rpc:debug na:"},
		{MercuryLog{}, map[string]string{envHGLevel: "info", envHGSubsys: "hg,na,~rpc"}, false, "rpc: na:info"},
		{MercuryLog{Level: "error"}, map[string]string{envHGLevel: "debug", envHGSubsys: "rpc"}, false, "rpc:error na:"},
	} {
		log := NewLogger(&logLines{})
		if tc.foreign {
			log = slog.New(slog.NewTextHandler(&logLines{}, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		l := newLogs(log, tc.m, func(name string) string { return tc.env[name] })
		got := "rpc:" + heardFrom(l.layer("rpc")) + " na:" + heardFrom(l.layer("na"))
		if got != tc.want {
			t.Errorf("%+v, %v: %s, want %s", tc.m, tc.env, got, tc.want)
		}
	}
}

// heardFrom names the lowest of the layers' levels that is heard.
func heardFrom(log *slog.Logger) string {
	for _, n := range levelNames[1:] {
		if log.Enabled(context.Background(), n.level) {
			return n.name
		}
	}
	return ""
}

// TestSetMercuryLog turns on what an engine's network says, while the engine runs.
// parity: H08 H17
func TestSetMercuryLog(t *testing.T) {
	var lines logLines
	server := listening(t, &Config{Logger: NewLogger(&lines), MercuryLog: MercuryLog{Level: "debug"}})
	lines.want(t, 0, "[debug] endpoint opened", "address="+server.Addr(), `reason="it was asked for"`)
	err := server.SetMercuryLog(MercuryLog{Level: "loud"})
	wantCode(t, err, codes.InvalidArg, `got "loud"`)
	must(t, server.SetMercuryLog(MercuryLog{Level: "debug", Subsystems: "hg"}))
	before := len(lines.lines())
	must(t, add.Handle(server, handleAdd))
	callAdd(t, reach(t, calling(t, nil), server)) // a connection, of which na has something to say
	if got := lines.lines(); len(got) != before {
		t.Errorf("na is heard: %q", got[before:])
	}
	must(t, server.SetMercuryLog(MercuryLog{Level: "debug", Subsystems: "na"}))
	callAdd(t, reach(t, calling(t, nil), server))
	lines.want(t, before, "[debug] connection request")
	_, err = Listen(network, &Config{MercuryLog: MercuryLog{Level: "loud"}})
	wantCode(t, err, codes.InvalidArg, "MercuryLog", `got "loud"`)
}
