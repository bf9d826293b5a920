package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/bench/internal/record"
)

// TestMain is the command where the tests start it as one.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role, os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// TestParseMercury reads the lines of comment of Mercury's programs, then the size, a rate and a time.
func TestParseMercury(t *testing.T) {
	for _, tt := range []struct {
		text string
		want record.Round
	}{
		{"# hg_rate v2.4.1\n# NULL RPC with 1 handle(s) in-flight\n# Size       \"Rate (ops/s)\"  \"Time (us)\"\n64          21164       47.25\n", record.Round{Usec: 47.25}},
		{"# Size       \"Bandwidth (MB/s)\"  \"Time (us)\"\n1048576          5242.88       200\n", record.Round{Usec: 200, MiB: 5000}},
		{"# Size       \"Bandwidth (MiB/s)\"  \"Time (us)\"\n1048576          5000.5       200\n", record.Round{Usec: 200, MiB: 5000.5}},
	} {
		if got, err := parseMercury(tt.text); err != nil || got != tt.want {
			t.Errorf("%+v, %v, want %+v", got, err, tt.want)
		}
	}
	for _, text := range []string{"", "# a b\n", "64 x 1\n", "64 1 x\n", "64 1\n", "64 1 0\n", "64 1 NaN\n"} {
		if _, err := parseMercury(text); err == nil {
			t.Errorf("%q was taken for a result", text)
		}
	}
}

func TestParseLatency(t *testing.T) {
	got, err := parseLatency("# Message latency v2.4.1\n# Loop 100 times from size 64 to 64 byte(s)\n# Size       Latency (us)\n64                 4.61\n")
	if want := (record.Round{Usec: 4.61}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"", "# a\n", "64 x\n", "64\n", "64 0\n"} {
		if _, err := parseLatency(text); err == nil {
			t.Errorf("%q was taken for a result", text)
		}
	}
}

func TestParseJSON(t *testing.T) {
	got, err := parseJSON("{\"usec_per_call\":1}\n{\"op\":\"rate\",\"usec_per_call\":9.67,\"mib_per_second\":101.02,\"p50_usec\":9,\"p99_usec\":12.5}\n")
	if want := (record.Round{Usec: 9.67, MiB: 101.02, P50: 9, P99: 12.5}); err != nil || got != want {
		t.Errorf("%+v, %v, want the last line's %+v", got, err, want)
	}
	for _, text := range []string{"", "{}", "[]"} {
		if _, err := parseJSON(text); err == nil {
			t.Errorf("%q was taken for a result", text)
		}
	}
}

