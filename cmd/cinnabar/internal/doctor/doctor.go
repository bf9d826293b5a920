// Package doctor has the command doctor, which tries the parts of a machine on which RPCs, shared memory and RDMA depend, and prints findings
// with their causes and remedies.
//
// A probe tries one part of the machine, such as locking memory. It reads the machine through a system, which tests replace in part, and adds findings to
// its exam. A finding has a level: ok, note, warning or fault. If a probe cannot run, it adds a finding of the level "not tried" with the reason.
// Probes run one after the other, each for a bounded time.
package doctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// probeTimeout is the default time of one probe.
const probeTimeout = 5 * time.Second

// addressProbe is the name of the probe of arguments.
const addressProbe = "address"

// options are the options of doctor.
type options struct {
	only, skip []string
	list       bool
	json       bool
	timeout    time.Duration // of each probe
	columns    int           // of the terminal
	system     *system
}

// New returns the command doctor, and the hidden one of the process that its probe attach starts.
func New(s cli.Streams) []*cobra.Command {
	return []*cobra.Command{newCommand(s, thisSystem()), newPeer(s)}
}

func newCommand(s cli.Streams, sys *system) *cobra.Command {
	o := &options{system: sys}
	cmd := &cobra.Command{
		Use:   "doctor [ADDRESS]...",
		Short: "Try this machine, and name faults with their causes and remedies",
		Long: `doctor tries the parts of this machine on which RPCs, shared memory and RDMA depend: it locks
memory, reads the memory of another process, registers memory on devices, and makes calls over
each protocol within this host. It also connects to each ADDRESS, which is HOST:PORT, or that of an
engine on ofi+tcp or na+sm; the engine must also answer a call.

Each finding begins with a level: a fault does not work; a warning works slowly or in part, or will
fail soon; a note is worth knowing, such as missing hardware. A probe that cannot run is "not
tried", with the reason. The exit code is 4 if there is a fault, 3 if there is a warning, else 0.`,
		Example: "  cinnabar doctor\n  cinnabar doctor --only memlock,attach,shm\n  cinnabar doctor --only address ofi+tcp://10.0.0.7:7000 10.0.0.7:22",
		Args:    cobra.MaximumNArgs(maxAddresses),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, err := o.choose(args)
			if err != nil {
				return err
			}
			if o.list {
				return listProbes(s.Out, chosen, o.json)
			}
			o.system.addresses, o.columns = args, cli.Columns(s.Out)
			return o.run(cmd.Context(), chosen, s.Out)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.only, "only", nil, "run these probes only: names, separated by commas")
	f.StringSliceVar(&o.skip, "skip", nil, "leave these probes out")
	f.BoolVarP(&o.list, "list", "l", false, "list the probes, and run none")
	cli.JSONFlag(f, &o.json)
	cli.TimeoutFlag(f, &o.timeout, probeTimeout, "how long each probe may take")
	names := make([]cobra.Completion, len(probes))
	for i, p := range probes {
		names[i] = cobra.CompletionWithDesc(p.name, p.about)
	}
	for _, option := range []string{"only", "skip"} {
		if err := cmd.RegisterFlagCompletionFunc(option, cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the option was registered above
		}
	}
	return cmd
}

