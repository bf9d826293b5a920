package filexfer

import (
	"testing"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestMain(m *testing.M) {
	clitest.Main(m, func(s cli.Streams) *cobra.Command {
		return cli.NewRoot(s, NewSend(s), NewRecv(s), NewServeFiles(s), NewGet(s), NewList(s))
	})
}
