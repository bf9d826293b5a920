package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
// the orderly end is short after an interrupt. A server in which no work was cut short ends with 0. PORT in the arguments is a free port of 127.0.0.1,
// and TOKEN names memory that the server lends.
func TestInterruptBesideFrozenPeer(t *testing.T) {
	t.Parallel()
	file := clitest.EndlessFile(t)
	for _, c := range []struct {
		name           string
		server, client string
		ready          string // printed by the server when it listens; a group matches its address
		left           string // the side that is interrupted; the other is frozen
		under          string // what that side prints when it is at work; empty: the test waits for a TCP connection
	}{
		{"pingpong", "pingpong -n 2000000000 -p PORT", "pingpong -n 2000000000 -p PORT 127.0.0.1", "local address", "client", "remote address"},
		{"pingpong server", "pingpong -n 2000000000 -p PORT", "pingpong -n 2000000000 -p PORT 127.0.0.1", "local address", "server", "remote address"},
		{"rping", "rping -s -d -a 127.0.0.1 -p PORT", "rping -c -v -a 127.0.0.1 -p PORT", "listening", "client", "ping data"},
		{"rping server", "rping -s -d -a 127.0.0.1 -p PORT", "rping -c -v -a 127.0.0.1 -p PORT", "listening", "server", "accepted"},
		{"perf verbs", "perf verbs --listen 127.0.0.1:0 --data-port PORT --duration 1h", "perf verbs ADDRESS --duration 1h", "at ([0-9.:]+):", "client", ""},
		{"perf verbs server", "perf verbs --listen 127.0.0.1:0 --data-port PORT --duration 1h", "perf verbs ADDRESS --duration 1h", "at ([0-9.:]+):", "server", ""},
		{"send", "recv --listen 127.0.0.1:PORT --dir DIR", "send FILE 127.0.0.1:PORT", "waiting", "client", ""},
		{"recv", "recv --listen 127.0.0.1:PORT --dir DIR", "send FILE 127.0.0.1:PORT", "waiting", "server", ""},
		{"get", "serve-files --listen 127.0.0.1:PORT FOLDER", "get 127.0.0.1:PORT endless --dir DIR", "serving", "client", ""},
		{"serve-files", "serve-files --listen 127.0.0.1:PORT FOLDER", "get 127.0.0.1:PORT endless --dir DIR", "serving", "server", ""},
		{"ping", "perf serve ofi+tcp://127.0.0.1:PORT", "ping -t 1h -n 1000000 -i 1ms ofi+tcp://127.0.0.1:PORT", "ofi", "client", ""},
		{"perf rate", "perf serve ofi+tcp://127.0.0.1:PORT", "perf rate --duration 1h ofi+tcp://127.0.0.1:PORT", "ofi", "client", ""},
		{"perf serve", "perf serve ofi+tcp://127.0.0.1:PORT", "perf rate --duration 1h ofi+tcp://127.0.0.1:PORT", "ofi", "server", ""},
		{"ofi+verbs", "perf serve --device software ofi+verbs://127.0.0.1:PORT", "perf bw-read --device software --duration 1h ofi+verbs://127.0.0.1:PORT", "ofi", "client", ""},
		{"ofi+verbs server", "perf serve --device software ofi+verbs://127.0.0.1:PORT", "perf bw-read --device software --duration 1h --size 64MiB ofi+verbs://127.0.0.1:PORT", "ofi", "server", ""},
		{"mem get", "mem serve --device software ofi+verbs://127.0.0.1:PORT", "mem get --device software TOKEN --output DIR/part", "ofi", "client", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tries = 5
			var took time.Duration
			for range tries { // because other tests may use all processors
				port := clitest.FreePort(t)
				words := []string{"PORT", port, "DIR", t.TempDir(), "FILE", file, "FOLDER", filepath.Dir(file)}
				server := clitest.Start(t, strings.Fields(strings.NewReplacer(words...).Replace(c.server))...)
				if found := server.Stdout.Expect(c.ready); len(found) > 1 {
					words = append(words, "ADDRESS", found[1])
				}
				if strings.Contains(c.client, "TOKEN") {
					o := clitest.WantRun(t, cli.ExitOK, []string{"mem", "alloc", "--device", "software", "ofi+verbs://127.0.0.1:" + port, "256MiB"})
					words = append(words, "TOKEN", strings.TrimSpace(o.Out.String()))
				}
				client := clitest.Start(t, strings.Fields(strings.NewReplacer(words...).Replace(c.client))...)
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
	limit, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for {
		select {
		case <-poll.C:
		case <-limit.Done():
			t.Fatalf("nothing has connected to port %s within %v", port, clitest.ProcessLimit)
		}
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
