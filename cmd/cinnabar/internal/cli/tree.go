package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Width is the largest width of a help text in columns, which fits the narrowest common terminal. On a narrower one the text has its width.
const Width = 80

// dress adds to a command and its sub-commands the behaviour that all commands share: usage errors with exit code 2, suggestions,
// completion, and help texts of at most so many columns.
func dress(cmd *cobra.Command, columns int) {
	if cmd.HasSubCommands() {
		cmd.Args = knownCommand
		cmd.SuggestionsMinimumDistance = suggestionDistance
		if !cmd.Runnable() { // because cobra checks arguments of runnable commands only
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	cmd.Args = usageArgs(cmd.Args)
	cmd.Long = Fold(cmp.Or(cmd.Long, cmd.Short), columns) // cobra prints the one or the other
	complete(cmd)
	for _, c := range cmd.Commands() {
		dress(c, columns)
	}
}

// usageArgs turns the error of check into a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usagef("%w; usage: %s", err, useLine(cmd))
		}
		return nil
	}
}

// useLine returns the usage of a command. That of a command with sub-commands names a sub-command, because it does nothing by itself.
func useLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " COMMAND"
	}
	return cmd.UseLine()
}

// NoArgs refuses every argument.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("the command takes no arguments, and %q was given", args[0])
	}
	return nil
}

// knownCommand checks the arguments of a command that only has sub-commands. Any argument is an error, because cobra calls it only
// if no sub-command has that name.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q%s", args[0], didYouMean("", cmd.SuggestionsFor(args[0])))
}

// suggestionDistance is the largest number of letters by which a suggested name differs.
const suggestionDistance = 2

// didYouMean returns the part of an error that suggests other names. It is empty without suggestions.
func didYouMean(prefix string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	for i := range names {
		names[i] = prefix + names[i]
	}
	return " (did you mean " + strings.Join(names, " or ") + "?)"
}

// unknownFlag turns an error about the flags of a command into a usage error, and suggests a flag with a similar name.
func unknownFlag(cmd *cobra.Command, err error) error {
	hint := ""
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok && e.GetSpecifiedShortnames() == "" { // every name is similar to one letter
		hint = didYouMean("--", flagsLike(cmd, e.GetSpecifiedName()))
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if n, ok := errors.AsType[*strconv.NumError](err); ok {
			err = fmt.Errorf("--%s %q: %w", e.GetFlag().Name, e.GetValue(), n.Err)
		}
	}
	return Usagef("%w%s; %s --help lists the options", err, hint, cmd.CommandPath())
}

// flagsLike returns the flags of a command that have names similar to name. It lets cobra compare them, as names of commands.
func flagsLike(cmd *cobra.Command, name string) []string {
	names := &cobra.Command{SuggestionsMinimumDistance: suggestionDistance}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return names.SuggestionsFor(name)
}

// printUsage prints the usage of a command as cobra does, in at most so many columns. Command lines are not broken.
func printUsage(cmd *cobra.Command, columns int) error {
	i := &Printer{W: cmd.OutOrStderr()}
	i.Printf("Usage:\n")
	i.Printf("  %s\n", useLine(cmd))
	if cmd.HasExample() {
		i.Printf("\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		i.Printf("\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				indent := 2 + c.NamePadding() + 1
				short := strings.ReplaceAll(Fold(c.Short, columns-indent), "\n", "\n"+strings.Repeat(" ", indent))
				i.Printf("  %-*s %s\n", c.NamePadding(), c.Name(), short)
			}
		}
	}
	for _, part := range []struct {
		title string
		flags *pflag.FlagSet
	}{{"Options", cmd.LocalFlags()}, {"Options of every command", cmd.InheritedFlags()}} {
		if part.flags.HasAvailableFlags() {
			i.Printf("\n%s:\n%s", part.title, part.flags.FlagUsagesWrapped(columns))
		}
	}
	if cmd.HasAvailableSubCommands() {
		i.Printf("\n%s\n", Fold(cmd.CommandPath()+" COMMAND --help describes a command.", columns))
	}
	return i.Err
}

// addHelp adds cobra's commands for completion and for help. Help about an unknown command is an error.
func addHelp(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		panic(err) // it was added above
	}
	help.Use, help.Short, help.Long = "help [COMMAND]...", "Describe a command", "help describes a command as COMMAND --help does."
	help.Example = "  cinnabar help\n  cinnabar help mem put"
	help.Args, help.Run = cobra.ArbitraryArgs, nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return Usagef("unknown command %q%s", strings.Join(args, " "), didYouMean("", cmd.SuggestionsFor(rest[0])))
		}
		cmd.InitDefaultHelpFlag()
		return cmd.Help()
	}
}

// Fold breaks the lines of text at spaces so that no line is longer than width columns, except for a longer word. Empty lines
// separate paragraphs; lines that begin with a space stay unchanged.
func Fold(text string, width int) string {
	var out []string
	column := 0 // width of the last line of out; 0: the next word begins a line
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			out, column = append(out, line), 0
			continue
		}
		for word := range strings.FieldsSeq(line) {
			n := len([]rune(word))
			if column == 0 || column+1+n > width {
				out, column = append(out, word), n
				continue
			}
			out[len(out)-1] += " " + word
			column += 1 + n
		}
	}
	return strings.Join(out, "\n")
}

// firstError writes to w and keeps the first error, because cobra does not return errors of its writer.
type firstError struct {
	w   io.Writer
	err error
}

func (f *firstError) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if f.err == nil {
		f.err = err
	}
	return n, err
}
