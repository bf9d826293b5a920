package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"cinnabar"
)

// run carries out one command line and returns the exit code. An error is
// printed on s.err, once, and names the command that it is about.
func run(ctx context.Context, args []string, s streams) int {
	root := newRoot(s)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	cause, stopped := errors.AsType[signalError](context.Cause(ctx))
	if stopped {
		err = cause
	}
	// A peer that was told to end has nothing to add to what its parent says.
	if !cmd.Hidden || !stopped && !errors.Is(err, errParentEnded) {
		s.notef("%s: %s\n", cmd.CommandPath(), printable(oneLine(err))) // a peer's words may be in it
	}
	return exitCode(ctx, err)
}

// oneLine is the text of err; joined errors are separated by semicolons.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// newRoot builds the tree of commands.
func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "cinnabar",
		Short:         "RDMA for Go: demonstration, tools and measurements",
		Version:       version(),
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; %s --help lists the options", err, cmd.CommandPath())
	})
	root.AddCommand(newDemo(s), newDemoPeer(s), newSend(s), newRecv(s), newDevices(s), newPingpong(s), newRping(s), newCompare(s),
		newComparePeer(s), newPerf(s), newInfo(s), newQuery(s), newShutdown(s), newMem(s))
	for _, c := range root.Commands() {
		c.Args = usageArgs(c.Args)
		aliasDevice(c.Flags())
	}
	root.Args = usageArgs(root.Args)
	return root
}

// usageArgs makes a refused argument a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// version describes the build: the module's version, the commit where the
// build knows it, the toolchain and the platform, and the version of Mercury's headers.
func version() string {
	v, commit := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = " " + s.Value
			}
		}
	}
	return fmt.Sprintf("%s%s %s %s/%s, Mercury protocol %d", v, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH, cinnabar.MercuryProtocol)
}
