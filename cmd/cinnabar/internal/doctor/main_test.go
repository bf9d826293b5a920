package doctor

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestMain(m *testing.M) {
	if err := provoke(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(provokeFailed)
	}
	clitest.Main(m, func(s cli.Streams) *cobra.Command { return cli.NewRoot(s, New(s)...) })
}

// provokeFailed is the exit code of a process in which a fault could not be provoked.
const provokeFailed = 99

// examination runs the probe of that name on a system that tests have changed.
func examination(t *testing.T, sys *system, name string) []finding {
	t.Helper()
	return examineFor(t, sys, name, probeTimeout)
}

func examineFor(t *testing.T, sys *system, name string, timeout time.Duration) []finding {
	t.Helper()
	for i := range probes {
		if probes[i].name == name {
			found, err := probes[i].examine(t.Context(), sys, timeout)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
	}
	t.Fatalf("there is no probe %q", name)
	return nil
}
