// Package manpage has the hidden command man, which prints the manual pages of all commands in the format of roff, from the same texts as
// their help.
package manpage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// section is the section of the manual for commands.
const section = "1"

// New returns the command man.
func New(s cli.Streams) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "man [COMMAND]...",
		Hidden: true, // because packagers use it, once
		Short:  "Print a manual page, or write all of them",
		Long: `man prints the manual page of a command, which man -l - shows. With --dir it writes the pages of all
commands into a directory, such as cinnabar-perf-serve.1. The date of the pages is SOURCE_DATE_EPOCH
in the environment, seconds since 1970, or else that of the commit of the program, or today.`,
		Example: "  cinnabar man perf serve | man -l -\n  cinnabar man --dir /usr/local/share/man/man1",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			date, err := pageDate()
			if err != nil {
				return err
			}
			if dir != "" {
				if len(args) > 0 {
					return cli.Usagef("--dir and a command were given; --dir writes the pages of all commands")
				}
				return writeAll(cmd.Root(), date, dir)
			}
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return cli.Usagef("unknown command %q", strings.Join(args, " "))
			}
			_, err = s.Out.Write(Page(of, date))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write the pages of all commands into this directory")
	return cmd
}

// pageDate returns the date of the pages.
func pageDate() (time.Time, error) {
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if last := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC); err != nil || n < 0 || n > last.Unix() {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%q is no number of seconds from 0 to %d", text, last.Unix())
		}
		return time.Unix(n, 0).UTC(), nil
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return t.UTC(), nil
			}
		}
	}
	return time.Now().UTC(), nil
}

// writeAll writes the pages of root and of all its commands into dir.
func writeAll(root *cobra.Command, date time.Time, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	var errs []error
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		errs = append(errs, os.WriteFile(filepath.Join(dir, FileName(cmd)), Page(cmd, date), 0o666))
		for _, c := range documented(cmd) {
			visit(c)
		}
	}
	visit(root)
	return errors.Join(errs...)
}

// documented returns the sub-commands that have pages.
func documented(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			list = append(list, c)
		}
	}
	return list
}

// name returns the name of the page of a command, such as cinnabar-perf-serve.
func name(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// FileName returns the name of the file of a page.
func FileName(cmd *cobra.Command) string { return name(cmd) + "." + section }

// page is a manual page in the macros of man(7). All of it is ASCII.
type page struct{ bytes.Buffer }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(&p.Buffer, format, args...) }

// Page returns the manual page of a command.
func Page(cmd *cobra.Command, date time.Time) []byte {
	cmd.InitDefaultHelpFlag()
	var p page
	version, _, _ := strings.Cut(cmd.Root().Version, " ")
	p.printf(".TH %s %s %s %s %s\n", quoted(strings.ToUpper(name(cmd))), section, date.Format(time.DateOnly), quoted("cinnabar "+version), quoted("cinnabar manual"))
	p.heading("NAME")
	p.printf("%s \\- %s\n", escape(name(cmd)), escape(strings.TrimSuffix(cmd.Short, ".")))
	p.heading("SYNOPSIS")
	p.synopsis(cmd)
	p.heading("DESCRIPTION")
	if long := strings.Join(strings.Fields(cmd.Long), " "); long != "" && long != cmd.Short {
		p.text(cmd.Long)
	} else {
		p.text(cmd.Short + ".")
	}
	p.commands(cmd)
	p.options("OPTIONS", cmd.NonInheritedFlags())
	p.options("OPTIONS OF EVERY COMMAND", cmd.InheritedFlags())
	p.exitStatus(cmd)
	if cmd.HasExample() {
		p.heading("EXAMPLES")
		p.verbatim(strings.Split(cmd.Example, "\n"))
	}
	p.seeAlso(cmd)
	return p.Bytes()
}

func (p *page) heading(title string) { p.printf(".SH %s\n", title) }

// synopsis prints the usage of a command: its words in bold, its arguments as they are.
func (p *page) synopsis(cmd *cobra.Command) {
	rest := strings.Replace(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()), "[flags]", "[OPTION]...", 1)
	if documented := documented(cmd); len(documented) > 0 && !strings.Contains(rest, "COMMAND") {
		rest = " COMMAND"
	}
	p.printf(".B %s\n", escape(cmd.CommandPath()))
	if rest = strings.TrimSpace(rest); rest != "" {
		p.wrap(rest)
	}
}

