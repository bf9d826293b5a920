package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/rmem"
)

// commandCase has the arguments with which one command is tested as all are. In arguments, DOWN stands for an address at
// which no process listens, PORT for a port that is in use, and the other words in capitals for results of caseWords.
type commandCase struct {
	bare    int        // exit code without arguments, unless it runs
	runs    bool       // without arguments it does its work, which other fields and tests look at
	wrong   []string   // arguments that are refused with exit code 2
	many    bool       // it takes any number of arguments
	failing []string   // arguments that fail with exit code 1: no server is there, a wrong address, a port in use, no such file
	json    []string   // arguments that print JSON
	keys    string     // keys of the JSON, of the first element if it is an array
	waits   []waitCase // arguments with which it runs until it is interrupted
}

// waitCase is a command that runs until it is interrupted.
type waitCase struct {
	args  string
	ready string // pattern of a line on standard output when it runs
	code  int    // when it is interrupted
}

// Servers end by an interrupt, so that is a success; a command that had more to do has not done it.
const (
	stopped     = cli.ExitOK
	interrupted = cli.ExitSignal + int(syscall.SIGINT)
)

var commandCases = map[string]commandCase{
	"demo": {
		runs: true, wrong: []string{"a b"}, failing: []string{"no-such-file", "--device nope"},
		json: []string{"SMALL --json"}, keys: "bytes data device sha256 steps transport", waits: []waitCase{{"ENDLESS", "between processes", interrupted}},
	},
	"send": {
		bare: cli.ExitUsage, many: true, wrong: []string{"main.go", "main.go 127.0.0.1:port:", "main.go 127.0.0.1 --timeout 0s", "main.go 127.0.0.1 --protocol quick"},
		failing: []string{"main.go 127.0.0.1:1", "no-such-file 127.0.0.1", "internal 127.0.0.1", "main.go 127.0.0.1:1 --device nope"},
	},
	"recv": {
		runs: true, wrong: []string{"x", "--listen a:b:c", "--timeout -1s"}, failing: []string{"--listen 192.0.2.77:0", "--listen 127.0.0.1:PORT --dir DIR", "--dir no-such-directory", "--device nope"},
		json: nil, waits: []waitCase{{"--listen 127.0.0.1:0 --dir DIR", "waiting for files at", stopped}},
	},
	"serve-files": {
		bare: cli.ExitUsage, wrong: []string{"a b", "DIR --listen a:b:c", "DIR --overwrite"}, failing: []string{"DIR --listen 192.0.2.77:0", "DIR --listen 127.0.0.1:PORT", "no-such-directory"},
		waits: []waitCase{{"DIR --listen 127.0.0.1:0", "serving directory", stopped}},
	},
	"get": {
		bare: cli.ExitUsage, many: true, wrong: []string{"127.0.0.1", "127.0.0.1:port: a", "127.0.0.1 a --digest md5"}, failing: []string{"127.0.0.1:1 a --dir DIR", "127.0.0.1:1 a --dir no-such-directory"},
	},
	"ls": {
		bare: cli.ExitUsage, wrong: []string{"a b c", "127.0.0.1:port:"}, failing: []string{"127.0.0.1:1", "127.0.0.1:1 a --device nope"},
		json: []string{"FILES --json"}, keys: "kind mode name size time",
	},
	"devices": {
		runs: true, wrong: []string{"x", "-i 0", "-i 9", "--json --list"}, failing: []string{"--device nope", "--ib-dev nope"},
		json: []string{"--json", "-j -d cinnabar0 -i 1"},
		keys: "atomic_cap capabilities hw_ver limits max_mr_size name node_guid ports qp_types sys_image_guid transport vendor_id vendor_part_id",
	},
	"pingpong": {
		runs: true, wrong: []string{"a b", "-n 0", "-i 9", "--timeout 0s", "--odp", "--data-port 5 localhost"}, failing: []string{"-p 1 127.0.0.1", "-p PORT", "--device nope"},
		waits: []waitCase{{"-p FREE", "local address", interrupted}},
	},
	"rping": {
		bare: cli.ExitUsage, wrong: []string{"x", "-s -c", "-c", "-s --json"}, failing: []string{"-c -a 127.0.0.1 -p 1", "-s -a 127.0.0.1 -p PORT", "-s --device nope"},
		waits: []waitCase{{"-s -d -a 127.0.0.1 -p FREE", "listening on", interrupted}, {"-s -P -d -a 127.0.0.1 -p FREE", "listening on", stopped}},
	},
	"compare": {
		runs: true, wrong: []string{"x", "--size 0", "--chunk 1GiB", "--chunk 3", "--size 1TiB --chunk 4KiB"},
		json: []string{"--size 1MiB --json"}, keys: "notes rows", waits: []waitCase{{"--size 1TiB --chunk 16MiB", "between two processes", interrupted}},
	},
	"perf serve": {
		bare: cli.ExitUsage, wrong: []string{"nonsense", "a b", "ofi+tcp --classes 0", "ofi+tcp --timeout 0s", "ofi+tcp --memory x"},
		failing: []string{"ofi+tcp://127.0.0.1:PORT", "ofi+tcp://192.0.2.77:0"}, waits: []waitCase{{"ofi+tcp://127.0.0.1:0", "ofi\\+tcp://127", stopped}},
	},
	"perf rate":     perfClientCase,
	"perf bw-read":  perfClientCase,
	"perf bw-write": perfClientCase,
	"perf verbs": {
		runs: true, wrong: []string{"a b", "--latency --bandwidth", "localhost --once", "localhost --data-port 5", "--depth 0"},
		failing: []string{"127.0.0.1:1", "--listen 127.0.0.1:PORT", "--device nope"},
		waits:   []waitCase{{"--listen 127.0.0.1:0", "waiting for a client", stopped}, {"--listen 127.0.0.1:0 --once", "waiting for a client", interrupted}},
	},
	"perf registration": {
		runs: true, wrong: []string{"x", "--most 1"}, failing: []string{"--device nope"}, json: []string{"--most 4KiB --json"}, keys: "cache_registrations device locked rows",
	},
	"doctor": {
		runs: true, many: true, wrong: []string{"nonsense", "127.0.0.1:0", "ofi+tcp://host", "ucx://a:1", "--only nosuch", "--skip nosuch", "--only clock --skip clock", "DOWN --only clock", "-t 0s"},
		json: []string{"--only capabilities,seccomp --json", "--list --json --only clock"}, keys: "",
		waits: []waitCase{{"SILENT --only address --timeout 1h", "1 probe, with a time-out of 1h", interrupted}},
	},
	"info": {
		runs: true, wrong: []string{"a b", "--csv --json"}, failing: []string{"nonsense", "--log no-such-directory/log"}, json: []string{"--json", "-l -j tcp"}, keys: "chosen limits protocols unavailable",
	},
	"query": {
		bare: cli.ExitUsage, wrong: []string{"nonsense", "a b", "DOWN -p x", "DOWN -t 0s"}, failing: []string{"DOWN"},
		json: []string{"--json SERVER"}, keys: "address config handlers pools providers rpcs statistics",
	},
	"top": {
		bare: cli.ExitUsage, wrong: []string{"nonsense", "a b", "DOWN -t 0s", "SERVER --interval 1ms"}, failing: []string{"DOWN", "SERVER"},
	},
	"shutdown": {
		bare: cli.ExitUsage, wrong: []string{"nonsense", "a b", "DOWN -t 0s"}, failing: []string{"DOWN"}, json: []string{"--json MORTAL"}, keys: "address",
	},
	"call": {
		bare: cli.ExitUsage, wrong: []string{"nonsense sum", "DOWN", "DOWN sum --in x", "DOWN sum --args 5", "DOWN sum -t 0s"}, failing: []string{"DOWN sum", "SERVER nosuch"},
	},
	"ping": {
		bare: cli.ExitUsage, wrong: []string{"nonsense", "a b", "DOWN -n 0", "DOWN -i -1s", "DOWN -t 0s"}, failing: []string{"DOWN"},
		json: []string{"SERVER --json -n 1"}, keys: "address count layers max_usec mean_usec min_usec transport",
		waits: []waitCase{{"SERVER -n 1000000 -i 1h -t 1h", "handler", interrupted}},
	},
	"id":        {bare: cli.ExitUsage, wrong: []string{"a b", "a -p 65536"}},
	"token new": {runs: true, wrong: []string{"x"}},
	"wire": {
		bare: cli.ExitUsage, wrong: []string{"a b", "CAPTURE --follow 0", "CAPTURE --follow 0x"}, failing: []string{"no-such-file", "main.go", "internal", "CAPTURE --follow 99", "CAPTURE --follow nosuch"},
		json: []string{"CAPTURE --json", "CAPTURE --json --follow 1"}, keys: "destination fields operation packet protocol seconds size source time",
	},
	"mem serve": {
		bare: cli.ExitUsage, wrong: []string{"nonsense", "a b", "ofi+tcp --quota x", "ofi+tcp --longest-lease 0s"}, failing: []string{"ofi+tcp://127.0.0.1:PORT"},
		waits: []waitCase{{"ofi+tcp://127.0.0.1:0", "ofi\\+tcp://127", stopped}},
	},
	"mem alloc": {
		bare: cli.ExitUsage, wrong: []string{"nonsense 5", "DOWN", "DOWN x", "DOWN 5 --lease 0s"}, failing: []string{"DOWN 5", "LENDER 100GiB"},
		json: []string{"LENDER 5 --json"}, keys: "handle lease_seconds size token",
	},
	"mem put":    {bare: cli.ExitUsage, wrong: []string{"nonsense", "TOKEN --offset 9 main.go"}, failing: []string{"TOKEN no-such-file", "TOKEN main.go", "LOST main.go"}},
	"mem get":    {bare: cli.ExitUsage, wrong: []string{"nonsense", "TOKEN --offset 9"}, failing: []string{"TOKEN -o main.go", "LOST"}},
	"mem free":   {bare: cli.ExitUsage, wrong: []string{"nonsense", "a b"}, failing: []string{"LOST"}},
	"mem stat":   {bare: cli.ExitUsage, wrong: []string{"nonsense", "a b"}, failing: []string{"DOWN"}, json: []string{"LENDER --json"}, keys: "clients quota regions used"},
	"version":    {runs: true, wrong: []string{"x"}, json: []string{"--json"}, keys: "go mercury_protocol platform version"},
	"help":       {runs: true, wrong: []string{"nosuch", "perf nosuch"}, many: true},
	"completion": {},
}

