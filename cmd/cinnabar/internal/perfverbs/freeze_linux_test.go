package perfverbs

import (
	"strings"
	"testing"
)

// A side whose peer is frozen ends with an error in the time that is set, even one that has nothing to do.
func TestPeerFrozen(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--op write", "--op send --latency"} {
		for _, frozen := range []string{"server", "client"} {
			t.Run(args+" "+frozen, func(t *testing.T) {
				t.Parallel() // most of the time they wait
				server, client := startLong(t, args, "--timeout 1s")
				victim, left := server, client
				if frozen == "client" {
					victim, left = client, server
				}
				victim.Suspend()
				if code := left.ExitCode(); code != 1 || !strings.Contains(left.Stderr.String(), "the other side") {
					t.Errorf("exit code %d: %q", code, left.Stderr)
				}
			})
		}
	}
}
