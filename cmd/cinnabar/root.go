package main

import (
	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/call"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/compare"
	"cinnabar/cmd/cinnabar/internal/demo"
	"cinnabar/cmd/cinnabar/internal/doctor"
	"cinnabar/cmd/cinnabar/internal/filexfer"
	"cinnabar/cmd/cinnabar/internal/inspect"
	"cinnabar/cmd/cinnabar/internal/lend"
	"cinnabar/cmd/cinnabar/internal/manpage"
	"cinnabar/cmd/cinnabar/internal/perfrpc"
	"cinnabar/cmd/cinnabar/internal/perfverbs"
	"cinnabar/cmd/cinnabar/internal/pingpong"
	"cinnabar/cmd/cinnabar/internal/rping"
	"cinnabar/cmd/cinnabar/internal/top"
	"cinnabar/cmd/cinnabar/internal/wire"
)

// newTree builds the tree of commands.
func newTree(s cli.Streams) *cobra.Command {
	perf := perfrpc.New(s)
	perf.AddCommand(perfverbs.New(s), perfverbs.NewRegistration(s))
	commands := append(doctor.New(s), demo.New(s), demo.NewPeer(s), filexfer.NewSend(s), filexfer.NewRecv(s), filexfer.NewServeFiles(s), filexfer.NewGet(s), filexfer.NewList(s), inspect.NewDevices(s), pingpong.New(s), rping.New(s), compare.New(s),
		compare.NewPeer(s), perf, inspect.NewInfo(s), inspect.NewQuery(s), inspect.NewShutdown(s), lend.New(s), call.New(s), call.NewPing(s), call.NewID(s), top.New(s), wire.New(s), cli.NewToken(s), manpage.New(s))
	return cli.NewRoot(s, commands...)
}