var perfClientCase = commandCase{
	bare: cli.ExitUsage, many: true, wrong: []string{"nonsense", "DOWN --inflight 0", "DOWN --size x", "DOWN --interval -1s", "DOWN --port-file x"},
	failing: []string{"DOWN", "--port-file no-such-file"},
	json:    []string{"PERF --size 64 --count 1 --json"}, keys: "calls_per_second count inflight mib_per_second op p50_usec p99_usec size transport usec_per_call",
	waits: []waitCase{{"PERF --size 64 --duration 1h --interval 10ms", "^ +bytes", interrupted}},
}

// everyCommand calls test with each command that does something, as a sub-test.
func everyCommand(t *testing.T, test func(t *testing.T, words string, cmd *cobra.Command)) {
	t.Helper()
	known := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		words := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "cinnabar"), " ")
		if !cmd.Hidden {
			known[words] = true
			t.Run(cmd.CommandPath(), func(t *testing.T) { test(t, words, cmd) })
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newTree((&clitest.Output{}).Streams()))
	for words := range commandCases {
		if !known[words] {
			t.Errorf("the table has %q, which is no command", words)
		}
	}
}

// isGroup reports whether a command only has others, or is one that cobra makes for shells.
func isGroup(words string, cmd *cobra.Command) bool {
	return cmd.HasSubCommands() || strings.HasPrefix(words, "completion ")
}

