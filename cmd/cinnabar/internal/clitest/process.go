package clitest

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/testproc"
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
	closeAtEnd(t, e)
	return e
}

// closeAtEnd closes c at the end of the test, which fails if c does.
func closeAtEnd(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	})
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

// ProcessLimit bounds every wait of a test for a process. Only a defect reaches it.
const ProcessLimit = 60 * time.Second

// RunsCommand is the environment of a process that runs a command line.
var RunsCommand = []string{runAsMain + "=1"}

// Start starts a process that runs the command line. The end of the test kills it if it still runs.
func Start(t *testing.T, args ...string) *testproc.Process {
	t.Helper()
	return testproc.Start(t, testproc.Command{Args: args, Env: RunsCommand, Limit: ProcessLimit})
}

// RunProcess runs the command line without input in a process and returns its exit code.
func RunProcess(t *testing.T, args ...string) (int, *testproc.Process) {
	t.Helper()
	p := testproc.Run(t, testproc.Command{Args: args, Env: RunsCommand, Limit: ProcessLimit})
	return p.ExitCode(), p
}

// Exec prepares a process that runs the command line, for tests that give it files of their own as standard input and outputs.
func Exec(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ProcessLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), RunsCommand...)
	return cmd
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

// WantOK fails unless the process ends with exit code 0 and has printed nothing on standard error.
func WantOK(t *testing.T, p *testproc.Process) {
	t.Helper()
	if code := p.ExitCode(); code != cli.ExitOK || p.Stderr.String() != "" {
		t.Errorf("process %d: exit code %d: %s", p.Pid(), code, p.Stderr)
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
