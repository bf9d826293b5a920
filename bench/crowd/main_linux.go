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
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// roleVariable is the environment variable with the role of a process.
const roleVariable = "CINNABAR_CROWD"

// setting is one run of the command.
type setting struct {
	idle, active, hosts int
	duration, quiet     time.Duration
	profile             string
	out                 io.Writer
}

// run runs the command, or the role of a process of it, and returns the exit code.
func run(args []string) int {
	if role := os.Getenv(roleVariable); role != "" {
		return runRole(role, os.Stdin, os.Stdout)
	}
	s := setting{out: os.Stdout}
	flags := flag.NewFlagSet("crowd", flag.ContinueOnError)
	flags.IntVar(&s.idle, "idle", 10_000, "clients that stay connected without calling")
	flags.IntVar(&s.active, "active", 1000, "clients that call")
	flags.IntVar(&s.hosts, "hosts", 8, "addresses of the clients, 127.0.0.2 and on")
	flags.DurationVar(&s.duration, "duration", 3*time.Second, "time for which the active clients call")
	flags.DurationVar(&s.quiet, "quiet", 3*time.Second, "time for which the processor time of the idle server is measured")
	flags.StringVar(&s.profile, "profile", "", "write a heap profile of the server to this file")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "crowd:", err)
		return 1
	}
	return 0
}

// Descriptors of an engine over ofi+tcp, and of each connection. A process has spareFiles beside them.
const (
	engineFiles     = 3 // listener, epoll set, eventfd
	connectionFiles = 2 // socket, epoll set
	clientFiles     = engineFiles + connectionFiles
	spareFiles      = 256
	wantedFiles     = 1 << 16 // of a process
)

// raiseFiles raises the limit of open files to wantedFiles if the process may, and returns the limit in force.
func raiseFiles() (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	if l.Cur < wantedFiles {
		most := unix.Rlimit{Cur: wantedFiles, Max: max(wantedFiles, l.Max)}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &most); err == nil {
			return wantedFiles, nil
		}
		l.Cur = l.Max // the process needs a right to exceed it
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			return 0, os.NewSyscallError("setrlimit", err)
		}
	}
	return int(min(l.Cur, 1<<30)), nil
}

func (s *setting) check() error {
	const mostHosts = 250
	switch {
	case s.idle < 1 || s.active < 0:
		return fmt.Errorf("-idle %d and -active %d: at least one client must be idle, and none can be missing", s.idle, s.active)
	case s.hosts < 1 || s.hosts > mostHosts:
		return fmt.Errorf("-hosts %d is not between 1 and %d", s.hosts, mostHosts)
	case s.duration <= 0 || s.quiet <= 0:
		return errors.New("-duration and -quiet must be longer than 0")
	}
	return nil
}

// fit lowers the numbers of clients to those for which a server with so many descriptors has room. The active clients are lowered in
// the same proportion.
func (s *setting) fit(files int) {
	room := (files - spareFiles - engineFiles) / connectionFiles
	if all := s.idle + s.active; all > room {
		s.active = s.active * room / all
		s.idle = room - s.active
	}
}

func (s *setting) run(ctx context.Context) (err error) {
	if err := s.check(); err != nil {
		return err
	}
	files, err := raiseFiles()
	if err != nil {
		return err
	}
	idle, active := s.idle, s.active
	s.fit(files)
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = []byte("unknown commit")
	}
	s.printf("# %s, %s %s/%s, %d processors, %s; at most %d open files in a process\n", time.Now().UTC().Format(time.DateOnly),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), strings.TrimSpace(string(commit)), files)
	if s.idle < idle || s.active < active {
		s.printf("# %d idle and %d active clients were asked for: the limit of open files leaves room for %d and %d; raise it (ulimit -Hn)\n", idle, active, s.idle, s.active)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	var processes []*process
	defer func() {
		for _, p := range processes {
			err = errors.Join(err, p.end())
		}
	}()
	start := func(r role) (*process, error) {
		p, err := startProcess(ctx, program, r)
		if err == nil {
			processes = append(processes, p)
		}
		return p, err
	}
	server, err := start(role{Serve: true, Connections: s.idle + s.active, Sample: s.profile != ""})
	if err != nil {
		return err
	}
	var at answer
	if err := server.read(&at); err != nil {
		return err
	}
	return s.measure(server, func(first, n int) (*process, error) {
		return start(role{Server: at.Addr, First: first, Clients: n, Hosts: s.hosts})
	}, max(1, (files-spareFiles)/clientFiles))
}