// parity: H04
func TestHelpOfEveryCommand(t *testing.T) {
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		args := append(strings.Fields(words), "--help")
		o := clitest.WantRun(t, cli.ExitOK, args, "Usage:\n  cinnabar", "--log-level")
		if o.Err.Len() > 0 {
			t.Errorf("standard error has %q", &o.Err)
		}
		for line := range strings.Lines(o.Out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.Width {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		if !isGroup(words, cmd) && (!strings.Contains(o.Out.String(), "\nExamples:\n") || !strings.Contains(cmd.Example, "cinnabar "+words)) {
			t.Error("the help has no example of the command")
		}
		if words != "" && words != "help" {
			if other := clitest.WantRun(t, cli.ExitOK, append([]string{"help"}, strings.Fields(words)...)); other.Out.String() != o.Out.String() {
				t.Errorf("help %s prints another text:\n%s", words, &other.Out)
			}
		}
		twice := regexp.MustCompile(`\(default[^)]*\)\s*\(default`)
		if text := twice.FindString(o.Out.String()); text != "" {
			t.Errorf("two defaults of one option: %s", text)
		}
		full := cli.Streams{In: strings.NewReader(""), Out: failingWriter{syscall.ENOSPC}, Err: &o.Err}
		if code := clitest.Run(t.Context(), args, full); code != cli.ExitFailure || !strings.Contains(o.Err.String(), "no space left") {
			t.Errorf("to a full device: exit code %d, %q", code, &o.Err)
		}
	})
}

