// Command rpc measures calls and bulk transfers of cinnabar perf beside the programs that do the same work elsewhere:
// Mercury's perf programs, if they are in PATH, gRPC-Go, and a plain TCP connection.
//
//	go run ./bench/rpc [-rounds N] [-duration D] [-case TEXT] [-curves] [-json FILE] [-bars] [-late D] [-toll D]
//
// Each case is measured twice: with nothing beside, and with one process beside that computes all the time. The latter begins before the
// rounds and ends after them, in the same session, because the scheduler may give another session a share of its own. Each round measures
// every path of the case, every second one in the opposite order, so that a machine with drifting speed treats the paths alike. Each measurement
// has a server of its own, and warms up first. Nothing else should be running.
//
// The first lines describe the machine: processor, kernel, load, and the price of waking a parked thread on an idle processor, which decides
// how small calls fare on it. The tables have for each path the medians of the mean, of p50 and of p99, the ratio of the mean to that of the first path,
// and the mean of every round, because a median hides a program with two states. A figure that a program does not print is left out: Mercury's print
// a mean only. Cases with several clients have the calls per second of the slowest and the fastest client.
//
// Below a table stands how much of the processors programs beside the measured ones have used, if that is worth mention: then the figures are not those of
// a quiet machine.
//
// At the end stands the processor time of two connected engines without traffic.
//
// -json writes the same figures as lines of JSON, which bench/report draws. -curves adds the cases for its charts. -bars compares
// the figures with the project's goals, and fails if one is missed or was not measured.
//
// -late and -toll give a machine with cheap wake-ups the prices of one with dear ones, in the processes of cinnabar: each wake-up takes the
// first time longer, and each signal to another process the second. A line below each table counts the delays of the client, which shows that they act.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cinnabar/bench/internal/record"
)

// roleVariable is the environment variable that makes the command a process of its own measurement.
const roleVariable = "CINNABAR_BENCH_RPC"

// setting is one run of the command.
type setting struct {
	rounds       int
	duration     time.Duration
	filter       string
	curves, bars bool
	late, toll   time.Duration
	file         string // for the lines of JSON; empty: none
	dir          string // of the built programs, and of Mercury's port file
	self         string // this program
	out, log     io.Writer

	lines   io.Writer // of JSON
	results []record.Result
	idle    []record.Idle
}

func main() {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role, os.Stdin, os.Stdout))
	}
	s := setting{out: os.Stdout, log: os.Stderr}
	flag.IntVar(&s.rounds, "rounds", 5, "alternating rounds")
	flag.DurationVar(&s.duration, "duration", time.Second, "time of each measurement")
	flag.StringVar(&s.filter, "case", "", "only cases with this text in their names")
	flag.BoolVar(&s.curves, "curves", false, "also measure the cases that only charts need")
	flag.StringVar(&s.file, "json", "", "write the figures to this file as lines of JSON")
	flag.BoolVar(&s.bars, "bars", false, "compare the figures with the goals, and fail if one is missed")
	flag.DurationVar(&s.late, "late", 0, "delay each wake-up in the processes of cinnabar")
	flag.DurationVar(&s.toll, "toll", 0, "delay each signal of theirs to another process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		os.Exit(1)
	}
}

