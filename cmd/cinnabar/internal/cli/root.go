package cli

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"
)

// Tree builds the commands of a program, by NewRoot.
type Tree func(Streams) *cobra.Command

// Main carries out the command line of this process and returns the exit code. SIGINT and SIGTERM end the context of the command.
func Main(tree Tree) int {
	ctx, stop := withSignals(context.Background(), os.Stderr)
	defer stop()
	return Run(ctx, tree, os.Args[1:], interruptible(ctx, os.Stdin, os.Stdout, os.Stderr))
}

// Run carries out one command line and returns the exit code. An error is
// printed on s.err, once, and names the command that it is about.
func Run(ctx context.Context, tree Tree, args []string, s Streams) int {
	root := tree(s)
	root.SetArgs(args)
	help := &firstError{w: s.Out} // for the output of cobra
	root.SetOut(help)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = help.err
	}
	if err == nil {
		return ExitOK
	}
	cause, stopped := errors.AsType[SignalError](context.Cause(ctx))
	if stopped {
		err = cause
	}
	// A hidden peer process that its parent has ended prints no error, because the parent prints the cause.
	if !cmd.Hidden || !stopped && !errors.Is(err, ErrParentEnded) {
		s.Notef("%s: %s\n", cmd.CommandPath(), Printable(OneLine(err))+advice(cmd.Name(), err)) // a peer's words may be in it
	}
	return ExitCode(ctx, err)
}

// NewRoot returns the command cinnabar with these sub-commands, and with those for the version, for help and for completion.
func NewRoot(s Streams, commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           "cinnabar",
		Short:         "RDMA for Go: demonstration, tools and measurements",
		Version:       thisVersion().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(unknownFlag)
	columns := Columns(s.Out)
	root.SetUsageFunc(func(cmd *cobra.Command) error { return printUsage(cmd, columns) })
	addLogLevel(root, s.Err)
	root.AddCommand(commands...)
	root.AddCommand(newVersion(s))
	addHelp(root)
	dress(root, columns)
	return root
}
