package main

import (
	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// newTree builds the tree of commands.
func newTree(s cli.Streams) *cobra.Command {
	perf := newPerf(s)
	perf.AddCommand(newPerfVerbs(s), newPerfRegistration(s))
	return cli.NewRoot(s, newDemo(s), newDemoPeer(s), newSend(s), newRecv(s), newDevices(s), newPingpong(s), newRping(s), newCompare(s),
		newComparePeer(s), perf, newInfo(s), newQuery(s), newShutdown(s), newMem(s))
}