func (s *setting) run(ctx context.Context) (err error) {
	if s.rounds < 1 || s.duration <= 0 {
		return fmt.Errorf("-rounds %d of -duration %v measure nothing; both must be above 0", s.rounds, s.duration)
	}
	if s.late < 0 || s.toll < 0 {
		return fmt.Errorf("-late %v and -toll %v must not be below 0", s.late, s.toll)
	}
	if s.self, err = os.Executable(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "cinnabar-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	s.lines = io.Discard
	if s.file != "" {
		f, createErr := os.Create(s.file)
		if createErr != nil {
			return createErr
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		s.lines = f
	}
	machine := s.machine(ctx) // before the builds, which raise the load
	for _, p := range []struct{ module, pkg, name string }{
		{".", "./cmd/cinnabar", "cinnabar"}, {".", "./bench/rawtcp", "rawtcp"}, {".", "./bench/smping", "smping"}, {"bench/peers/grpcunary", ".", "grpcunary"},
	} {
		if err := s.build(ctx, p.module, p.pkg, p.name); err != nil {
			return err
		}
	}
	if err := s.describe(machine); err != nil {
		return err
	}
	for _, c := range allCases() {
		if strings.Contains(c.name(), s.filter) && (s.curves || !c.curve) {
			if err := s.measureCase(ctx, c); err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
		}
	}
	if strings.Contains("idle engines", s.filter) {
		if err := s.measureIdle(ctx); err != nil {
			return err
		}
	}
	if s.bars {
		return s.judge()
	}
	return nil
}

func (s *setting) build(ctx context.Context, module, pkg, name string) error {
	cmd := exec.CommandContext(ctx, "go", "-C", module, "build", "-o", s.program(name), pkg)
	cmd.Stderr = s.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s, from the root of the repository: %w", name, err)
	}
	return nil
}

func (s *setting) program(name string) string { return filepath.Join(s.dir, name) }

// measureCase measures and prints a case under each load.
func (s *setting) measureCase(ctx context.Context, c *benchCase) error {
	if err := s.measureUnder(ctx, c, record.Quiet); err != nil || c.curve {
		return err
	}
	return s.measureUnder(ctx, c, record.Busy)
}

// measureUnder measures, prints and records a case under one load.
func (s *setting) measureUnder(ctx context.Context, c *benchCase, load string) error {
	before := processorUse()
	var busy *busyProcess
	if load == record.Busy {
		var err error
		if busy, err = s.startBusy(ctx); err != nil {
			return err
		}
	}
	results, err := s.measure(ctx, c, load)
	var used time.Duration
	if busy != nil {
		var endErr error
		used, endErr = busy.end()
		err = errors.Join(err, endErr)
	}
	if err != nil {
		return err
	}
	took := time.Since(before.at)
	others, stolen := processorUse().since(before)
	title := ""
	if busy != nil {
		title = ", beside a busy process"
	}
	if err := printTable(s.out, c, title, results); err != nil {
		return err
	}
	if err := s.printNotes(results, busy != nil, used.Seconds()/took.Seconds(), others, stolen); err != nil {
		return err
	}
	for i := range results {
		r := &results[i]
		r.Others, r.Stolen = others, stolen
		if len(r.Rounds) == 0 {
			continue
		}
		if err := record.Write(s.lines, *r); err != nil {
			return err
		}
	}
	s.results = append(s.results, results...)
	return nil
}

// measure runs the paths of c in turn.
func (s *setting) measure(ctx context.Context, c *benchCase, load string) ([]record.Result, error) {
	results := make([]record.Result, len(c.paths))
	for i, p := range c.paths {
		results[i] = record.Result{Op: c.op, Transport: c.transport, Path: p.name, Load: load, Size: int64(c.size), Inflight: c.inflight, Clients: c.clients}
	}
	order := make([]int, len(c.paths))
	for i := range order {
		order[i] = i
	}
	for range s.rounds {
		for _, i := range order {
			p := &c.paths[i]
			if !p.available() {
				continue
			}
			r, err := s.one(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			results[i].Rounds = append(results[i].Rounds, r)
		}
		slices.Reverse(order)
	}
	return results, nil
}

// disturbance is the number of processors from which on other programs, or the host of a virtual machine, make figures doubtful.
const disturbance = 0.05

// printNotes prints the circumstances under which a case was measured: the share of a processor that the busy process had, disturbances, and how many wake-ups
// and signals were delayed on purpose in the clients of all rounds.
func (s *setting) printNotes(results []record.Result, busy bool, share, others, stolen float64) error {
	var b strings.Builder
	if busy {
		fmt.Fprintf(&b, "# the busy process had %.0f %% of a processor\n", 100*share)
	}
	if others > disturbance {
		fmt.Fprintf(&b, "# disturbed: other programs used %.2f processors\n", others)
	}
	if stolen > disturbance {
		fmt.Fprintf(&b, "# disturbed: the host of this virtual machine withheld %.2f processors\n", stolen)
	}
	if s.late > 0 || s.toll > 0 {
		n := 0.0
		for _, r := range results {
			for _, x := range r.Rounds {
				n += x.Delayed
			}
		}
		fmt.Fprintf(&b, "# -late and -toll acted %.0f times in the clients\n", n)
	}
	_, err := io.WriteString(s.out, b.String())
	return err
}

// dearArgs returns the options of cinnabar's processes that make wake-ups dear.
func (s *setting) dearArgs(p *path) []string {
	if p.client[0] != "cinnabar" || s.late == 0 && s.toll == 0 {
		return nil
	}
	return []string{"--late", s.late.String(), "--toll", s.toll.String()}
}

// one starts a path's server, measures, and ends the server.
func (s *setting) one(ctx context.Context, p *path) (_ record.Round, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.duration*4+60*time.Second)
	defer cancel()
	srv := exec.CommandContext(ctx, s.find(p.server[0]), append(p.server[1:len(p.server):len(p.server)], s.dearArgs(p)...)...)
	srv.Dir, srv.Stderr = s.dir, io.Discard
	hold, err := srv.StdinPipe()
	if err != nil {
		return record.Round{}, err
	}
	out, err := srv.StdoutPipe()
	if err != nil {
		return record.Round{}, err
	}
	if err := srv.Start(); err != nil {
		return record.Round{}, err
	}
	defer func() {
		_ = hold.Close()
		_ = srv.Process.Signal(os.Interrupt) // for a server that does not end with its standard input, or when its client is done
		_ = srv.Wait()
	}()
	address, err := ready(out, p.ready)
	if err != nil {
		return record.Round{}, err
	}
	return s.client(ctx, p, address)
}

// ready waits for the line with which a server announces that it serves, and reads on in the background.
func ready(out io.Reader, mark string) (string, error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), mark) {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return strings.TrimSpace(lines.Text()), nil
		}
	}
	return "", errors.Join(errors.New("the server ended before it served"), lines.Err())
}

// client runs the measuring half.
func (s *setting) client(ctx context.Context, p *path, address string) (record.Round, error) {
	cmd := exec.CommandContext(ctx, s.find(p.client[0]), append(p.clientArgs(address, s.duration), s.dearArgs(p)...)...)
	cmd.Dir = s.dir
	text, err := cmd.Output()
	if err != nil {
		said := text
		if e, ok := errors.AsType[*exec.ExitError](err); ok && len(e.Stderr) > 0 {
			said = e.Stderr
		}
		return record.Round{}, fmt.Errorf("client: %w: %s", err, strings.TrimSpace(string(said)))
	}
	return p.parse(string(text))
}

// find prefers the programs that were built over those in PATH.
func (s *setting) find(name string) string {
	own := s.program(name)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return name
}
