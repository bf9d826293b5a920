package clitest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/margo"
	"cinnabar/rmem"
)

// TCPPair returns the two ends of a TCP connection on loopback.
func TCPPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(l)
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cli.Shut(a)
		cli.Shut(b)
	})
	return a, b
}

// Engine is an engine that a command is about.
func Engine(t *testing.T, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

// Queried is Engine for an engine that answers queries.
func Queried(t *testing.T, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e := Engine(t, cfg)
	if err := margo.ServeQuery(e, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// ProcessLimit bounds a process of a test; it is there for processes that hang.
const ProcessLimit = 60 * time.Second

// Command prepares a process that runs the command line.
func Command(t *testing.T, args ...string) (*exec.Cmd, *Output) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ProcessLimit)
	t.Cleanup(cancel)
	var o Output
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// A program built with -race sleeps for a second before it exits. atexit_sleep_ms=0 switches that off.
	cmd.Env = append(os.Environ(), runAsMain+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.Stdout, cmd.Stderr = &o.Out, &o.Err
	cmd.WaitDelay = ProcessLimit // for processes of its own that it leaves behind
	return cmd, &o
}

// ExitOf waits for cmd and returns its exit code.
func ExitOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// RunProcess runs the command line and returns its exit code.
func RunProcess(t *testing.T, args ...string) (int, *Output) {
	t.Helper()
	cmd, o := Command(t, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return ExitOf(t, cmd), o
}

// Lines logs the output of a process in the test, line by line.
type Lines struct {
	buf  bytes.Buffer
	Seen chan string
}

func (l *Lines) Write(b []byte) (int, error) {
	l.buf.Write(b)
	for bytes.IndexByte(l.buf.Bytes(), '\n') >= 0 {
		line, _ := l.buf.ReadString('\n')
		l.Seen <- strings.TrimSuffix(line, "\n")
	}
	return len(b), nil
}

// Start starts a process and returns its standard output line by line.
func Start(t *testing.T, args ...string) (*exec.Cmd, <-chan string, *Output) {
	t.Helper()
	cmd, o := Command(t, args...)
	l := &Lines{Seen: make(chan string, 1000)} // more than any process here prints
	cmd.Stdout = l
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, l.Seen, o
}

// WaitLine returns the first line that matches, and its groups.
func WaitLine(t *testing.T, seen <-chan string, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeout(t.Context(), ProcessLimit)
	defer cancel()
	for {
		select {
		case line := <-seen:
			if m := re.FindStringSubmatch(line); m != nil {
				return m
			}
		case <-ctx.Done():
			t.Fatalf("no line like %q came", pattern)
		}
	}
}

// FreePort returns a port that was free a moment ago, and that no system gives to sockets that are bound to port 0, as
// those of all other tests are.
func FreePort(t *testing.T) string {
	t.Helper()
	for {
		port := strconv.Itoa(20000 + rand.IntN(10000))
		if l, err := net.Listen("tcp", ":"+port); err == nil {
			cli.Shut(l)
			return port
		}
	}
}

// WantOK fails unless the process ends well.
func WantOK(t *testing.T, cmd *exec.Cmd, o *Output) {
	t.Helper()
	if code := ExitOf(t, cmd); code != 0 || o.Err.Len() != 0 {
		t.Errorf("%v: exit code %d: %s", cmd.Args[1:], code, &o.Err)
	}
}

// UsedPort returns a port at which another listens, on every address.
func UsedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":"+FreePort(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(l) })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// MemoryServer returns the address of a server that lends memory.
func MemoryServer(t *testing.T) string {
	t.Helper()
	e := Engine(t, nil)
	srv, err := rmem.Serve(e, rmem.Config{Quota: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(srv) })
	return e.Addr()
}

// FiveBytes returns the token of a region of 5 bytes at a server.
func FiveBytes(t *testing.T, server string) string {
	t.Helper()
	o := WantRun(t, cli.ExitOK, []string{"mem", "alloc", server, "5"})
	return strings.TrimSpace(o.Out.String())
}

// EndlessFile makes a file that takes longer to send than any test runs, without data.
func EndlessFile(t *testing.T) string {
	t.Helper()
	path := WriteTemp(t, "endless", nil)
	if err := os.Truncate(path, 64<<30); err != nil {
		t.Skipf("the file system of %s has no files of 64 GiB: %v", path, err)
	}
	return path
}