// failingWriter fails every write.
type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

// Options that several commands have are the same everywhere.
func TestOptionsOfEveryCommand(t *testing.T) {
	letters := map[string]string{"json": "j", "timeout": "t", "device": "d"}
	except := map[string][]string{"json": {"pingpong"}, "timeout": {"pingpong"}, "device": {"rping"}} // letters that rdma-core's programs use
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		wrong := append(strings.Fields(words), "--no-such-flag")
		clitest.WantRun(t, cli.ExitUsage, wrong, "unknown flag: --no-such-flag", "--help lists the options")
		clitest.WantRun(t, cli.ExitUsage, append(strings.Fields(words), "--hepl"), "did you mean --help?")
		clitest.WantRun(t, cli.ExitUsage, append(strings.Fields(words), "--log-level", "loud"), "")
		for name, letter := range letters {
			f := cmd.Flags().Lookup(name)
			if f == nil {
				continue
			}
			if slices.Contains(except[name], words) {
				letter = ""
			}
			if f.Shorthand != letter {
				t.Errorf("--%s has the letter %q, want %q", name, f.Shorthand, letter)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("--%s says %q", f.Name, f.Usage)
			}
		})
	})
}

// Names that do not exist are errors, with the name that may be meant.
func TestSuggestions(t *testing.T) {
	for args, want := range map[string]string{
		"pign":              `unknown command "pign" (did you mean ping or pingpong?); usage: cinnabar COMMAND`,
		"bench":             "did you mean perf?",
		"perf rat":          `cinnabar perf: unknown command "rat" (did you mean rate?); usage: cinnabar perf COMMAND`,
		"recv x":            `the command takes no arguments, and "x" was given; - is standard output`,
		"help sned":         `unknown command "sned" (did you mean send?)`,
		"help mem gett":     `unknown command "mem gett" (did you mean get?)`,
		"info --jsn":        "unknown flag: --jsn (did you mean --csv or --json?); cinnabar info --help lists the options",
		"nothing-like-it":   `unknown command "nothing-like-it"; usage`,
		"completion pwsh":   `unknown command "pwsh"`,
		"mem stat --timeo":  "did you mean --timeout?",
		"pingpong -x":       "unknown shorthand flag: 'x' in -x; cinnabar pingpong --help lists the options",
		"pingpong -p 99999": `--port "99999": value out of range; cinnabar pingpong --help`,
		"ping a -n x":       `--count "x": invalid syntax; cinnabar ping --help`,
	} {
		clitest.WantRun(t, cli.ExitUsage, strings.Fields(args), want)
	}
}

