package perfrpc

import (
	"cinnabar"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codes"
	"cinnabar/internal/testproc"
	"cinnabar/margo"
)

// startServe starts a server and returns its address.
func startServe(t *testing.T, args ...string) (*testproc.Process, string) {
	t.Helper()
	cmd := clitest.Start(t, append([]string{"perf", "serve", "ofi+tcp://127.0.0.1:0"}, args...)...)
	return cmd, cmd.Stdout.Expect(`^ofi\+tcp://127\.0\.0\.1:\d+$`)[0]
}

// runLines runs a client with --json and returns what it measured.
func runLines(t *testing.T, args ...string) []reportLine {
	t.Helper()
	code, o := clitest.RunProcess(t, append([]string{"perf"}, append(args, "--json")...)...)
	if code != 0 {
		t.Fatalf("perf %v: exit code %d: %s", args, code, o.Stderr)
	}
	var got []reportLine
	for line := range strings.Lines(o.Stdout.String()) {
		var l reportLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		got = append(got, l)
	}
	return got
}

// parity: H41 H121
func TestTwoProcesses(t *testing.T) {
	for _, tt := range []struct {
		server string
		client string // without the address
		sizes  []int64
		calls  int64
	}{
		{"", "rate --size 0..5 --count 20", []int64{0, 1, 2, 4, 5}, 20},
		{"", "rate --size 64,70000 --count 5 --inflight 8", []int64{64, 70000}, 40},
		{"--verify", "rate --verify --size 64,70000 --count 5 --inflight 3", []int64{64, 70000}, 15},
		{"--bidirectional --verify", "rate --bidirectional --verify --size 1,5000 --count 5 --inflight 3", []int64{1, 5000}, 15},
		{"", "bw-read --size 1,4096,1000000 --count 3", []int64{1, 4096, 1000000}, 3},
		{"", "bw-read --size 4KiB,64KiB --count 3 --inflight 3 --transfers 5 --verify", []int64{4096, 65536}, 9},
		{"", "bw-write --size 1,4096,1000000 --count 3", []int64{1, 4096, 1000000}, 3},
		{"", "bw-write --size 4KiB,64KiB --count 3 --inflight 3 --transfers 5 --verify", []int64{4096, 65536}, 9},
	} {
		t.Run(tt.client, func(t *testing.T) {
			t.Parallel()
			server, address := startServe(t, append(strings.Fields(tt.server), "--once")...)
			args := strings.Fields(tt.client)
			lines := runLines(t, append([]string{args[0], address}, args[1:]...)...)
			clitest.WantOK(t, server) // DONE ends it
			if len(lines) != len(tt.sizes) {
				t.Fatalf("%d lines, want %d", len(lines), len(tt.sizes))
			}
			for i, l := range lines {
				if l.Op != args[0] || l.Transport != "tcp" || l.Size != tt.sizes[i] || l.Count != tt.calls {
					t.Errorf("line %d: %+v, want size %d and %d calls", i, l, tt.sizes[i], tt.calls)
				}
				if l.UsecPerCall <= 0 || l.P50Usec <= 0 || l.P99Usec < l.P50Usec || l.Size > 65535 && l.MiBPerSecond <= 0 {
					t.Errorf("line %d: %+v", i, l)
				}
				if product := l.UsecPerCall * l.CallsPerSecond; (product < 0.99e6 || product > 1.01e6) && l.CallsPerSecond > 1 { // it is rounded
					t.Errorf("line %d: %g usec for each call, and %g calls in a second", i, l.UsecPerCall, l.CallsPerSecond)
				}
			}
		})
	}
}

// TestOverVerbs measures between two processes on the software device. The line names the transport, and each process warns once.
func TestOverVerbs(t *testing.T) {
	const software = "--device=software"
	warned := func(p *testproc.Process) {
		t.Helper()
		code := p.ExitCode()
		if got := p.Stderr.String(); code != 0 || strings.Count(got, "\n") != 1 || !strings.Contains(got, "Mercury that accepts iWARP devices") {
			t.Errorf("exit code %d and %q on standard error, want 0 and one warning", code, got)
		}
	}
	server := clitest.Start(t, "perf", "serve", "ofi+verbs", software, "--classes", "2", "--verify")
	addresses := []string{server.Stdout.Expect(`^ofi\+verbs;ofi_rxm://127\.0\.0\.1:\d+$`)[0], server.Stdout.Expect(`^ofi\+verbs;ofi_rxm://127\.0\.0\.1:\d+$`)[0]}
	for _, args := range []string{
		"rate --size 64,70000 --count 5 --inflight 8 --verify --clients 2", "bw-read --size 1,4096,3000000 --count 3 --verify", "bw-write --size 4096,3000000 --count 3 --inflight 3 --verify",
	} {
		all := append([]string{"perf"}, strings.Fields(args)...)
		client := clitest.Start(t, append(append(all, "--json", software), addresses...)...)
		warned(client)
		if got := strings.Count(client.Stdout.String(), `"transport":"verbs"`); got < 2 || got != strings.Count(client.Stdout.String(), "\n") {
			t.Errorf("perf %s printed %q, want a line with transport verbs for each size", args, client.Stdout)
		}
	}
	server.Interrupt()
	warned(server)
}