// text prints paragraphs. Lines that begin with a space stay as they are.
func (p *page) text(text string) {
	var paragraph, block []string
	begun := false
	flush := func() {
		if begun && (len(paragraph) > 0 || len(block) > 0) {
			p.WriteString(".PP\n")
		}
		if len(paragraph) > 0 {
			p.wrap(strings.Join(paragraph, " "))
			begun = true
		}
		if len(block) > 0 {
			p.verbatim(block)
			begun = true
		}
		paragraph, block = nil, nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
		switch {
		case line == "":
			flush()
		case indented:
			if len(paragraph) > 0 {
				flush()
			}
			block = append(block, line)
		default:
			if len(block) > 0 {
				flush()
			}
			paragraph = append(paragraph, line)
		}
	}
	flush()
}

// verbatim prints lines as they are.
func (p *page) verbatim(lines []string) {
	p.WriteString(".nf\n")
	for _, line := range lines {
		p.line(strings.TrimRight(line, " \t"))
	}
	p.WriteString(".fi\n")
}

// line prints one line of text.
func (p *page) line(text string) {
	text = escape(text)
	if text == "" || text[0] == '.' || text[0] == '\'' {
		text = `\&` + text // because such a line would be a request of roff
	}
	p.WriteString(text + "\n")
}

// maxLine is the longest line in the source of a page, unless a word is longer.
const maxLine = 78

// wrap prints text in lines of at most maxLine characters.
func (p *page) wrap(text string) {
	for line := range strings.SplitSeq(cli.Fold(text, maxLine), "\n") {
		p.line(line)
	}
}

// commands lists the sub-commands of cmd.
func (p *page) commands(cmd *cobra.Command) {
	list := documented(cmd)
	if len(list) == 0 {
		return
	}
	p.heading("COMMANDS")
	for _, c := range list {
		p.printf(".TP\n.BR %s (%s)\n", escape(name(c)), section)
		p.wrap(c.Short)
	}
}

// options lists flags, in their order.
func (p *page) options(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.heading(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		p.WriteString(".TP\n")
		if f.Shorthand != "" {
			p.printf(`\fB\-%s\fR, `, escape(f.Shorthand))
		}
		p.printf(`\fB\-\-%s\fR`, escape(f.Name))
		if value != "" {
			p.printf(` \fI%s\fR`, escape(value))
		}
		p.WriteByte('\n')
		p.wrap(usage + defaultText(f))
	})
}

// defaultText returns the default of a flag as help prints it, empty for a zero value.
func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "0", "0s", "false", "[]", "<nil>":
		return ""
	}
	if f.Value.Type() == "string" {
		return fmt.Sprintf(" (default %q)", f.DefValue)
	}
	return fmt.Sprintf(" (default %s)", f.DefValue)
}

// exitStatus lists the exit codes, which all commands share.
func (p *page) exitStatus(cmd *cobra.Command) {
	p.heading("EXIT STATUS")
	row := func(code, meaning string) {
		p.printf(".TP\n.B %s\n", code)
		p.wrap(meaning)
	}
	row(strconv.Itoa(cli.ExitOK), "The command did its work. A server that serves until it is interrupted has done so.")
	row(strconv.Itoa(cli.ExitFailure), "The work failed.")
	row(strconv.Itoa(cli.ExitUsage), "The command line is wrong.")
	if cmd.Name() == "doctor" {
		row(strconv.Itoa(cli.ExitWarning), "The worst finding is a warning.")
		row(strconv.Itoa(cli.ExitFault), "The worst finding is a fault.")
	}
	row(strconv.Itoa(cli.ExitSignal)+"+n", "Signal n ended the command before its work was done.")
}

// seeAlso names the pages of the command above, and of its other sub-commands.
func (p *page) seeAlso(cmd *cobra.Command) {
	above := cmd.Parent()
	if above == nil {
		return
	}
	names := []string{name(above)}
	for _, c := range documented(above) {
		if c != cmd && above.HasParent() {
			names = append(names, name(c))
		}
	}
	p.heading("SEE ALSO")
	for i, n := range names {
		comma := ","
		if i == len(names)-1 {
			comma = ""
		}
		p.printf(".BR %s (%s)%s\n", escape(n), section, comma)
	}
}

// quoted returns an argument of a macro.
func quoted(text string) string { return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"` }

// escape returns text as roff prints it unchanged, in ASCII.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\(rs`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '`':
			b.WriteString(`\(ga`)
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r == '\t':
			b.WriteString("        ")
		case r < ' ' || r == 0x7f:
			b.WriteByte(' ')
		case r > 0x7f:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
