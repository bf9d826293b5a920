package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// parity: S22
func TestDemoTwoProcesses(t *testing.T) {
	code, o := clitest.RunProcess(t, "demo")
	if code != 0 || o.Err.Len() != 0 {
		t.Fatalf("exit code %d, stderr %q", code, &o.Err)
	}
	lines := strings.Split(strings.TrimSuffix(o.Out.String(), "\n"), "\n")
	if got := lines[len(lines)-1]; got != "ok" {
		t.Errorf("the last line is %q", got)
	}
	for _, pattern := range []string{
		`64 MiB of random data between processes \d+ and \d+`, `sha256 [0-9a-f]{64}\n`,
		`out-of-band exchange +1 .* connected`,
		`send/receive +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`RDMA write +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`RDMA write, immediate +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`RDMA read +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`fetch-and-add +1000 .*/s +1000 old values`,
		`compare-and-swap +1000 .*/s +1000 old values`,
		`file, basic, there +7 +64 MiB .*MiB/s +SHA-256 equal`,
		`file, basic, back +7 +64 MiB .*MiB/s +SHA-256 equal`,
		`file, fast, there +128 +64 MiB .*MiB/s +SHA-256 equal`,
		`file, fast, back +128 +64 MiB .*MiB/s +SHA-256 equal`,
		`RPC sum, ofi\+tcp +4 +160 B .*/s +36 each time`,
		`bulk pull, ofi\+tcp +64 +64 MiB .*MiB/s +SHA-256 equal`,
		`memory write, ofi\+tcp +64 +64 MiB .*MiB/s +allocated 16 MiB`,
		`memory read, ofi\+tcp +64 +64 MiB .*MiB/s +equal; freed`,
	} {
		if !regexp.MustCompile(pattern).Match(o.Out.Bytes()) {
			t.Errorf("nothing like %q in\n%s", pattern, &o.Out)
		}
	}
}

func TestDemoFilesOfEverySize(t *testing.T) {
	sizes := []int{0, demoRound + 7} // more in TestDemoMovesEverySize
	if clitest.RaceEnabled {
		sizes = []int{0, demoChunk - 1}
	}
	for _, size := range sizes {
		path := filepath.Join(t.TempDir(), "data")
		if err := os.WriteFile(path, bytes.Repeat([]byte{0x5a}, size), 0o600); err != nil {
			t.Fatal(err)
		}
		code, o := clitest.RunProcess(t, "demo", path)
		if code != 0 || !strings.HasSuffix(o.Out.String(), "\nok\n") || !strings.Contains(o.Out.String(), path) {
			t.Errorf("%d bytes: exit code %d\n%s%s", size, code, &o.Out, &o.Err)
		}
	}
}

// parity: S01
func TestCompareTwoProcesses(t *testing.T) {
	code, o := clitest.RunProcess(t, "compare", "--size", "16MiB", "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, &o.Err)
	}
	var got struct{ Rows []compareRow }
	if err := json.Unmarshal(o.Out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rows) != 3 {
		t.Fatalf("rows: %+v", got.Rows)
	}
	for _, r := range got.Rows {
		if r.UserCopies != 0 || r.KernelCopies != 2 || !r.Verified || r.Bytes != 16*cli.MiB {
			t.Errorf("%+v", r)
		}
		// The unit of the rate is what its name says.
		if want := 16 / r.Seconds; r.MiBPerSecond < want*0.999 || r.MiBPerSecond > want*1.001 {
			t.Errorf("%s: 16 MiB in %g s are %g MiB/s, not %g", r.Way, r.Seconds, want, r.MiBPerSecond)
		}
	}
	if got.Rows[1].ReceiverCalls != 0 {
		t.Errorf("the receiver of one-sided writes made %d calls", got.Rows[1].ReceiverCalls)
	}
}

// parity: V71
func TestPingpongTwoProcesses(t *testing.T) {
	for _, tt := range []struct {
		name string
		host string
		args []string
	}{
		{"IPv4", "127.0.0.1", []string{"-c"}},
		{"IPv6", "::1", []string{"-c", "-s", "65536", "-n", "100"}},
		{"events", "localhost", []string{"-c", "-e", "-n", "50"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"pingpong", "-p", clitest.FreePort(t)}, tt.args...)
			server, seen, o := clitest.Start(t, args...)
			clitest.WaitLine(t, seen, `^  local address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:.]+$`)
			code, client := clitest.RunProcess(t, append(args, tt.host)...)
			if code != 0 {
				t.Errorf("client: exit code %d: %s", code, &client.Err)
			}
			clitest.WaitLine(t, seen, `^  remote address: LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:.]+$`)
			clitest.WaitLine(t, seen, `^[0-9]+ bytes in [0-9.]+ seconds = [0-9.]+ Mbit/sec$`)
			clitest.WaitLine(t, seen, `^[0-9]+ iters in [0-9.]+ seconds = [0-9.]+ usec/iter$`)
			if code := clitest.ExitOf(t, server); code != 0 {
				t.Errorf("server: exit code %d: %s", code, &o.Err)
			}
			if got := strings.Count(client.Out.String(), "\n"); got != 4 {
				t.Errorf("the client printed %d lines:\n%s", got, &client.Out)
			}
		})
	}
}

