package perfverbs

import (
	"encoding/json"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/invariants"
	"cinnabar/internal/testproc"
)

// startServer starts a server of perf verbs and returns where it waits.
func startServer(t *testing.T, args ...string) (*testproc.Process, string) {
	t.Helper()
	cmd := clitest.Start(t, append([]string{"perf", "verbs", "--listen", "127.0.0.1:0"}, args...)...)
	return cmd, cmd.Stdout.Expect(`127\.0\.0\.1:\d+`)[0]
}

// runLines runs a client with --json and returns what it measured.
func runLines(t *testing.T, args ...string) []line {
	t.Helper()
	code, o := clitest.RunProcess(t, append([]string{"perf", "verbs", "--json"}, args...)...)
	if code != 0 {
		t.Fatalf("%v: exit code %d: %s", args, code, o.Stderr)
	}
	var got []line
	for text := range strings.Lines(o.Stdout.String()) {
		l := line{bandwidthLine: &bandwidthLine{}, latencyLine: &latencyLine{}}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		got = append(got, l)
	}
	return got
}

// parity: V76 V77
func TestTwoProcesses(t *testing.T) {
	for _, tt := range []struct {
		args  string
		sizes []int64
	}{
		{"--op write --size 1,64,64KiB --count 100", []int64{1, 64, 65536}},
		{"--op write-imm --size 16KiB..64KiB --count 50 --depth 7", []int64{16384, 32768, 65536}},
		{"--op send --size 1,1000,100000 --count 300 --depth 16 --inline 64", []int64{1, 1000, 100000}},
		{"--op send --size 4KiB --count 100 --events --signal-every 5", []int64{4096}},
		{"--op read --size 64,64KiB --count 30", []int64{64, 65536}},
		{"--op atomic --count 30", []int64{8}},
		{"--op write --depth 1 --duration 10ms", []int64{65536}},
		{"--latency --op write --size 1,64,4KiB --count 20", []int64{1, 64, 4096}},
		{"--latency --op write --size 3,4KiB --count 20 --inline 0", []int64{3, 4096}},
		{"--latency --op write-imm --count 20 --depth 3", []int64{64}},
		{"--latency --op send --size 1..4 --count 20 --depth 2 --signal-every 2", []int64{1, 2, 4}},
		{"--latency --op send --duration 10ms --events", []int64{64}},
		{"--latency --op read --count 20", []int64{64}},
		{"--latency --op atomic --count 20 --events", []int64{8}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := strings.Fields(tt.args)
			server, address := startServer(t, append(args, "--once")...)
			lines := runLines(t, append(args, address)...)
			clitest.WantOK(t, server)
			if len(lines) != len(tt.sizes) {
				t.Fatalf("%d lines, want %d", len(lines), len(tt.sizes))
			}
			for i, l := range lines {
				checkLine(t, l, tt.sizes[i], strings.Contains(tt.args, "--latency"))
			}
		})
	}
}

// checkLine checks that a line says what was asked for, and its numbers fit each other.
func checkLine(t *testing.T, l line, size int64, latency bool) {
	t.Helper()
	if l.SizeBytes != size || l.Count < 1 || l.Seconds <= 0 || l.Device != cli.SoftwareDevice || l.Transport != "iWARP" {
		t.Errorf("%+v, want size %d on %s", l, size, cli.SoftwareDevice)
	}
	if !latency {
		if b := l.bandwidthLine; l.Measure != "bandwidth" || b.OperationsPerSecond <= 0 || math.Abs(b.OperationsPerSecond*l.Seconds/float64(l.Count)-1) > 0.01 {
			t.Errorf("%+v %+v", l, b)
		}
		return
	}
	if v := l.latencyLine; l.Measure != "latency" || v.MinUsec <= 0 || v.TypicalUsec < v.MinUsec || v.P99Usec < v.TypicalUsec || v.MaxUsec < v.P99Usec || v.ClockUsec < 0 {
		t.Errorf("%+v %+v", l, v)
	}
}