// TestClientArgs checks that programs which take a number of loops measure for about as long as those that take a time.
func TestClientArgs(t *testing.T) {
	for _, tt := range []struct {
		path path
		d    time.Duration
		want string
	}{
		{path{client: strings.Fields("x rate ADDRESS --duration DURATION")}, time.Second, "rate a:1 --duration 1s"},
		{path{client: strings.Fields("x -l LOOPS"), loops: 1500}, 2 * time.Second, "-l 3000"},
		{path{client: strings.Fields("x -l LOOPS"), loops: 60}, time.Millisecond, "-l 10"},
	} {
		if got := strings.Join(tt.path.clientArgs("a:1", tt.d), " "); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	names := map[string]bool{}
	for _, c := range allCases() {
		if names[c.name()] {
			t.Errorf("two cases have the name %s", c.name())
		}
		names[c.name()] = true
		for _, p := range c.paths {
			if got := strings.Join(p.clientArgs("a:1", time.Second), " "); strings.Contains(got, "LOOPS") || strings.Contains(got, "DURATION") || strings.Contains(got, "ADDRESS") {
				t.Errorf("%s, %s: %s", c.name(), p.name, got)
			}
		}
	}
}

// TestPrint prints medians and all rounds, and nothing in place of figures that a program does not print.
func TestPrint(t *testing.T) {
	c := &benchCase{op: opRead, transport: overTCP, size: 64, inflight: 1, clients: 1}
	var b bytes.Buffer
	err := printTable(&b, c, ", here", []record.Result{
		{Path: "one"},
		{Path: "two", Rounds: []record.Round{{Usec: 9, MiB: 3}, {Usec: 9, MiB: 1}, {Usec: 9, MiB: 2}}},
		{Path: "three", Rounds: []record.Round{{Usec: 9, MiB: 6, P50: 4, P99: 8}, {Usec: 9, MiB: 2, P50: 6, P99: 9}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(strings.TrimSpace(b.String())) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		{"#", "ofi+tcp", "bw-read", "64", "bytes,", "1", "in", "flight,", "here"},
		{"path", "MiB/s", "ratio", "p50", "usec", "p99", "usec", "rounds"},
		{"one", "not", "there"},
		{"two", "2.00", "1.000", "-", "-", "3.00", "1.00", "2.00"},
		{"three", "4.00", "2.000", "5.00", "8.50", "6.00", "2.00"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// results returns one round of each path of c, of which ours has the figures of r and Mercury's those of m.
func results(c *benchCase, load string, r, m record.Round) (list []record.Result) {
	for name, x := range map[string]record.Round{pathOurs: r, pathMercury: m} {
		list = append(list, record.Result{Op: c.op, Transport: c.transport, Path: name, Load: load, Size: int64(c.size), Inflight: c.inflight, Clients: c.clients, Rounds: []record.Round{x}})
	}
	return list
}

// TestVerdicts finds each goal met by figures that meet it, missed by figures just beyond it, and neither without figures.
func TestVerdicts(t *testing.T) {
	measured := func(call, inflight, bulk, tail, fair, busy, idle float64) *setting {
		s := &setting{idle: []record.Idle{{Transport: overTCP, Percent: 2 * idle}, {Transport: overSM, Percent: 2 * idle}}}
		for _, c := range allCases() {
			quiet := record.Round{Usec: 10 * call, P50: 10, P99: 10 * tail, MiB: 100 * bulk}
			switch {
			case c.clients > 1:
				quiet.P99 = fair * 10 * float64(c.clients) / 2
			case c.inflight > 1:
				quiet.Usec = 10 * inflight
			}
			reference := record.Round{Usec: 10, MiB: 100}
			s.results = append(s.results, results(c, record.Quiet, quiet, reference)...)
			s.results = append(s.results, results(c, record.Busy, record.Round{Usec: 10 * busy}, reference)...)
		}
		return s
	}
	good := measured(0.8, 0.65, 1, 5, 5, 1.3, 0.1).verdicts(allCases())
	const calls, bulk, fair = 3 + 2, 12, 4
	if want := 4 + 3 + calls + bulk + fair + 2; len(good) != want {
		t.Errorf("%d goals, want %d", len(good), want)
	}
	for _, v := range good {
		if !v.met() || !strings.HasPrefix(v.String(), "met ") {
			t.Errorf("%v", v)
		}
	}
	for _, v := range measured(1.01, 0.81, 0.99, 5.1, 5.1, 1.31, 0.11).verdicts(allCases()) {
		if v.met() || !strings.HasPrefix(v.String(), "missed ") {
			t.Errorf("%v", v)
		}
	}
	for _, v := range new(setting).verdicts(allCases()) {
		if v.met() || !strings.HasPrefix(v.String(), "not measured ") {
			t.Errorf("%v", v)
		}
	}
	var b bytes.Buffer
	if err := (&setting{out: &b}).judge(); err == nil || strings.Count(b.String(), "\n") != len(good)+2 {
		t.Errorf("%v after\n%s", err, b.String())
	}
}

// TestOne measures with shell commands as server and client, and repeats the error text of a client that fails.
func TestOne(t *testing.T) {
	s := &setting{duration: time.Millisecond, dir: t.TempDir(), out: io.Discard, log: io.Discard}
	sh := func(script string) []string { return []string{"sh", "-c", script, "sh", "ADDRESS"} }
	p := &path{server: sh("echo hello; echo ready; cat"), ready: "ready", client: sh(`echo "{\"usec_per_call\":5}"; test "$1" = ready`), parse: parseJSON}
	r, err := s.one(t.Context(), p)
	if err != nil || r.Usec != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	p.client = sh("echo out of order >&2; exit 1")
	if _, err := s.one(t.Context(), p); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("a client that fails: %v", err)
	}
	p.server = sh("true")
	if _, err := s.one(t.Context(), p); err == nil || !strings.Contains(err.Error(), "ended before it served") {
		t.Errorf("a server that ends: %v", err)
	}
}

// TestMeasureCase measures a case of shell commands under both loads, and leaves no busy process, also if the case fails.
func TestMeasureCase(t *testing.T) {
	var out, lines bytes.Buffer
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GORACE", "atexit_sleep_ms=0") // a process of the race detector sleeps for a second at its end otherwise
	s := &setting{rounds: 3, duration: time.Millisecond, dir: t.TempDir(), self: self, out: &out, log: io.Discard, lines: &lines}
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	p := path{name: "x", server: sh("echo ready; cat"), ready: "ready", client: sh(`echo "{\"usec_per_call\":5}"`), parse: parseJSON}
	c := &benchCase{op: opRate, transport: overTCP, size: 64, inflight: 1, clients: 1, paths: []path{p}}
	if err := record.Write(&lines, s.machine(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := s.measureCase(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	f, err := record.Read("lines", &lines)
	if err != nil || len(f.Results) != 2 || len(f.Results[0].Rounds) != 3 || f.Results[0].Load != record.Quiet || f.Results[1].Load != record.Busy {
		t.Errorf("recorded %+v, %v", f, err)
	}
	if !strings.Contains(out.String(), "beside a busy process") || !strings.Contains(out.String(), "5.00 5.00 5.00") {
		t.Errorf("printed\n%s", out.String())
	}
	c.paths[0].client = sh("exit 1")
	if s.measureCase(t.Context(), c) == nil {
		t.Error("a case that fails succeeds")
	}
}

// TestDearArgs gives the options to cinnabar's processes only, and counts their delays.
func TestDearArgs(t *testing.T) {
	var out bytes.Buffer
	s := &setting{late: 100 * time.Microsecond, out: &out}
	if got := strings.Join(s.dearArgs(&path{client: []string{"cinnabar", "perf"}}), " "); got != "--late 100µs --toll 0s" {
		t.Errorf("options %q", got)
	}
	if got := s.dearArgs(&path{client: []string{"hg_rate"}}); got != nil {
		t.Errorf("options %q of a program in C", got)
	}
	if err := s.printNotes([]record.Result{{Rounds: []record.Round{{Delayed: 3}, {Delayed: 4}}}}, true, 0.5, 0.25, 0.01); err != nil {
		t.Error(err)
	}
	want := "# the busy process had 50 % of a processor\n# disturbed: other programs used 0.25 processors\n# -late and -toll acted 7 times in the clients\n"
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if (&setting{}).dearArgs(&path{client: []string{"cinnabar"}}) != nil {
		t.Error("options without -late and -toll")
	}
}

// TestUse subtracts the time of this program's processes from that of the machine.
func TestUse(t *testing.T) {
	before := use{at: time.Unix(0, 0), total: time.Minute, known: true}
	after := use{at: time.Unix(10, 0), total: time.Minute + 12*time.Second, ours: 7 * time.Second, stolen: 2 * time.Second, known: true}
	if others, stolen := after.since(before); others != 0.5 || stolen != 0.2 {
		t.Errorf("others used %g processors and %g were withheld, want 0.5 and 0.2", others, stolen)
	}
	after.known = false
	if others, stolen := after.since(before); others != 0 || stolen != 0 {
		t.Errorf("%g and %g of a system that does not say", others, stolen)
	}
	if u := processorUse(); u.known && u.total <= 0 {
		t.Errorf("%+v", u)
	}
}

// TestBusyProcess computes until it ends, and dies with the context, as after an interrupt.
func TestBusyProcess(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &setting{self: self, log: io.Discard}
	b, err := s.startBusy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if used, err := b.end(); err != nil || used <= 0 {
		t.Errorf("%v used, %v", used, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if b, err = s.startBusy(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if b.cmd.Wait() == nil {
		t.Error("a busy process outlived its context")
	}
}

// TestIdle measures idle engines for a moment.
func TestIdle(t *testing.T) {
	if _, err := processorTime(); err != nil {
		t.Skipf("this system does not report the processor time of a process: %v", err)
	}
	var b bytes.Buffer
	if err := runIdle(overTCP, 10*time.Millisecond, &b); err != nil {
		t.Fatal(err)
	}
	var i record.Idle
	if err := json.Unmarshal(b.Bytes(), &i); err != nil || i.Transport != overTCP || i.Seconds < 0.01 || i.Percent < 0 {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestWakePrice measures on machines with two processors.
func TestWakePrice(t *testing.T) {
	list, err := wakePrice()
	if err != nil {
		t.Skipf("the price of a wake-up cannot be measured here: %v", err)
	}
	for i, w := range list {
		if w.P50 <= 0 || w.P90 < w.P50 || i > 0 && w.Idle <= list[i-1].Idle {
			t.Errorf("%+v", w)
		}
	}
	if len(list) != 3 {
		t.Errorf("%d prices, want 3", len(list))
	}
}

// TestFind prefers built programs to those of the same name in PATH, and does without Mercury's.
func TestFind(t *testing.T) {
	s := &setting{dir: t.TempDir()}
	if got := s.find("sh"); got != "sh" {
		t.Errorf("found %s", got)
	}
	if err := os.WriteFile(s.program("sh"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := s.find("sh"); got != s.program("sh") {
		t.Errorf("found %s", got)
	}
	t.Setenv("PATH", s.dir)
	if (&path{client: []string{"hg_rate"}}).available() || !(&path{client: []string{"rawtcp"}}).available() {
		t.Error("without Mercury in PATH its programs are available, or ours are not")
	}
}
