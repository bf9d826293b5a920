package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/testproc"
)

// An interrupt ends each command within a second even if the peer is stopped and its kernel keeps the connection open, because
// the orderly end is short after an interrupt. A server in which no work was cut short ends with 0. PORT in the arguments is a free port of 127.0.0.1.
func TestInterruptBesideFrozenPeer(t *testing.T) {
	t.Parallel()
	file := clitest.EndlessFile(t)
	for _, c := range []struct {
		name           string
		server, client string
		ready          string // printed by the server when it listens
		left           string // the side that is interrupted; the other is frozen
		under          string // what that side prints when it is at work; empty: the test waits for a TCP connection
	}{
		{"pingpong", "pingpong -n 2000000000 -p PORT", "pingpong -n 2000000000 -p PORT 127.0.0.1", "local address", "client", "remote address"},
		{"pingpong server", "pingpong -n 2000000000 -p PORT", "pingpong -n 2000000000 -p PORT 127.0.0.1", "local address", "server", "remote address"},
		{"rping", "rping -s -d -a 127.0.0.1 -p PORT", "rping -c -v -a 127.0.0.1 -p PORT", "listening", "client", "ping data"},
		{"rping server", "rping -s -d -a 127.0.0.1 -p PORT", "rping -c -v -a 127.0.0.1 -p PORT", "listening", "server", "accepted"},
		{"perf verbs", "perf verbs --listen 127.0.0.1:PORT --duration 1h", "perf verbs 127.0.0.1:PORT --duration 1h", "waiting", "client", ""},
		{"perf verbs server", "perf verbs --listen 127.0.0.1:PORT --duration 1h", "perf verbs 127.0.0.1:PORT --duration 1h", "waiting", "server", ""},
		{"send", "recv --listen 127.0.0.1:PORT --dir DIR", "send FILE 127.0.0.1:PORT", "waiting", "client", ""},
		{"recv", "recv --listen 127.0.0.1:PORT --dir DIR", "send FILE 127.0.0.1:PORT", "waiting", "server", ""},
		{"ping", "perf serve ofi+tcp://127.0.0.1:PORT", "ping -t 1h -n 1000000 -i 1ms ofi+tcp://127.0.0.1:PORT", "ofi", "client", ""},
		{"perf rate", "perf serve ofi+tcp://127.0.0.1:PORT", "perf rate --duration 1h ofi+tcp://127.0.0.1:PORT", "ofi", "client", ""},
		{"perf serve", "perf serve ofi+tcp://127.0.0.1:PORT", "perf rate --duration 1h ofi+tcp://127.0.0.1:PORT", "ofi", "server", ""},
		{"ofi+verbs", "perf serve --device software ofi+verbs://127.0.0.1:PORT", "perf bw-read --device software --duration 1h ofi+verbs://127.0.0.1:PORT", "ofi", "client", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // the processes wait most of the time
			const tries = 5
			var took time.Duration
			for range tries { // because other tests may use all processors
				port := clitest.FreePort(t)
				fill := strings.NewReplacer("PORT", port, "DIR", t.TempDir(), "FILE", file)
				server := clitest.Start(t, strings.Fields(fill.Replace(c.server))...)
				server.Stdout.Expect(c.ready)
				client := clitest.Start(t, strings.Fields(fill.Replace(c.client))...)
				left, frozen := server, client
				if c.left == "client" {
					left, frozen = client, server
				}
				if c.under != "" {
					left.Stdout.Expect(c.under)
				} else {
					awaitConnection(t, port, client)
				}
				frozen.Suspend()
				begin := time.Now()
				left.Interrupt()
				code := left.ExitCode()
				if idle := c.left == "server" && code == cli.ExitOK; !idle && code != cli.ExitSignal+int(syscall.SIGINT) {
					t.Fatalf("exit code %d: %s", code, left.Stderr)
				}
				took = time.Since(begin)
				frozen.Kill()
				if took < time.Second {
					return
				}
			}
			t.Errorf("%d times it took over a second to end, the last time %v", tries, took)
		})
	}
}

// awaitConnection waits until a connection to the port of 127.0.0.1 stands.
func awaitConnection(t *testing.T, port string, client *testproc.Process) {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	established := fmt.Sprintf(" 0100007F:%04X 01 ", n) // proc(5): the remote address, and the state
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for range poll.C {
		list, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Skip("without /proc the test does not know when the commands are connected: ", err)
		}
		switch {
		case strings.Contains(string(list), established):
			return
		case client.Ended():
			t.Fatalf("the client ended with exit code %d: %s", client.ExitCode(), client.Stderr)
		}
	}
}
