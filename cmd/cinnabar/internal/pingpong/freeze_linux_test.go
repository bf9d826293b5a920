package pingpong

import (
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// A side whose peer is frozen ends with an error after --timeout, although the kernel keeps the connection.
func TestPeerFrozen(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", " -e"} {
		for _, frozen := range []string{"server", "client"} {
			t.Run(frozen+args, func(t *testing.T) {
				t.Parallel() // the processes wait most of the time
				list := strings.Fields("pingpong -n 2000000000 --timeout 3s -p " + clitest.FreePort(t) + args)
				server := clitest.Start(t, list...)
				server.Stdout.Expect("local address")
				client := clitest.Start(t, append(list, "127.0.0.1")...)
				server.Stdout.Expect("remote address") // the connection stands
				victim, left := server, client
				if frozen == "client" {
					victim, left = client, server
				}
				victim.Suspend()
				if code := left.ExitCode(); code != cli.ExitFailure || !strings.Contains(left.Stderr.String(), "no message for 3s (--timeout): the peer is frozen, or the network to it is down; see whether its process runs") {
					t.Errorf("exit code %d: %q", code, left.Stderr)
				}
			})
		}
	}
}