// A server serves several clients at once and one after the other, until it is told to stop.
func TestServerThatStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "port.cfg")
	server, address := startServe(t, "--port-file", file)
	for range 2 {
		var clients []*testproc.Process
		for _, args := range [][]string{
			{"rate", "--size", "64"}, {"bw-read", "--size", "64KiB"}, {"bw-write", "--size", "64KiB"}, {"rate", "--size", "64", "--inflight", "16"},
		} {
			clients = append(clients, clitest.Start(t, append([]string{"perf", args[0], "--port-file", file, "--count", "50"}, args[1:]...)...))
		}
		for _, client := range clients {
			if code := client.ExitCode(); code != 0 {
				t.Errorf("exit code %d: %s", code, client.Stderr)
			}
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != address+"\n" {
		t.Errorf("the port file has %q, %v, want %q", text, err, address)
	}
	server.Interrupt()
	clitest.WantOK(t, server)
}

// A client with --keep leaves a server running that ends with its client; by the clock it measures for as long as it was told.
func TestClientThatKeepsTheServer(t *testing.T) {
	server, address := startServe(t, "--once")
	lines := runLines(t, "rate", address, "--size", "64", "--duration", "50ms", "--keep")
	if l := lines[0]; float64(l.Count)*(l.UsecPerCall+0.01) < 50e3 { // the time of a call is rounded
		t.Errorf("%+v: measured for less than 50 ms", l)
	}
	runLines(t, "rate", address, "--size", "64", "--count", "1")
	clitest.WantOK(t, server)
}

// TestProgressOption measures calls with --progress on both sides.
func TestProgressOption(t *testing.T) {
	for _, mode := range []string{"economy", "balanced"} {
		server, address := startServe(t, "--once", "--progress", mode)
		if l := runLines(t, "rate", address, "--size", "64", "--count", "10", "--progress", mode)[0]; l.Count != 10 {
			t.Errorf("%s: %+v, want 10 calls", mode, l)
		}
		clitest.WantOK(t, server)
	}
}

// TestInterruptedServers interrupts two servers. The one that serves until an interrupt has done its work and ends with 0. The one that waits for
// a single client (--once) has not, and ends with the code of the signal.
func TestInterruptedServers(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
	}{{nil, 0}, {[]string{"--once"}, 130}} {
		server, _ := startServe(t, tt.args...)
		server.Interrupt()
		if code := server.ExitCode(); code != tt.code {
			t.Errorf("perf serve %v ends with %d after an interrupt, want %d", tt.args, code, tt.code)
		}
	}
}

// TestServerAllowsQuery asks a server for its description, which it gives with --allow-query only.
func TestServerAllowsQuery(t *testing.T) {
	e, err := cinnabar.Open(t.Context(), "ofi+tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, args := range [][]string{nil, {"--allow-query"}} {
		server, address := startServe(t, args...)
		ep, err := e.Lookup(address)
		if err != nil {
			t.Fatal(err)
		}
		d, err := margo.Query(t.Context(), ep)
		switch {
		case args == nil && !errors.Is(err, codes.NoEntry):
			t.Errorf("a server without --allow-query answers %+v, %v", d, err)
		case args != nil && (err != nil || d.Addr != address):
			t.Errorf("a server with --allow-query answers %+v, %v", d, err)
		}
		server.Interrupt()
		clitest.WantOK(t, server)
	}
}

// A client that ends in the middle of its transfers concerns nobody else.
func TestClientKilled(t *testing.T) {
	server, address := startServe(t, "--once", "--memory", "9MiB") // that of two clients
	for _, op := range []string{"bw-read", "bw-write"} {
		client := clitest.Start(t, "perf", op, address, "--size", "2MiB", "--transfers", "2", "--duration", "1h")
		client.Stdout.Expect(`^ +bytes`) // its memory is announced by then
		client.Kill()
	}
	for begin := time.Now(); ; { // the memory of both comes back when their connections are known to be lost
		code, out := clitest.RunProcess(t, "perf", "bw-write", address, "--size", "2MiB", "--transfers", "4", "--count", "1", "--keep")
		if code == 0 {
			break
		}
		if !strings.Contains(out.Stderr.String(), "HG_NOMEM") || time.Since(begin) > clitest.ProcessLimit {
			t.Fatalf("exit code %d: %s", code, out.Stderr)
		}
	}
	runLines(t, "rate", address, "--size", "64", "--count", "1")
	clitest.WantOK(t, server)
}