// caseWords replaces the words in capitals of a case.
type caseWords struct {
	t     *testing.T
	words map[string]func() string
}

func newCaseWords(t *testing.T) *caseWords {
	c := &caseWords{t: t}
	c.words = map[string]func() string{
		"DOWN":    func() string { return "ofi+tcp://127.0.0.1:1" },
		"DIR":     t.TempDir,
		"PORT":    func() string { return clitest.UsedPort(t) },
		"FREE":    func() string { return clitest.FreePort(t) },
		"SMALL":   func() string { return clitest.WriteTemp(t, "small", []byte("small")) },
		"ENDLESS": func() string { return clitest.EndlessFile(t) },
		"SERVER":  func() string { return clitest.Queried(t, nil).Addr() },
		"SILENT":  func() string { return silentServer(t) },
		"MORTAL":  func() string { return clitest.Engine(t, &cinnabar.Config{AllowRemoteShutdown: true}).Addr() },
		"PERF":    func() string { return servingPerf(t) },
		"LENDER":  func() string { return clitest.MemoryServer(t) },
		"TOKEN":   func() string { return clitest.FiveBytes(t, clitest.MemoryServer(t)) },
		"LOST":    func() string { return lostToken(t) },
		"FILES": func() string {
			p := clitest.Start(t, "serve-files", "--listen", "127.0.0.1:0", filesDir(t))
			return p.Stdout.Expect(servesFiles)[1]
		},
		"CAPTURE": func() string { return "internal/wire/testdata/captures/verbs-rxm-rxe-sum.pcap" },
	}
	return c
}

// servesFiles is the line of a serve-files that runs, with its address.
const servesFiles = `^serving directory \S+ at (\S+),`