// Two hundred messages of 1 MiB: the rate printed must agree with the wall
// clock and the label.
func TestPingpongUnits(t *testing.T) {
	args := []string{"pingpong", "-p", clitest.FreePort(t), "-s", "1048576", "-r", "4", "-n", "200"}
	server, seen, o := clitest.Start(t, args...)
	clitest.WaitLine(t, seen, "local address")
	before := time.Now()
	code, client := clitest.RunProcess(t, append(args, "127.0.0.1")...)
	wall := time.Since(before)
	if code != 0 || clitest.ExitOf(t, server) != 0 {
		t.Fatalf("client: %s; server: %s", &client.Err, &o.Err)
	}
	m := regexp.MustCompile(`(\d+) bytes in ([0-9.]+) seconds = ([0-9.]+) Mbit/sec\n200 iters in [0-9.]+ seconds = ([0-9.]+) usec/iter\n`).FindStringSubmatch(client.Out.String())
	if m == nil {
		t.Fatalf("no result in\n%s", &client.Out)
	}
	var v [4]float64
	for i := range v {
		var err error
		if v[i], err = strconv.ParseFloat(m[i+1], 64); err != nil {
			t.Fatal(err)
		}
	}
	bytes, seconds, mbit, usec := v[0], v[1], v[2], v[3]
	if bytes != 2*200*(1<<20) {
		t.Errorf("%.0f bytes, want 200 times 1 MiB both ways", bytes)
	}
	// The process does more than bounce: it starts, registers and fills memory. A wrong unit is a factor of a thousand.
	if seconds > wall.Seconds()+0.005 || seconds < wall.Seconds()/300 {
		t.Errorf("%g seconds were printed, the process took %g", seconds, wall.Seconds())
	}
	if want := bytes * 8 / (usec * 200); mbit < want*0.999 || mbit > want*1.001 {
		t.Errorf("%g Mbit/sec were printed, the time per exchange says %g", mbit, want)
	}
}

func TestPingpongMismatchTwoProcesses(t *testing.T) {
	port := clitest.FreePort(t)
	server, seen, o := clitest.Start(t, "pingpong", "-p", port)
	clitest.WaitLine(t, seen, "local address")
	code, client := clitest.RunProcess(t, "pingpong", "-p", port, "-s", "8192", "-n", "5", "127.0.0.1")
	if code != 1 {
		t.Errorf("client: exit code %d, want 1", code)
	}
	if code := clitest.ExitOf(t, server); code != 1 {
		t.Errorf("server: exit code %d, want 1", code)
	}
	const (
		atServer = `iters is "1000" here, "5" there; size is "4096" here, "8192" there`
		atClient = `iters is "5" here, "1000" there; size is "8192" here, "4096" there`
	)
	if !strings.Contains(o.Err.String(), atServer) {
		t.Errorf("the server does not name the difference: %s", &o.Err)
	}
	if !strings.Contains(client.Err.String(), atClient) {
		t.Errorf("the client does not name the difference: %s", &client.Err)
	}
}

// parity: V73
func TestRpingTwoProcesses(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			server, seen, o := clitest.Start(t, "rping", "-s", "-d", "-v", "-a", host, "-p", "0")
			port := clitest.WaitLine(t, seen, `^listening on .*:(\d+)$`)[1]
			code, client := clitest.RunProcess(t, "rping", "-c", "-vV", "-C", "3", "-a", host, "-p", port)
			if code != 0 {
				t.Errorf("client: exit code %d: %s", code, &client.Err)
			}
			for n, text := range []string{"ABC", "BCD", "CDE"} {
				clitest.WaitLine(t, seen, fmt.Sprintf("^server ping data: rdma-ping-%d: %s", n, text))
				if line := fmt.Sprintf("ping data: rdma-ping-%d: %s", n, text); !strings.Contains(client.Out.String(), line) {
					t.Errorf("the client did not print %q:\n%s", line, &client.Out)
				}
			}
			if code := clitest.ExitOf(t, server); code != 0 || o.Err.String() != "server DISCONNECT EVENT...\n" {
				t.Errorf("server: exit code %d: %s", code, &o.Err)
			}
		})
	}
}

func TestRpingSelfQPTwoProcesses(t *testing.T) {
	server, seen, o := clitest.Start(t, "rping", "-s", "-q", "-d", "-a", "127.0.0.1", "-p", "0")
	port := clitest.WaitLine(t, seen, `^listening on .*:(\d+)$`)[1]
	if code, client := clitest.RunProcess(t, "rping", "-c", "-q", "-V", "-C", "10", "-a", "127.0.0.1", "-p", port); code != 0 {
		t.Errorf("client: exit code %d: %s", code, &client.Err)
	}
	if code := clitest.ExitOf(t, server); code != 0 {
		t.Errorf("server: exit code %d: %s", code, &o.Err)
	}
}