// What is printed is what was measured: 1 MiB, a thousand times, in MiB/s, against the clock on the wall.
// parity: V76 V77
func TestUnits(t *testing.T) {
	count := 1000
	if invariants.Race {
		count = 100
	}
	args := []string{"--op", "write", "--size", "1MiB", "--count", strconv.Itoa(count)}
	server, address := startServer(t, append(args, "--once")...)
	before := time.Now()
	code, client := clitest.RunProcess(t, append([]string{"perf", "verbs", address}, args...)...)
	wall := time.Since(before).Seconds()
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, client.Stderr)
	}
	clitest.WantOK(t, server)
	m := regexp.MustCompile(`(?m)^ +bytes +operations +seconds +MiB/s +operations/s\n +1048576 +(\d+) +([0-9.]+) +([0-9.]+) +([0-9.]+)$`).FindStringSubmatch(client.Stdout.String())
	if m == nil {
		t.Fatalf("no result with units in\n%s", client.Stdout)
	}
	v := clitest.Numbers(t, m)
	operations, seconds, mib, rate := v[0], v[1], v[2], v[3]
	if operations != float64(count) || mib != rate {
		t.Errorf("%s: %d operations of 1 MiB are as many MiB/s as operations/s", m[0], count)
	}
	if product := mib * seconds; math.Abs(product/operations-1) > 0.01 {
		t.Errorf("%s: %.2f MiB in all, want %d", m[0], product, count)
	}
	// The process does more than that: it starts, registers memory and connects. A wrong unit is a factor of a thousand.
	if seconds > wall || seconds < wall/1500 {
		t.Errorf("%s: in a process of %.6f s", m[0], wall)
	}
}

// Both sides name every option that differs, and end.
// parity: V76 V78
func TestMismatch(t *testing.T) {
	for _, tt := range []struct{ server, client, want string }{
		{"--op write", "--op read", "op"}, {"--op send --latency", "--op send", "measure,size,inline"},
		{"--size 64", "--size 64,128", "size"}, {"--depth 8", "--depth 16", "depth"},
		{"--count 10", "--count 20", "count"}, {"--count 10", "--duration 2s", "count,duration"},
		{"--duration 1s", "--duration 2s", "duration"}, {"--inline 7", "--inline 8", "inline"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			server, address := startServer(t, append(strings.Fields(tt.server), "--once")...)
			code, client := clitest.RunProcess(t, append(strings.Fields("perf verbs "+address), strings.Fields(tt.client)...)...)
			for side, got := range map[string]struct {
				code int
				text string
			}{"client": {code, client.Stderr.String()}, "server": {server.ExitCode(), server.Stderr.String()}} {
				if got.code != 1 || !strings.Contains(got.text, "give both sides the same options") {
					t.Errorf("%s: exit code %d: %s", side, got.code, got.text)
				}
				for name := range strings.SplitSeq(tt.want, ",") {
					if !strings.Contains(got.text, " "+name+` is "`) {
						t.Errorf("%s does not name %s: %s", side, name, got.text)
					}
				}
			}
		})
	}
}

// A stranger does no harm, and without --once neither does a client with other options, or one that is killed.
func TestServerThatStays(t *testing.T) {
	server, address := startServer(t, "--op", "send", "--size", "64", "--duration", "20ms")
	stranger, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if code, _ := clitest.RunProcess(t, "perf", "verbs", address, "--op", "write"); code != 1 {
		t.Errorf("a client with other options ends with %d", code)
	}
	for range 2 {
		runLines(t, address, "--op", "send", "--size", "64", "--duration", "20ms")
	}
	server.Interrupt()
	if code := server.ExitCode(); code != cli.ExitOK {
		t.Errorf("exit code %d after an interrupt: %s", code, server.Stderr)
	}
	for _, text := range []string{"is it a cinnabar perf verbs?", `op is "send" here, "write" there`} {
		if !strings.Contains(server.Stderr.String(), text) {
			t.Errorf("no %q in %s", text, server.Stderr)
		}
	}
}

// longRuns are measurements that go on until something happens.
var longRuns = []string{"--op write", "--op send", "--op read", "--op send --latency", "--op write --latency", "--op write-imm --events"}

