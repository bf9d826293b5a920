package rping

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// A client names the likely cause when nothing listens.
func TestNoServer(t *testing.T) {
	clitest.WantExit(t, "rping -c -a 127.0.0.1 -p 1 -C 1", cli.ExitFailure, "is a server of rping running there?")
}

// parity: V73
func TestTwoProcesses(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			server := clitest.Start(t, "rping", "-s", "-d", "-v", "-a", host, "-p", "0")
			port := server.Stdout.Expect(`^listening on .*:(\d+)$`)[1]
			code, client := clitest.RunProcess(t, "rping", "-c", "-vV", "-C", "3", "-a", host, "-p", port)
			if code != 0 {
				t.Errorf("client: exit code %d: %s", code, client.Stderr)
			}
			for n, text := range []string{"ABC", "BCD", "CDE"} {
				server.Stdout.Expect(fmt.Sprintf("^server ping data: rdma-ping-%d: %s", n, text))
				if line := fmt.Sprintf("ping data: rdma-ping-%d: %s", n, text); !strings.Contains(client.Stdout.String(), line) {
					t.Errorf("the client did not print %q:\n%s", line, client.Stdout)
				}
			}
			if code := server.ExitCode(); code != 0 || server.Stderr.String() != "server DISCONNECT EVENT...\n" {
				t.Errorf("server: exit code %d: %s", code, server.Stderr)
			}
		})
	}
}

func TestSelfQPTwoProcesses(t *testing.T) {
	server := clitest.Start(t, "rping", "-s", "-q", "-d", "-a", "127.0.0.1", "-p", "0")
	port := server.Stdout.Expect(`^listening on .*:(\d+)$`)[1]
	if code, client := clitest.RunProcess(t, "rping", "-c", "-q", "-V", "-C", "10", "-a", "127.0.0.1", "-p", port); code != 0 {
		t.Errorf("client: exit code %d: %s", code, client.Stderr)
	}
	if code := server.ExitCode(); code != 0 {
		t.Errorf("server: exit code %d: %s", code, server.Stderr)
	}
}

func TestPersistentProcess(t *testing.T) {
	server := clitest.Start(t, "rping", "-s", "-P", "-d", "-a", "127.0.0.1", "-p", "0")
	port := server.Stdout.Expect(`^listening on .*:(\d+)$`)[1]
	for range 3 {
		if code, client := clitest.RunProcess(t, "rping", "-c", "-V", "-C", "10", "-a", "127.0.0.1", "-p", port); code != 0 {
			t.Errorf("client: exit code %d: %s", code, client.Stderr)
		}
	}
	server.Interrupt()
	if code := server.ExitCode(); code != cli.ExitOK {
		t.Errorf("server: exit code %d after an interrupt, want %d: %s", code, cli.ExitOK, server.Stderr)
	}
}

// The client of rping prints its result for programs.
func TestJSON(t *testing.T) {
	port := clitest.FreePort(t)
	server := clitest.Start(t, "rping", "-s", "-d", "-a", "127.0.0.1", "-p", port)
	server.Stdout.Expect("listening on")
	code, client := clitest.RunProcess(t, "rping", "-c", "-V", "-C", "7", "-a", "127.0.0.1", "-p", port, "--json")
	if code != cli.ExitOK || server.ExitCode() != cli.ExitOK {
		t.Fatalf("client: %s; server: %s", client.Stderr, server.Stderr)
	}
	var r resultJSON
	if err := json.Unmarshal([]byte(client.Stdout.String()), &r); err != nil || r.Rounds != 7 || r.Size != defaultSize || r.Usec <= 0 {
		t.Errorf("%+v, %v from %q", r, err, client.Stdout)
	}
}
