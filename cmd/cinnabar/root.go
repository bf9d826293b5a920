package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
)

// run carries out one command line and returns the exit code. An error is
// printed on s.err, once, and names the command that it is about.
func run(ctx context.Context, args []string, s streams) int {
	root := newRoot(s)
	root.SetArgs(args)
	help := &firstError{w: s.out} // what cobra prints
	root.SetOut(help)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = help.err
	}
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
	var level string
	root := &cobra.Command{
		Use:           "cinnabar",
		Short:         "RDMA for Go: demonstration, tools and measurements",
		Version:       thisVersion().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("log-level") {
				return nil
			}
			ctx, err := withLogging(cmd.Context(), level, s.err)
			if err == nil {
				cmd.SetContext(ctx)
			}
			return err
		},
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(unknownFlag)
	root.SetUsageFunc(printUsage)
	root.PersistentFlags().StringVar(&level, "log-level", "", "log to standard error: "+strings.Join(logLevels, ", ")+" (default nothing, or what MARGO_LOG_LEVEL and HG_LOG_LEVEL of the environment say)")
	root.AddCommand(newDemo(s), newDemoPeer(s), newSend(s), newRecv(s), newDevices(s), newPingpong(s), newRping(s), newCompare(s),
		newComparePeer(s), newPerf(s), newInfo(s), newQuery(s), newShutdown(s), newMem(s), newVersion(s))
	addHelp(root)
	dress(root)
	return root
}
