//go:build linux

package interop

import (
	"strings"
	"testing"
)

// replayedThallium are the conversations in which a recorded C++ client is played to a server in Go.
const replayedThallium = "sum sum42 divide hello nothing unknown identity null bulks values overflow select pull push"

// TestReplayThallium plays what clients in C++ have sent to a server in Go, whose answers must be those of the server in
// C++ but for what each process chooses itself. The conversation "values" has every type of the encoding.
// parity(recorded): H47 T06 T21 T24 T47 T50 T52
func TestReplayThallium(t *testing.T) {
	apart(t)
	for _, name := range strings.Fields(replayedThallium) {
		t.Run(name, func(t *testing.T) {
			replay(t, listenThallium(t, nil).Addr(), conversation(t, "thallium_"+name))
		})
	}
}