func TestRpingPersistentProcess(t *testing.T) {
	server, seen, o := clitest.Start(t, "rping", "-s", "-P", "-d", "-a", "127.0.0.1", "-p", "0")
	port := clitest.WaitLine(t, seen, `^listening on .*:(\d+)$`)[1]
	for range 3 {
		if code, client := clitest.RunProcess(t, "rping", "-c", "-V", "-C", "10", "-a", "127.0.0.1", "-p", port); code != 0 {
			t.Errorf("client: exit code %d: %s", code, &client.Err)
		}
	}
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := clitest.ExitOf(t, server); code != stopped {
		t.Errorf("server: exit code %d after an interrupt, want %d: %s", code, stopped, &o.Err)
	}
}

// startLongDemo starts a demonstration that takes minutes, and returns when
// both of its processes are at work.
func startLongDemo(t *testing.T) (parent *exec.Cmd, peer int, o *clitest.Output) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	parent, seen, o := clitest.Start(t, "demo", path)
	peer, err := strconv.Atoi(clitest.WaitLine(t, seen, `between processes \d+ and (\d+)`)[1])
	if err != nil {
		t.Fatal(err)
	}
	return parent, peer, o
}

// wantGone fails if one of the processes that share the output is left: then
// the pipe stays open, and Wait gives up on it.
func wantGone(t *testing.T, parent *exec.Cmd, err error) {
	t.Helper()
	if errors.Is(err, exec.ErrWaitDelay) {
		t.Error("the peer process outlived its parent")
	}
	if parent.ProcessState == nil {
		t.Fatalf("the parent process did not end: %v", err)
	}
}

func TestDemoInterrupted(t *testing.T) {
	parent, _, o := startLongDemo(t)
	if err := parent.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	wantGone(t, parent, parent.Wait())
	if got := parent.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit code %d, want 130", got)
	}
	if got := o.Err.String(); got != "cinnabar demo: stopped by signal: interrupt\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestDemoParentKilled(t *testing.T) {
	parent, _, _ := startLongDemo(t)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wantGone(t, parent, parent.Wait())
}

func TestDemoPeerKilled(t *testing.T) {
	parent, peer, o := startLongDemo(t)
	p, err := os.FindProcess(peer)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	wantGone(t, parent, parent.Wait())
	if got := parent.ProcessState.ExitCode(); got != 1 {
		t.Errorf("exit code %d, want 1", got)
	}
	if !strings.Contains(o.Err.String(), "the connection to 127.0.0.1:") {
		t.Errorf("stderr does not name the lost connection: %s", &o.Err)
	}
}

// A stranger who does not know the secret gets nowhere, and the parent's
// connection is served all the same.
func TestPeerSecret(t *testing.T) {
	in, secret := io.Pipe()
	lines := &clitest.Lines{Seen: make(chan string, 1)}
	ended := make(chan error)
	var served string
	go func() {
		s := cli.Streams{In: in, Out: lines, Err: io.Discard}
		ended <- peerMain(t.Context(), s, func(ctx context.Context, x *exchange) error { return x.receive(ctx, &served) })
	}()
	if _, err := io.WriteString(secret, "open sesame\n"); err != nil {
		t.Fatal(err)
	}
	addr := clitest.WaitLine(t, lines.Seen, `^127\.0\.0\.1:\d+$`)[0]
	for _, word := range []string{`"open barley"`, "GET / HTTP/1.1\r\n", ""} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, word+"\n"); err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(c); err == nil && len(b) > 0 {
			t.Errorf("%q was answered with %q", word, b)
		}
		c.Close()
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	x := newExchange(c)
	defer x.Close()
	if err := errors.Join(x.send("open sesame"), x.send("treasure")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || served != "treasure" {
		t.Errorf("served %q, %v", served, err)
	}
	secret.Close() // the watcher of the input ends
}

func TestPeerEndsWithItsParent(t *testing.T) {
	in, secret := io.Pipe()
	lines := &clitest.Lines{Seen: make(chan string, 1)}
	ended := make(chan error)
	go func() {
		ended <- peerMain(t.Context(), cli.Streams{In: in, Out: lines, Err: io.Discard}, nil)
	}()
	if _, err := io.WriteString(secret, "word\n"); err != nil {
		t.Fatal(err)
	}
	clitest.WaitLine(t, lines.Seen, "^127")
	secret.Close() // as the parent's end does
	if err := <-ended; !errors.Is(err, cli.ErrParentEnded) {
		t.Errorf("the peer ended with %v", err)
	}
}

func TestExchangeIsBounded(t *testing.T) {
	a, b := clitest.TCPPair(t)
	x := newExchange(b)
	go func() {
		_, _ = a.Write([]byte(`"` + strings.Repeat("x", 2*exchangeLimit))) // the other end may hang up
		a.Close()
	}()
	var got string
	clitest.WantError(t, x.receive(t.Context(), &got), "out-of-band exchange")
	if n := x.bytes.Load(); n != exchangeLimit {
		t.Errorf("%d bytes were read, the limit is %d", n, exchangeLimit)
	}
}
