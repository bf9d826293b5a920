package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What Mercury's programs print: lines of comment, then the size, a rate and, of calls, a time.
func TestParseMercury(t *testing.T) {
	got, err := parseMercury("# hg_rate v2.4.1\n# NULL RPC with 1 handle(s) in-flight\n# Size       \"Rate (ops/s)\"  \"Time (us)\"\n64          21164       47.25\n")
	if want := (figure{Usec: 47.25, MiB: 21164}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"", "# a b\n", "64 x 1\n", "64 1 x\n", "64 1\n"} {
		if _, err := parseMercury(text); err == nil {
			t.Errorf("%q was taken for a result", text)
		}
	}
}

func TestParseLatency(t *testing.T) {
	got, err := parseLatency("# Message latency v2.4.1\n# Loop 100 times from size 64 to 64 byte(s)\n# Size       Latency (us)\n64                 4.61\n")
	if want := (figure{Usec: 4.61}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, text := range []string{"", "# a\n", "64 x\n", "64\n"} {
		if _, err := parseLatency(text); err == nil {
			t.Errorf("%q was taken for a result", text)
		}
	}
}

func TestParseJSON(t *testing.T) {
	got, err := parseJSON("{\"usec_per_call\":1}\n{\"op\":\"rate\",\"usec_per_call\":9.67,\"mib_per_second\":101.02}\n")
	if want := (figure{Usec: 9.67, MiB: 101.02}); err != nil || got != want {
		t.Errorf("%+v, %v, want the last line's %+v", got, err, want)
	}
	if _, err := parseJSON(""); err == nil {
		t.Error("nothing was taken for a result")
	}
}

// Programs that are told loops measure for about as long as those that are told a time.
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
	for _, c := range cases {
		for _, p := range c.paths {
			if got := strings.Join(p.clientArgs("a:1", time.Second), " "); strings.Contains(got, "LOOPS") || strings.Contains(got, "DURATION") || strings.Contains(got, "ADDRESS") {
				t.Errorf("%s, %s: %s", c.name, p.name, got)
			}
		}
	}
}

func TestPrint(t *testing.T) {
	c := benchCase{name: "work", unit: "MiB/s", paths: []path{{name: "one"}, {name: "two"}, {name: "three"}}}
	var b bytes.Buffer
	if err := c.print(&b, [][]float64{nil, {3, 1, 2}, {6, 2}}); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(strings.TrimSpace(b.String())) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		{"#", "work"},
		{"path", "median", "MiB/s", "lowest", "highest", "ratio"},
		{"one", "not", "there"},
		{"two", "2.00", "1.00", "3.00", "1.000"},
		{"three", "4.00", "2.00", "6.00", "2.000"},
	}
	if d := cmp.Diff(got, want); d != "" {
		t.Error(d)
	}
}

// A server and a client that are shell commands: what they say, and what is told of one that fails.
func TestOne(t *testing.T) {
	s := &setting{duration: time.Millisecond, dir: t.TempDir(), out: io.Discard, log: io.Discard}
	sh := func(script string) []string { return []string{"sh", "-c", script, "sh", "ADDRESS"} }
	p := path{server: sh("echo hello; echo ready; cat"), ready: "ready", client: sh(`echo "{\"usec_per_call\":5}"; test "$1" = ready`), parse: parseJSON}
	f, err := s.one(t.Context(), p)
	if err != nil || f.Usec != 5 {
		t.Errorf("%+v, %v", f, err)
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

// The programs that have been built come before those of the same name in PATH; Mercury's are optional.
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
	if (path{client: []string{"hg_rate"}}).there() || !(path{client: []string{"rawtcp"}}).there() {
		t.Error("without Mercury in PATH its programs are there, or ours are not")
	}
}
