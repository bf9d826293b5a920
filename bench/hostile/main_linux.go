package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// run is the command, or the process of an order. It returns the exit status.
func run(args []string) int {
	if text := os.Getenv(orderVariable); text != "" {
		return runOrder(text, os.Stdin, os.Stdout, os.Stderr)
	}
	s := setting{callLimit: 5 * time.Second, log: os.Stderr}
	flags := flag.NewFlagSet("hostile", flag.ContinueOnError)
	bars := flags.Bool("bars", true, "fail if a call fails or a ratio is too high")
	service := flags.String("service", "", "only services with this in their name")
	name := flags.String("attack", "", "only attacks with this in their name")
	flags.DurationVar(&s.duration, "duration", 3*time.Second, "time of each attack in a round; before it, the same time is measured without")
	flags.IntVar(&s.rounds, "rounds", 3, "how many times each attack begins")
	list := flags.Bool("list", false, "print the attacks and end")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // the flag set has printed the error
	}
	if s.rounds < 1 || s.duration <= 0 {
		fmt.Fprintln(os.Stderr, "hostile: -rounds and -duration must be positive")
		return 2
	}
	chosen := choose(*service, *name)
	if *list {
		printList(os.Stdout, chosen)
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := s.run(ctx, os.Stdout, chosen); err != nil && (*bars || !errors.Is(err, errBars)) {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		return 1
	}
	return 0
}

// setting is one run of the command.
type setting struct {
	duration  time.Duration // of each attack in a round
	rounds    int
	callLimit time.Duration // after which an innocent call has failed
	log       io.Writer
	program   string // that the processes run; empty: this one
}

// choose returns the attacks with the texts in service and name.
func choose(service, name string) []attack {
	var chosen []attack
	for _, a := range attacks {
		if strings.Contains(a.service, service) && strings.Contains(a.name, name) {
			chosen = append(chosen, a)
		}
	}
	return chosen
}

func printList(w io.Writer, list []attack) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, a := range list {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\n", a.service, a.name, a.about)
	}
	_ = t.Flush() // an error of standard output has no better place
}

// maxRatio bounds the 99th percentile beside attackers, in multiples of its value beside processes that spin.
const maxRatio = 10

// errBars is why the command fails although all measurements were made.
var errBars = errors.New("bars missed")

// run makes all measurements and prints the table.
func (s *setting) run(ctx context.Context, out io.Writer, list []attack) error {
	if len(list) == 0 {
		return errors.New("no attack has such a name; -list prints them")
	}
	if s.program == "" {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		s.program = program
	}
	cpus, err := twoProcessors()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "# %s, %s %s/%s, processor %d: server and innocent client, processor %d: %d attackers; %d rounds of %v each\n", time.Now().UTC().Format(time.DateOnly),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, cpus[0], cpus[1], attackers, s.rounds, s.duration)
	var missed []string
	var rows []row
	for i := range list {
		m, err := s.measure(ctx, &list[i], cpus)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", list[i].service, list[i].name, err)
		}
		missed = append(missed, m.missed()...)
		rows = append(rows, m.rows()...)
		_, _ = fmt.Fprintf(s.log, "%s\t%s\tdone\n", list[i].service, list[i].name)
	}
	printTable(out, rows)
	if len(missed) > 0 {
		return fmt.Errorf("%w:\n  %s", errBars, strings.Join(missed, "\n  "))
	}
	return nil
}

// row is a line of the table.
type row struct {
	m    *measurement
	kind string // of innocent calls
	base tally  // beside spinning processes
	now  tally  // beside attackers
}

func (r row) ratio() float64 {
	base := r.base.percentile(99)
	if base == 0 {
		return 0
	}
	return float64(r.now.percentile(99)) / float64(base)
}

func printTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "service\tattack\tinnocent\tcalls\tfailures\tp50\tp99\tspinning p99\tratio\tattackers/s\tpeak MiB\tpeak fds\tafter MiB\tafter fds\tlog lines\tlongest close\t")
	for _, r := range rows {
		m := r.m
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%v\t%v\t%v\t%.1f\t%.0f\t%d\t%d\t%d\t%d\t%d\t%s\t\n", m.attack.service, m.attack.name, r.kind, r.now.Calls, r.now.Failures,
			brief(r.now.percentile(50)), brief(r.now.percentile(99)), brief(r.base.percentile(99)), r.ratio(), m.rate, m.peak.rss>>20, m.peak.fds, m.after.rss>>20, m.after.fds, m.end.LogLines, longest(m.end.LongestClose))
	}
	_ = t.Flush() // an error of standard output has no better place
}

// brief rounds d for the table.
func brief(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

func longest(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return brief(d).String()
}

// twoProcessors returns the processors of server and attackers: the first two that this process may use.
func twoProcessors() (cpus [2]int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cpus, os.NewSyscallError("sched_getaffinity", err)
	}
	n := 0
	for i := 0; n < len(cpus) && i < maxProcessors; i++ {
		if set.IsSet(i) {
			cpus[n] = i
			n++
		}
	}
	if n < len(cpus) {
		cpus[1] = cpus[0]
		return cpus, errors.New("one processor only: attackers would take the server's time, so there is nothing to measure")
	}
	return cpus, nil
}

// maxProcessors is how many bits a CPUSet has.
const maxProcessors = 1024