// filesDir returns a directory with the files small and endless.
func filesDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Dir(clitest.EndlessFile(t))
	if err := os.WriteFile(filepath.Join(dir, "small"), []byte("small"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fields returns the arguments of a case for the command of these words.
func (c *caseWords) fields(words, args string) []string {
	list := append(strings.Fields(words), strings.Fields(args)...)
	for i, a := range list {
		for word, f := range c.words {
			if before, after, ok := strings.Cut(a, word); ok && (before == "" || strings.HasSuffix(before, ":")) && after == "" {
				list[i] = before + f()
			}
		}
	}
	return list
}

// silentServer returns the address of a server that accepts connections and answers nothing.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(l) })
	return "ofi+tcp://" + l.Addr().String()
}

// servingPerf returns the address of a server of perf's clients.
func servingPerf(t *testing.T) string {
	t.Helper()
	cmd := clitest.Start(t, "perf", "serve", "ofi+tcp://127.0.0.1:0")
	return cmd.Stdout.Expect(`^ofi\+tcp://127\.0\.0\.1:\d+$`)[0]
}

// lostToken returns the token of a region whose server has ended.
func lostToken(t *testing.T) string {
	t.Helper()
	e := clitest.Engine(t, nil)
	srv, err := rmem.Serve(e, rmem.Config{Quota: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	token := clitest.FiveBytes(t, e.Addr())
	if err := errors.Join(srv.Close(), e.Close()); err != nil {
		t.Fatal(err)
	}
	return token
}

// Every command that does something has a line of the table, and meets it.
func TestEveryCommand(t *testing.T) {
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		if isGroup(words, cmd) {
			if words != "" && !strings.HasPrefix(words, "completion ") {
				clitest.WantRun(t, cli.ExitUsage, append(strings.Fields(words), "nosuch"), `unknown command "nosuch"`)
			}
			return
		}
		c, ok := commandCases[words]
		if !ok {
			t.Fatal("the command has no line in the table")
		}
		w := newCaseWords(t)
		if !c.runs {
			wantSilent(t, clitest.WantRun(t, c.bare, strings.Fields(words)))
		}
		if !c.many {
			clitest.WantRun(t, cli.ExitUsage, append(strings.Fields(words), strings.Split(strings.Repeat("x", 9), "")...), "usage: cinnabar "+words)
		}
		for _, args := range c.wrong {
			wantSilent(t, clitest.WantRun(t, cli.ExitUsage, w.fields(words, args)))
		}
		for _, args := range c.failing {
			wantSilent(t, clitest.WantRun(t, cli.ExitFailure, w.fields(words, args)))
		}
		for _, args := range c.json {
			list := w.fields(words, args)
			code, o := clitest.RunProcess(t, list...) // some start a process of themselves
			if code != cli.ExitOK || o.Stderr.String() != "" {
				t.Errorf("%q: exit code %d; standard error: %q", list, code, o.Stderr)
			}
			wantJSON(t, list, []byte(o.Stdout.String()), c.keys)
		}
	})
}

// Tables and notes fit a terminal of 80 columns. Layouts that are those of other programs do not count.
func TestOutputWidth(t *testing.T) {
	for _, args := range []string{
		"demo main.go", "compare --size 1MiB", "info -l", "doctor --list", "doctor --only capabilities,seccomp,hugepages,routes", "version", "perf registration --most 4KiB", "mem stat LENDER",
		"perf rate PERF --size 64MiB --count 1 --verify", "perf rate PERF --size 8 --count 9 --clients 3 --inflight 2", "perf bw-read PERF --size 64KiB --count 9",
	} {
		list := newCaseWords(t).fields("", args)
		code, o := clitest.RunProcess(t, list...)
		if code != cli.ExitOK {
			t.Errorf("%q: exit code %d: %s", list, code, o.Stderr)
		}
		for line := range strings.Lines(o.Stdout.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.Width {
				t.Errorf("%q: %d columns: %s", list, n, line)
			}
		}
	}
}

// wantSilent fails unless a command that fails has printed one line, and no result. The line
// with the address of pingpong comes before its connection.
func wantSilent(t *testing.T, o *clitest.Output) {
	t.Helper()
	if out := o.Out.String(); out != "" && !strings.Contains(out, "local address:") {
		t.Errorf("a failure printed %q", out)
	}
	if text := o.Err.String(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "cinnabar ") {
		t.Errorf("the error is %q, want one line", text)
	}
}

// wantJSON fails unless out is JSON, one value after the other, and the first has those keys.
func wantJSON(t *testing.T, args []string, out []byte, keys string) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(out))
	for n := 0; ; n++ {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) && n > 0 {
			return
		} else if err != nil {
			t.Fatalf("%q does not print JSON: %v\n%s", args, err, out)
		}
		if list, ok := v.([]any); ok && len(list) > 0 {
			v = list[0]
		}
		object, _ := v.(map[string]any)
		var got []string
		for k := range object {
			got = append(got, k)
		}
		slices.Sort(got)
		for _, k := range strings.Fields(keys) {
			if !slices.Contains(got, k) {
				t.Errorf("%q: the keys are %q, want %q too", args, got, k)
			}
		}
	}
}

// Commands that run until they are interrupted end at once and say by their code whether something was left undone.
func TestInterruptOfEveryCommand(t *testing.T) {
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		for _, c := range commandCases[words].waits {
			p := clitest.Start(t, newCaseWords(t).fields(words, c.args)...)
			p.Stdout.Expect(c.ready)
			p.Interrupt()
			if code := p.ExitCode(); code != c.code {
				t.Errorf("%s %s: exit code %d after an interrupt, want %d: %s", words, c.args, code, c.code, p.Stderr)
			}
		}
	})
}

