package perfverbs

import (
	"testing"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestMain(m *testing.M) {
	clitest.Main(m, func(s cli.Streams) *cobra.Command {
		perf := &cobra.Command{Use: "perf"}
		perf.AddCommand(New(s), NewRegistration(s))
		return cli.NewRoot(s, perf)
	})
}