// startLong starts both sides of one, and returns when it is under way.
func startLong(t *testing.T, args ...string) (server, client *testproc.Process) {
	t.Helper()
	all := append(strings.Fields(strings.Join(args, " ")), "--duration", "1h")
	server, address := startServer(t, append(all, "--once")...)
	client = clitest.Start(t, append([]string{"perf", "verbs", address}, all...)...)
	client.Stdout.Expect(`^# `)
	return server, client
}

// A side whose peer is killed ends with an error, whatever it is doing.
func TestPeerKilled(t *testing.T) {
	for _, args := range longRuns {
		for _, killed := range []string{"server", "client"} {
			t.Run(args+" "+killed, func(t *testing.T) {
				server, client := startLong(t, args)
				victim, left := server, client
				if killed == "client" {
					victim, left = client, server
				}
				victim.Kill()
				if code := left.ExitCode(); code != 1 || !strings.HasPrefix(left.Stderr.String(), "cinnabar perf verbs: ") {
					t.Errorf("exit code %d: %q", code, left.Stderr)
				}
			})
		}
	}
}

// An interrupt ends the client with the signal's code, and the server learns why.
func TestClientInterrupted(t *testing.T) {
	server, client := startLong(t, "--op read")
	client.Interrupt()
	if code := client.ExitCode(); code != 130 {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if code := server.ExitCode(); code != 1 || !strings.Contains(server.Stderr.String(), "the other side") {
		t.Errorf("the server ends with %d: %s", code, server.Stderr)
	}
}

// perf verbs with --data-port takes the data there, from one client after the other. If the port is in use it ends and says so.
func TestDataPort(t *testing.T) {
	free, taken := clitest.FreePort(t), clitest.UsedPort(t)
	args := []string{"--size", "64", "--count", "10"}
	server, address := startServer(t, append(args, "--data-port", free)...)
	for range 2 {
		runLines(t, append(args, address)...)
	}
	server.Interrupt()
	clitest.WantOK(t, server)
	code, refused := clitest.RunProcess(t, append([]string{"perf", "verbs", "--listen", "127.0.0.1:0", "--data-port", taken}, args...)...)
	if text := refused.Stderr.String(); code != cli.ExitFailure || !strings.Contains(text, "--data-port "+taken) || refused.Stdout.String() != "" {
		t.Errorf("exit code %d, and the server says %q and %q", code, refused.Stdout, text)
	}
}

// While perf verbs measures a size, it prints the rate of each interval on standard error.
func TestIntervals(t *testing.T) {
	for unit, args := range map[string][]string{
		"operations": {"--size", "4KiB", "--duration", "300ms"}, "round trips": {"--latency", "--op", "send", "--duration", "300ms"},
	} {
		server, address := startServer(t, append(args, "--once")...)
		code, client := clitest.RunProcess(t, append([]string{"perf", "verbs", address, "--interval", "20ms"}, args...)...)
		clitest.WantOK(t, server)
		if code != cli.ExitOK {
			t.Errorf("exit code %d: %s", code, client.Stderr)
		}
		line := regexp.MustCompile(`(?m)^\d+ bytes, after \d+\.\d s: \d+ ` + unit + `/s, \d+\.\d\d MiB/s$`)
		if got := len(line.FindAllString(client.Stderr.String(), -1)); got == 0 || got != strings.Count(client.Stderr.String(), "\n") {
			t.Errorf("%d lines of intervals in %q", got, client.Stderr)
		}
	}
}

// Operations of perf verbs are measured as perftest does, in tables of 80 columns.
func TestWidth(t *testing.T) {
	for _, args := range [][]string{{"--size", "64MiB", "--count", "2"}, {"--latency", "--count", "50"}} {
		server, address := startServer(t, append(args, "--once")...)
		code, client := clitest.RunProcess(t, append([]string{"perf", "verbs", address}, args...)...)
		clitest.WantOK(t, server)
		if code != cli.ExitOK {
			t.Errorf("%q: exit code %d: %s", args, code, client.Stderr)
		}
		for line := range strings.Lines(client.Stdout.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.Width {
				t.Errorf("%q: %d columns: %s", args, n, line)
			}
		}
	}
}
