// Command files measures cinnabar send and recv beside the programs that people copy files with: tar over a TCP connection, rsync, a plain
// copy over TCP and a plain copy on the disk. All of them copy from one directory of a disk to another one of the same disk. The connections use the loopback interface.
//
//	go run ./bench/files [-dir DIR] [-rounds N] [-case TEXT] [-paths NAME,...] [-files N] [-size BYTES] [-large BYTES] [-json FILE] [-cinnabar PROGRAM]
//
// Cases:
//
//	tree    -files files of -size bytes each, 500 in a directory
//	synced  the same, where each file is on the disk at the end
//	large   one file of -large bytes; the plain copies compute the same digest as cinnabar
//
// Each round measures every path of a case, every second round in the opposite order, so that a machine with drifting speed treats the paths alike. The
// source is in the system's cache of files. Each measurement stores in an empty directory, and begins when earlier writes are on the disk. The time
// begins with the start of the receiving program, or of the only one. It ends when all programs have ended; a daemon of rsync is killed
// as soon as the sender has ended. Nothing else should be running. No program should have removed many files from the disk in the last six minutes, because an
// ext4 without a journal does not reuse the inodes of removed files for that time: it steps over all of them for each new file, and a copy then takes several times
// as long. This command removes the copies of a case when the case ends, so on such a disk measure each case in a run of its own (-case), six minutes apart.
//
// The paths:
//
//	cinnabar  send and recv, with --recursive and --preserve for a tree and --fsync in the case synced; as cinnabar-blake3 in the other
//	          cases with --digest=blake3
//	tar       tar c, whose standard output is a TCP connection that is the standard input of tar x. In the case synced a program in place of tar x syncs each
//	          file before it closes it, because tar has no such option
//	rsync     rsync with --whole-file and, in the case synced, --fsync, to a daemon
//	tcp       for a file, a plain copy over a TCP connection: a program reads the file and writes to the connection, and another one reads from the
//	          connection and writes the file. Both compute the digest while they copy: SHA-256, or BLAKE3 in the path tcp-blake3
//	copy      for a tree cp -a; for a file a program that computes the digest while it copies, with BLAKE3 in the path copy-blake3. There is no connection
//
// The tables have the median of the rounds, the rate, the ratio of the first path's time to that of each path, and the time of every round. -json writes the figures for bench/report.
package main

import (
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

	"cinnabar/bench/internal/machine"
	"cinnabar/bench/internal/record"
)

// roleVariable is the environment variable with the role of a process that the command starts for a measurement (see runRole).
const roleVariable = "CINNABAR_BENCH_FILES"

// setting is one run of the command.
type setting struct {
	dir         string // on the disk that is measured
	rounds      int
	filter      string
	paths       string // comma-separated; empty: all
	files       int
	size, large int64
	file        string // for the lines of JSON; empty: none
	program     string // cinnabar
	self        string // this program
	out, log    io.Writer

	work  string    // directory below dir that is removed at the end
	lines io.Writer // of JSON
	sync  func()    // once calls it before each measurement
}

// register adds the options of the command, which set fields of s.
func (s *setting) register(f *flag.FlagSet) {
	f.StringVar(&s.dir, "dir", ".", "directory on the disk that is measured")
	f.IntVar(&s.rounds, "rounds", 3, "alternating rounds")
	f.StringVar(&s.filter, "case", "", "only cases with this text in their names")
	f.StringVar(&s.paths, "paths", "", "only the paths with these names, separated by commas")
	f.IntVar(&s.files, "files", 20000, "files of a tree")
	f.Int64Var(&s.size, "size", 4096, "bytes of each")
	f.Int64Var(&s.large, "large", 4<<30, "bytes of the large file")
	f.StringVar(&s.file, "json", "", "write the figures to this file as lines of JSON")
	f.StringVar(&s.program, "cinnabar", "", "the program cinnabar; without it one that is built from this repository")
}

func main() {
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role, os.Args[1:], os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "files:", err)
			os.Exit(1)
		}
		return
	}
	s := setting{out: os.Stdout, log: os.Stderr, sync: syncDisks}
	s.register(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "files:", err)
		os.Exit(1)
	}
}

