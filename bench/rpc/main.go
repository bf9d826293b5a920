// Command rpc measures calls and bulk transfers of cinnabar perf beside the programs that do the same work elsewhere:
// Mercury's perf programs, if they are in PATH, gRPC-Go, and a plain TCP connection.
//
//	go run ./bench/rpc [-rounds N] [-duration D] [-case TEXT]
//
// Each round measures every path of a case in turn, so that a machine with drifting speed treats them alike. The
// result is a table of medians with their spread, and the ratio of each path to the first that is there. Each measurement
// has a server of its own, and warms up first. Nothing else should be running.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// setting is one run of the command.
type setting struct {
	rounds   int
	duration time.Duration
	filter   string
	dir      string // of the built programs, and of Mercury's port file
	out, log io.Writer
}

func main() {
	s := setting{out: os.Stdout, log: os.Stderr}
	flag.IntVar(&s.rounds, "rounds", 5, "alternating rounds")
	flag.DurationVar(&s.duration, "duration", time.Second, "time of each measurement")
	flag.StringVar(&s.filter, "case", "", "only cases with this text in their names")
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
	if s.dir, err = os.MkdirTemp("", "cinnabar-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	for _, p := range []struct{ module, pkg, name string }{
		{".", "./cmd/cinnabar", "cinnabar"}, {".", "./bench/rawtcp", "rawtcp"}, {".", "./bench/smping", "smping"}, {"bench/peers/grpcunary", ".", "grpcunary"},
	} {
		if err := s.build(ctx, p.module, p.pkg, p.name); err != nil {
			return err
		}
	}
	s.describe(ctx)
	for _, c := range cases {
		if strings.Contains(c.name, s.filter) {
			if err := s.measure(ctx, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
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

// describe prints the line that says where the figures come from.
func (s *setting) describe(ctx context.Context) {
	version, _ := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	_, _ = fmt.Fprintf(s.out, "# %s, %s %s/%s, %d processors, %s, %d rounds of %v\n", time.Now().UTC().Format(time.DateOnly), runtime.Version(),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), strings.TrimSpace(string(version)), s.rounds, s.duration)
}

// figure is the result of one measurement.
type figure struct {
	Usec float64 `json:"usec_per_call"`
	MiB  float64 `json:"mib_per_second"`
}

// measure runs the paths of c in turn and prints their table.
func (s *setting) measure(ctx context.Context, c benchCase) error {
	results := make([][]float64, len(c.paths))
	for range s.rounds {
		for i, p := range c.paths {
			if !p.there() {
				continue
			}
			f, err := s.one(ctx, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			results[i] = append(results[i], c.value(f))
		}
	}
	return c.print(s.out, results)
}

// one starts a path's server, measures, and ends the server.
func (s *setting) one(ctx context.Context, p path) (_ figure, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.duration*4+30*time.Second)
	defer cancel()
	srv := exec.CommandContext(ctx, s.find(p.server[0]), p.server[1:]...)
	srv.Dir, srv.Stderr = s.dir, io.Discard
	hold, err := srv.StdinPipe()
	if err != nil {
		return figure{}, err
	}
	out, err := srv.StdoutPipe()
	if err != nil {
		return figure{}, err
	}
	if err := srv.Start(); err != nil {
		return figure{}, err
	}
	defer func() {
		_ = hold.Close()
		_ = srv.Process.Signal(os.Interrupt) // for a server that does not end with its standard input, or when its client is done
		_ = srv.Wait()
	}()
	address, err := ready(out, p.ready)
	if err != nil {
		return figure{}, err
	}
	return s.client(ctx, p, address)
}

// ready waits for the line with which a server says that it serves, and reads on in the background.
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
func (s *setting) client(ctx context.Context, p path, address string) (figure, error) {
	cmd := exec.CommandContext(ctx, s.find(p.client[0]), p.clientArgs(address, s.duration)...)
	cmd.Dir = s.dir
	text, err := cmd.Output()
	if err != nil {
		said := text
		if e, ok := errors.AsType[*exec.ExitError](err); ok && len(e.Stderr) > 0 {
			said = e.Stderr
		}
		return figure{}, fmt.Errorf("client: %w: %s", err, strings.TrimSpace(string(said)))
	}
	return p.parse(string(text))
}

// find prefers the programs that were built over those in PATH.
func (s *setting) find(name string) string {
	if own := s.program(name); exists(own) {
		return own
	}
	return name
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// parseJSON reads the last line of a program that prints JSON.
func parseJSON(text string) (figure, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var f figure
	err := json.Unmarshal([]byte(lines[len(lines)-1]), &f)
	return f, err
}
