package pingpong

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// parity: V71
func TestTwoProcesses(t *testing.T) {
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
			server := clitest.Start(t, args...)
			server.Stdout.Expect(`^  local address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:.]+$`)
			code, client := clitest.RunProcess(t, append(args, tt.host)...)
			if code != 0 {
				t.Errorf("client: exit code %d: %s", code, client.Stderr)
			}
			server.Stdout.Expect(`^  remote address: LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:.]+$`)
			server.Stdout.Expect(`^[0-9]+ bytes in [0-9.]+ seconds = [0-9.]+ Mbit/sec$`)
			server.Stdout.Expect(`^[0-9]+ iters in [0-9.]+ seconds = [0-9.]+ usec/iter$`)
			if code := server.ExitCode(); code != 0 {
				t.Errorf("server: exit code %d: %s", code, server.Stderr)
			}
			if got := strings.Count(client.Stdout.String(), "\n"); got != 4 {
				t.Errorf("the client printed %d lines:\n%s", got, client.Stdout)
			}
		})
	}
}

// Two hundred messages of 1 MiB: the rate printed must agree with the wall
// clock and the label.
func TestUnits(t *testing.T) {
	args := []string{"pingpong", "-p", clitest.FreePort(t), "-s", "1048576", "-r", "4", "-n", "200"}
	server := clitest.Start(t, args...)
	server.Stdout.Expect("local address")
	before := time.Now()
	code, client := clitest.RunProcess(t, append(args, "127.0.0.1")...)
	wall := time.Since(before)
	if code != 0 || server.ExitCode() != 0 {
		t.Fatalf("client: %s; server: %s", client.Stderr, server.Stderr)
	}
	m := regexp.MustCompile(`(\d+) bytes in ([0-9.]+) seconds = ([0-9.]+) Mbit/sec\n200 iters in [0-9.]+ seconds = ([0-9.]+) usec/iter\n`).FindStringSubmatch(client.Stdout.String())
	if m == nil {
		t.Fatalf("no result in\n%s", client.Stdout)
	}
	v := clitest.Numbers(t, m)
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

func TestMismatchTwoProcesses(t *testing.T) {
	port := clitest.FreePort(t)
	server := clitest.Start(t, "pingpong", "-p", port)
	server.Stdout.Expect("local address")
	code, client := clitest.RunProcess(t, "pingpong", "-p", port, "-s", "8192", "-n", "5", "127.0.0.1")
	if code != 1 {
		t.Errorf("client: exit code %d, want 1", code)
	}
	if code := server.ExitCode(); code != 1 {
		t.Errorf("server: exit code %d, want 1", code)
	}
	const (
		atServer = `iters is "1000" here, "5" there; size is "4096" here, "8192" there`
		atClient = `iters is "5" here, "1000" there; size is "8192" here, "4096" there`
	)
	if !strings.Contains(server.Stderr.String(), atServer) {
		t.Errorf("the server does not name the difference: %s", server.Stderr)
	}
	if !strings.Contains(client.Stderr.String(), atClient) {
		t.Errorf("the client does not name the difference: %s", client.Stderr)
	}
}

// A server of pingpong whose --data-port is in use ends and says so, before it waits for a client that would fail.
func TestDataPort(t *testing.T) {
	taken := clitest.UsedPort(t)
	code, server := clitest.RunProcess(t, "pingpong", "-p", clitest.FreePort(t), "--data-port", taken)
	if text := server.Stderr.String(); code != cli.ExitFailure || !strings.Contains(text, "--data-port "+taken) || server.Stdout.String() != "" {
		t.Errorf("exit code %d, and the server says %q and %q", code, server.Stdout, text)
	}
}

// The client of pingpong prints its result for programs.
func TestJSON(t *testing.T) {
	port, data := clitest.FreePort(t), clitest.FreePort(t)
	args := []string{"pingpong", "-p", port, "-n", "10", "--json"}
	server := clitest.Start(t, "pingpong", "-p", port, "-n", "10", "--data-port", data)
	server.Stdout.Expect("local address")
	code, client := clitest.RunProcess(t, append(args, "127.0.0.1")...)
	if code != cli.ExitOK || server.ExitCode() != cli.ExitOK {
		t.Fatalf("client: %s; server: %s", client.Stderr, server.Stderr)
	}
	var p resultJSON
	if err := json.Unmarshal([]byte(client.Stdout.String()), &p); err != nil || p.Size != 4096 || p.Iterations != 10 || p.Usec <= 0 || p.Seconds <= 0 || p.MbitSeconds <= 0 {
		t.Errorf("%+v, %v from %q", p, err, client.Stdout)
	}
}