// choose returns the probes that the options ask for, and checks the arguments.
func (o *options) choose(addresses []string) ([]probe, error) {
	if o.timeout <= 0 {
		return nil, cli.Usagef("--timeout is %v; want a time above 0, such as 5s", o.timeout)
	}
	for _, name := range slices.Concat(o.only, o.skip) {
		if !slices.ContainsFunc(probes, func(p probe) bool { return p.name == name }) {
			return nil, cli.Usagef("there is no probe %q; cinnabar doctor --list lists them", name)
		}
	}
	for _, a := range addresses {
		if _, err := parseTarget(a); err != nil {
			return nil, err
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(probes), func(p probe) bool {
		unasked := p.name == addressProbe && len(addresses) == 0 && !o.list
		return slices.Contains(o.skip, p.name) || !slices.Contains(o.only, p.name) && (len(o.only) > 0 || unasked)
	})
	if len(chosen) == 0 {
		return nil, cli.Usagef("--only and --skip leave no probe")
	}
	if len(addresses) > 0 && !slices.ContainsFunc(chosen, func(p probe) bool { return p.name == addressProbe }) {
		return nil, cli.Usagef("%q was given, and --only or --skip leaves out the probe address", addresses[0])
	}
	return chosen, nil
}

// listedProbe is a line of --list.
type listedProbe struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

func listProbes(w io.Writer, list []probe, asJSON bool) error {
	lines := make([]listedProbe, len(list))
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	for n, p := range list {
		lines[n] = listedProbe{p.name, p.about}
		i.Printf("%s\t%s\n", p.name, p.about)
	}
	if asJSON {
		return cli.WriteJSON(w, lines)
	}
	if i.Err != nil {
		return i.Err
	}
	return t.Flush()
}

// report is the output of --json.
type report struct {
	Probes   int       `json:"probes"`          // number of probes that ran
	Timeout  float64   `json:"timeout_seconds"` // of each probe
	Worst    level     `json:"worst"`           // fault, warning or ok; the exit code follows from it
	Findings []finding `json:"findings"`
}

// run runs the probes and prints their findings. Its error has the exit code of the worst one.
func (o *options) run(ctx context.Context, list []probe, w io.Writer) error {
	r := report{Probes: len(list), Timeout: o.timeout.Seconds(), Worst: levelOK, Findings: []finding{}}
	out := &text{cli.Printer{W: w}, o.columns}
	if !o.json {
		out.line("", heading(len(list), o.timeout))
	}
	counts := map[level]int{}
	for i := range list {
		found, err := list[i].examine(ctx, o.system, o.timeout)
		if err != nil {
			return err
		}
		for _, f := range found {
			counts[f.Level]++
			if f.Level.rank() > r.Worst.rank() {
				r.Worst = f.Level
			}
			if !o.json {
				out.finding(f)
			}
		}
		r.Findings = append(r.Findings, found...)
	}
	if o.json {
		out.Err = cli.WriteJSON(w, r)
	} else {
		out.line("", fmt.Sprintf("%s, %s, %s, %d ok, %d not tried", many(counts[levelFault], "fault"), many(counts[levelWarning], "warning"), many(counts[levelNote], "note"), counts[levelOK], counts[levelNotTried]))
	}
	switch {
	case out.Err != nil:
		return out.Err
	case r.Worst == levelFault:
		return cli.Exitf(cli.ExitFault, "%s and %s were found", many(counts[levelFault], "fault"), many(counts[levelWarning], "warning"))
	case r.Worst == levelWarning:
		return cli.Exitf(cli.ExitWarning, "%s found", were(counts[levelWarning], "warning"))
	}
	return nil
}

// heading is the first line of the output.
func heading(n int, timeout time.Duration) string {
	if n == 1 {
		return fmt.Sprintf("1 probe, with a time-out of %v", timeout)
	}
	return fmt.Sprintf("%d probes, each with a time-out of %v", n, timeout)
}

// many returns a text such as "1 fault" or "2 faults".
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// were returns a text such as "1 fault was" or "2 faults were".
func were(n int, thing string) string {
	if n == 1 {
		return many(n, thing) + " was"
	}
	return many(n, thing) + " were"
}

// text prints findings, folded to columns.
type text struct {
	cli.Printer
	columns int
}

// indent is the width of the column of levels.
const indent = len(levelNotTried) + 1

// line prints text behind a word in the column of levels, folded. Without a word the text begins in the first column.
func (t *text) line(word, text string) {
	in := indent
	if word == "" {
		in = 0
	}
	width := max(t.columns-in, leastColumns)
	for n, line := range strings.Split(cli.Fold(broken(text, width), width), "\n") {
		if n > 0 {
			word = ""
		}
		t.Printf("%s\n", strings.TrimRight(fmt.Sprintf("%-*s%s", in, word, line), " "))
	}
}

// leastColumns is the least width of texts in columns, however narrow the terminal is.
const leastColumns = 20

// broken returns text with spaces inserted into words that are wider than width, so that each part fits.
func broken(text string, width int) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		switch {
		case r == ' ':
			n = 0
		case n == width:
			b.WriteByte(' ')
			n = 1
		default:
			n++
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (t *text) finding(f finding) {
	word := string(f.Level)
	if f.Level == levelWarning || f.Level == levelFault {
		word = strings.ToUpper(word)
	}
	t.line(word, f.Probe+": "+f.Finding)
	if f.Cause != "" {
		t.line(" ", "cause: "+f.Cause)
	}
	if f.Remedy != "" {
		t.line(" ", "remedy: "+f.Remedy)
	}
}
