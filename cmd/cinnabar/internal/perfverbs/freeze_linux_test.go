package perfverbs

import (
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/clitest"
)

// A side whose peer is frozen ends with an error in the time that is set, even one that has nothing to do.
func TestPeerFrozen(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--op write", "--op send --latency"} {
		for _, frozen := range []string{"server", "client"} {
			t.Run(args+" "+frozen, func(t *testing.T) {
				t.Parallel() // most of the time they wait
				server, client, o, clientOut := startLong(t, args, "--timeout 1s")
				victim, left := server, client
				if frozen == "client" {
					victim, left = client, server
				} else {
					o = clientOut
				}
				clitest.Freeze(t, victim)
				if code := clitest.ExitOf(t, left); code != 1 || !strings.Contains(o.Err.String(), "the other side") {
					t.Errorf("exit code %d: %q", code, &o.Err)
				}
			})
		}
	}
}