func TestServerKilled(t *testing.T) {
	server, address := startServe(t)
	client := clitest.Start(t, "perf", "bw-write", address, "--size", "16MiB", "--duration", "1h")
	client.Stdout.Expect(`^ +bytes`)
	server.Kill()
	if code := client.ExitCode(); code != 1 || !strings.Contains(client.Stderr.String(), address) {
		t.Errorf("exit code %d, stderr %q, want 1 and the address", code, client.Stderr)
	}
}

// A client that is interrupted ends with the signal's code, however many calls it waits for.
func TestClientInterrupted(t *testing.T) {
	for _, inflight := range []string{"1", "8"} {
		server, address := startServe(t, "--once")
		client := clitest.Start(t, "perf", "rate", address, "--size", "64,128", "--duration", "1h", "--inflight", inflight)
		client.Stdout.Expect(`^ +bytes`)
		client.Interrupt()
		if code := client.ExitCode(); code != 130 || client.Stderr.String() != "cinnabar perf rate: stopped by signal: interrupt\n" {
			t.Errorf("%s in flight: exit code %d, stderr %q", inflight, code, client.Stderr)
		}
		runLines(t, "rate", address, "--size", "64", "--count", "1")
		clitest.WantOK(t, server)
	}
}

// mercury returns the path of one of Mercury's perf programs.
func mercury(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s of Mercury is not in PATH", name)
	}
	return path
}

// startMercury starts a process of a Mercury program in a directory, where its port.cfg is. env is added to its environment.
func startMercury(t *testing.T, dir string, env []string, name string, args ...string) *testproc.Process {
	t.Helper()
	program := mercury(t, name)
	if name == "hg_perf_server" {
		lockSharedMemory(t)
	}
	return testproc.Start(t, testproc.Command{Path: program, Args: append([]string{"-c", "ofi", "-p", "tcp", "-H", "lo"}, args...), Dir: dir, Env: env, Limit: clitest.ProcessLimit})
}

// measureMercury measures a Mercury server that has the options with our client, whose DONE ends it.
func measureMercury(t *testing.T, options []string, args []string) {
	t.Helper()
	dir := t.TempDir()
	server := startMercury(t, dir, nil, "hg_perf_server", options...)
	server.Stdout.Expect(regexp.QuoteMeta("# Waiting for client"))
	runLines(t, append(args, "--port-file", filepath.Join(dir, "port.cfg"))...)
	if code := server.ExitCode(); code != 0 {
		t.Errorf("the server ends with %d: %s", code, server.Stderr)
	}
}

// wantMeasured waits for a Mercury client and fails unless all its calls succeed.
func wantMeasured(t *testing.T, client *testproc.Process, args []string) {
	t.Helper()
	if code := client.ExitCode(); code != 0 || strings.Contains(client.Stdout.String()+client.Stderr.String(), "failed (HG_") {
		t.Errorf("%v: exit code %d\n%s%s", args, code, client.Stdout, client.Stderr)
	}
}

// Mercury's programs measure our server.
// parity(peer): H121
func TestMercuryClients(t *testing.T) {
	mercury(t, "hg_rate")
	dir := t.TempDir()
	server, _ := startServe(t, "--port-file", filepath.Join(dir, "port.cfg"))
	for _, args := range [][]string{
		{"hg_rate", "-y", "0", "-z", "64", "-l", "10"},
		{"hg_rate", "-y", "8192", "-z", "8192", "-x", "16", "-l", "5"},
		{"hg_first"},
		{"hg_bw_read", "-y", "4096", "-z", "65536", "-l", "3", "-w", "3", "-x", "2", "-v"},
		{"hg_bw_write", "-y", "4096", "-z", "65536", "-l", "3", "-w", "3", "-x", "2", "-v"},
		{"hg_bw_write", "-y", "4096", "-z", "65536", "-l", "3", "-w", "1", "-R"},
	} {
		wantMeasured(t, startMercury(t, dir, nil, args[0], args[1:]...), args)
	}
	server.Interrupt()
	clitest.WantOK(t, server)
}

// Our client measures Mercury's server; the last DONE ends it.
// parity(peer): H121
func TestMercuryServer(t *testing.T) {
	mercury(t, "hg_perf_server") // skips here, not in each part
	for _, args := range [][]string{
		{"rate", "--size", "0..64", "--count", "10"},
		{"rate", "--size", "64", "--count", "10", "--inflight", "16"},
		{"bw-read", "--size", "4096..65536", "--count", "3", "--transfers", "3", "--inflight", "2", "--verify"},
		{"bw-write", "--size", "4096..65536", "--count", "3", "--transfers", "3", "--inflight", "2", "--verify"},
	} {
		t.Run(args[0], func(t *testing.T) { measureMercury(t, nil, args) })
	}
}