// A reader that goes away ends a command as it ends every program: without a word.
func TestClosedPipe(t *testing.T) {
	for _, args := range []string{"--help", "devices -v", "version", "info --json", "doctor --only routes"} {
		cmd := clitest.Exec(t, strings.Fields(args)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cli.Shut(r)
		cmd.Stdout = w
		err = errors.Join(cmd.Start(), w.Close())
		if err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if status, unix := exit.Sys().(syscall.WaitStatus); !ok || !unix || status.Signal() != syscall.SIGPIPE || stderr.Len() > 0 {
			t.Errorf("%s: %v, %q; want an end by SIGPIPE", args, err, &stderr)
		}
	}
}

// --log-level makes engines, devices and receivers log; without it they are silent.
func TestLogLevel(t *testing.T) {
	server := clitest.Queried(t, nil).Addr()
	code, o := clitest.RunProcess(t, "query", server, "--log-level", "debug")
	if code != cli.ExitOK || !strings.Contains(o.Stderr.String(), "[debug]") {
		t.Errorf("exit code %d; standard error: %q", code, o.Stderr)
	}
	if code, o = clitest.RunProcess(t, "query", server); code != cli.ExitOK || o.Stderr.String() != "" {
		t.Errorf("without the option: exit code %d; standard error: %q", code, o.Stderr)
	}
	clitest.WantRun(t, cli.ExitUsage, []string{"query", server, "--log-level", "loud"}, `invalid --log-level "loud": one of trace, debug`)
}

// The variables of Margo's environment set the log level and the network interface of the command's engines.
// parity: H08 H17
func TestEnvironment(t *testing.T) {
	server := clitest.Queried(t, nil).Addr()
	for _, tc := range []struct {
		env  string
		code int
		text string
	}{
		{"HG_LOG_LEVEL=debug", cli.ExitOK, "[debug] endpoint opened"},
		{"MARGO_LOG_LEVEL=loud", cli.ExitUsage, `MARGO_LOG_LEVEL: parse log level: HG_INVALID_ARG: "loud" is none of`},
		{"FI_TCP_IFACE=nosuch0", cli.ExitFailure, `there is no interface "nosuch0"`},
	} {
		args := []string{"info", "tcp"}
		if strings.HasPrefix(tc.env, "HG") {
			args = []string{"query", server}
		}
		var stderr strings.Builder
		cmd := clitest.Exec(t, args...)
		cmd.Env = append(cmd.Environ(), tc.env)
		cmd.Stderr = &stderr
		_ = cmd.Run() // the exit code is compared
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(stderr.String(), tc.text) {
			t.Errorf("%s: exit code %d, want %d; standard error %q, want %q in it", tc.env, code, tc.code, stderr.String(), tc.text)
		}
	}
}

// Commands take the name of a server's host.
func TestServersByName(t *testing.T) {
	server := clitest.Queried(t, &cinnabar.Config{AllowRemoteShutdown: true})
	name := strings.Replace(server.Addr(), "127.0.0.1", "localhost", 1)
	clitest.WantRun(t, cli.ExitOK, []string{"query", name}, server.Addr()+"\n")
	clitest.WantRun(t, cli.ExitOK, []string{"perf", "rate", strings.Replace(servingPerf(t), "127.0.0.1", "localhost", 1), "--size", "8", "--count", "2"}, "rate over tcp")
	clitest.WantRun(t, cli.ExitOK, []string{"mem", "stat", strings.Replace(clitest.MemoryServer(t), "127.0.0.1", "localhost", 1)}, "lent")
	clitest.WantRun(t, cli.ExitOK, []string{"shutdown", name})
}