// measure runs the parts of the measurement. clients starts a process with n clients, of which each has at most room.
func (s *setting) measure(server *process, clients func(first, n int) (*process, error), room int) error {
	first, err := clients(0, 1)
	if err != nil {
		return err
	}
	if _, err := first.ask(order{Do: doOpen}); err != nil { // the memory of the first connection is that of the engine too
		return err
	}
	before, err := server.ask(order{Do: doUsage})
	if err != nil {
		return err
	}
	begin := time.Now()
	idle, err := s.open(clients, 1, s.idle, room)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := server.ask(order{Do: doUsage})
	if err != nil {
		return err
	}
	s.printIdle(before.Usage, after.Usage, took)
	if s.profile != "" {
		if _, err := server.ask(order{Do: doProfile, File: s.profile}); err != nil {
			return err
		}
	}
	rest, err := server.ask(order{Do: doRest, For: s.quiet})
	if err != nil {
		return err
	}
	s.printf("processor time of the server, all idle: %.3f %% of one processor over %v\n", 100*float64(rest.Took)/float64(s.quiet), s.quiet)
	if s.active > 0 {
		active, err := s.open(clients, 1+s.idle, s.active, room)
		if err != nil {
			return err
		}
		if err := s.call(active); err != nil {
			return err
		}
	}
	n, err := askAll(idle, order{Do: doAgain})
	if err != nil {
		return err
	}
	s.printf("second call of each idle client: %d succeed\n", n)
	return nil
}

// open starts n clients in as few processes as they fit into.
func (s *setting) open(clients func(first, n int) (*process, error), first, n, room int) (all []*process, err error) {
	for ; n > 0; n -= room {
		p, err := clients(first, min(n, room))
		if err != nil {
			return nil, err
		}
		first += room
		all = append(all, p)
	}
	_, err = askAll(all, order{Do: doOpen})
	return all, err
}

// call makes the active clients call, which fit into one process unless there are thousands.
func (s *setting) call(active []*process) error {
	for _, p := range active { // all begin before the first result is read
		if err := p.say(order{Do: doCall, For: s.duration}); err != nil {
			return err
		}
	}
	for i, p := range active {
		a, err := p.hear()
		if err != nil {
			return err
		}
		name := ""
		if len(active) > 1 {
			name = fmt.Sprintf(" in process %d of %d", i+1, len(active))
		}
		s.printf("active clients%s: %d, for %v: %.0f calls/s, p50 %.0f µs, p99 %.0f µs, of each client %.1f to %.1f calls/s\n", name,
			a.Calls.Clients, s.duration, a.Calls.PerSecond, a.Calls.P50, a.Calls.P99, a.Calls.Least, a.Calls.Most)
	}
	return nil
}

func (s *setting) printIdle(before, after usage, took time.Duration) {
	each := func(a, b int64) string { return fmt.Sprintf("%.1f KiB", float64(b-a)/1024/float64(s.idle)) }
	s.printf("idle connections: %d from %d addresses, opened in %v\n", s.idle, min(s.hosts, s.idle), took.Round(time.Millisecond))
	s.printf("memory of each: %s of resident set; heap %s, stacks %s, further of Go's runtime %s\n", each(before.Resident, after.Resident),
		each(before.Heap, after.Heap), each(before.Stack, after.Stack), each(before.Other, after.Other))
	s.printf("beside: %.2f goroutines, %.2f descriptors\n", float64(after.Goroutines-before.Goroutines)/float64(s.idle), float64(after.Files-before.Files)/float64(s.idle))
}

func (s *setting) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format, args...) // a report on a closed pipe has no reader
}