func (s *setting) run(ctx context.Context) (err error) {
	if s.rounds < 1 || s.files < 1 || s.size < 0 || s.large < 0 {
		return fmt.Errorf("-rounds %d and -files %d must be above 0, and -size %d and -large %d not below", s.rounds, s.files, s.size, s.large)
	}
	if s.self, err = os.Executable(); err != nil {
		return err
	}
	cases, err := s.selected()
	if err != nil {
		return err
	}
	if s.work, err = os.MkdirTemp(s.dir, "cinnabar-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.work)) }()
	s.lines = io.Discard
	if s.file != "" {
		f, createErr := os.Create(s.file)
		if createErr != nil {
			return createErr
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		s.lines = f
	}
	if err := s.describe(ctx); err != nil { // before the build, which raises the load
		return err
	}
	if s.program == "" {
		s.program = filepath.Join(s.work, "cinnabar")
		cmd := exec.CommandContext(ctx, "go", "build", "-o", s.program, "./cmd/cinnabar")
		cmd.Stderr = s.log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("building cinnabar, from the root of the repository: %w", err)
		}
	}
	if s.program, err = filepath.Abs(s.program); err != nil {
		return err
	}
	for _, c := range cases {
		if err := s.measure(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// selected returns the cases and the paths that -case and -paths name, in the order of their measurement.
func (s *setting) selected() (list []*benchCase, err error) {
	for _, c := range s.cases() {
		if s.paths != "" {
			c.paths = slices.DeleteFunc(c.paths, func(p path) bool { return !slices.Contains(strings.Split(s.paths, ","), p.name) })
		}
		if strings.Contains(c.name, s.filter) && len(c.paths) > 0 {
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("-case %q and -paths %q leave nothing to measure; the documentation of the command lists the names", s.filter, s.paths)
	}
	return list, nil
}

// benchCase is a source, and the paths that copy it.
type benchCase struct {
	name  string // the Op of its Results
	bytes int64
	files int // in the source
	make  func(at string) error
	paths []path
}

// path is one way to copy.
type path struct {
	name string
	copy func(ctx context.Context, from, to string) error // from is below the directory that has the source, and to is an empty directory
}

// outcome is the figures of one path.
type outcome struct {
	name  string
	times []time.Duration
}

func (o *outcome) median() time.Duration {
	list := slices.Sorted(slices.Values(o.times))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// measure makes the source of a case, measures all paths in turn, and prints and records the figures.
func (s *setting) measure(ctx context.Context, c *benchCase) (err error) {
	from := filepath.Join(s.work, sourceName)
	if err := c.make(from); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(from), os.RemoveAll(filepath.Join(s.work, copiesName))) }()
	outcomes := make([]outcome, len(c.paths))
	for round := range s.rounds {
		for k := range c.paths {
			if round%2 == 1 {
				k = len(c.paths) - 1 - k
			}
			p := &c.paths[k]
			took, err := s.once(ctx, c, p, from)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			outcomes[k].name = p.name
			outcomes[k].times = append(outcomes[k].times, took)
		}
	}
	if err := s.print(c, outcomes); err != nil {
		return err
	}
	for i := range outcomes {
		r := record.Result{Op: c.name, Transport: "tcp", Path: outcomes[i].name, Load: record.Quiet, Size: c.bytes / int64(c.files), Inflight: 1, Clients: 1, Files: c.files}
		for _, t := range outcomes[i].times {
			r.Rounds = append(r.Rounds, record.Round{Usec: float64(t.Microseconds()), MiB: float64(c.bytes) / (1 << 20) / t.Seconds()})
		}
		if err := record.Write(s.lines, r); err != nil {
			return err
		}
	}
	return nil
}

// Names below the directory of the measurement.
const (
	sourceName = "source"
	copiesName = "copies"
)

// mostKept is the largest size in bytes of a case whose copies stay until its end. The removal of copies would disturb the next measurement, because some file
// systems work for seconds or minutes after it.
const mostKept = 1 << 30

// once makes one copy, checks it, and returns the time that it took.
func (s *setting) once(ctx context.Context, c *benchCase, p *path, from string) (took time.Duration, err error) {
	copies := filepath.Join(s.work, copiesName)
	if err := os.MkdirAll(copies, 0o755); err != nil {
		return 0, err
	}
	to, err := os.MkdirTemp(copies, "")
	if err != nil {
		return 0, err
	}
	if c.bytes > mostKept {
		defer func() { err = errors.Join(err, os.RemoveAll(to)) }()
	}
	s.sync()
	started := time.Now()
	if err := p.copy(ctx, from, to); err != nil {
		return 0, err
	}
	took = time.Since(started)
	return took, c.check(filepath.Join(to, sourceName))
}

// check compares the number of files and of bytes in a copy with that of the source.
func (c *benchCase) check(at string) error {
	files, bytes := 0, int64(0)
	err := filepath.WalkDir(at, func(_ string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			files, bytes = files+1, bytes+info.Size()
		}
		return err
	})
	if err == nil && (files != c.files || bytes != c.bytes) {
		err = fmt.Errorf("%d files with %d bytes have arrived, of %d files with %d bytes", files, bytes, c.files, c.bytes)
	}
	return err
}

// print prints the table of a case.
func (s *setting) print(c *benchCase, outcomes []outcome) error {
	_, err := fmt.Fprintf(s.out, "\n%s: %d files, %d bytes in all\n%-18s %10s %10s %10s  %s\n", c.name, c.files, c.bytes, "path", "s", "MiB/s", "ours/this", "rounds, s")
	ours := outcomes[0].median()
	for i := range outcomes {
		o := &outcomes[i]
		m := o.median()
		var rounds []string
		for _, t := range o.times {
			rounds = append(rounds, fmt.Sprintf("%.2f", t.Seconds()))
		}
		_, printErr := fmt.Fprintf(s.out, "%-18s %10.2f %10.1f %10.2f  %s\n", o.name, m.Seconds(), float64(c.bytes)/(1<<20)/m.Seconds(), ours.Seconds()/m.Seconds(), strings.Join(rounds, " "))
		err = errors.Join(err, printErr)
	}
	return err
}

// describe prints and records the machine.
func (s *setting) describe(ctx context.Context) error {
	m := machine.Describe(ctx)
	m.Rounds = s.rounds
	machine.Print(s.out, &m, fmt.Sprintf("%d rounds, file system %s", m.Rounds, fileSystem(s.dir)))
	return record.Write(s.lines, m)
}
