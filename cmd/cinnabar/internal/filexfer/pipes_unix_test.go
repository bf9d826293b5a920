//go:build unix

package filexfer

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/xfer"
)

// outputProcess is a recv that writes to its standard output.
type outputProcess struct {
	*exec.Cmd
	addr   string
	out    *os.File // what it writes; the test's end of the pipe
	reader sync.WaitGroup
	stderr bytes.Buffer // after wait
}

// startOutput starts a recv - into a pipe.
func startOutput(t *testing.T, args ...string) *outputProcess {
	t.Helper()
	p := &outputProcess{Cmd: clitest.Exec(t, append([]string{"recv", "--listen", "127.0.0.1:0", "-"}, args...)...)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Shut(r) })
	p.out, p.Stdout = r, w
	text, err := p.StderrPipe()
	if err == nil {
		err = errors.Join(p.Start(), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(text)
	first, err := lines.ReadString('\n')
	addr, ok := strings.CutPrefix(first, "waiting for one file at ")
	addr, rest, _ := strings.Cut(addr, ",")
	if err != nil || !ok || rest != " for standard output\n" {
		t.Fatalf("the first line is %q, %v", first, err)
	}
	p.addr = addr
	p.reader.Go(func() { _, _ = io.Copy(&p.stderr, lines) }) // ends with the process
	return p
}

// wait returns the exit code.
func (p *outputProcess) wait(t *testing.T) int {
	t.Helper()
	p.reader.Wait()
	if err := p.Wait(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
	}
	return p.ProcessState.ExitCode()
}

// sendInput prepares a send of standard input.
func sendInput(t *testing.T, in io.Reader, addr string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := clitest.Exec(t, append([]string{"send", "-", addr}, args...)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = in, &stderr
	return cmd, &stderr
}

// Standard input crosses to standard output, and to a file.
//
// parity: X04
func TestPipes(t *testing.T) {
	path := randomFiles(t, 3_000_000)[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{data, nil, data[:1]} {
		p := startOutput(t)
		cmd, stderr := sendInput(t, bytes.NewReader(data), p.addr)
		var got []byte
		var rerr error
		errS, _ := clitest.Both(cmd.Run, func() error { got, rerr = io.ReadAll(p.out); return nil })
		if code := p.wait(t); errS != nil || rerr != nil || code != 0 || !bytes.Equal(got, data) {
			t.Fatalf("%d of %d bytes came; %v, %s; exit code %d, %v, %s", len(got), len(data), errS, stderr, code, rerr, &p.stderr)
		}
		if text := p.stderr.String(); !strings.Contains(text, "received stdin: ") || !strings.Contains(text, "sha256") {
			t.Errorf("the receiver says %q", text)
		}
	}
	server := startRecv(t, "127.0.0.1:0")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd, stderr := sendInput(t, f, server.addr, "--name", filepath.Base(path))
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	server.sameFile(t, path)
	if code, p := clitest.RunProcess(t, "send", "--name", "other", path, server.addr); code != 0 {
		t.Fatalf("%s", p.Stderr)
	}
	if names := server.files(t); strings.Join(names, " ") != "other "+filepath.Base(path) {
		t.Errorf("the receiver has %q", names)
	}
	server.interrupt(t)
}

// A receiver whose sender dies in the middle says that the bytes are not the whole, and fails.
func TestPipeSenderDies(t *testing.T) {
	p := startOutput(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd, _ := sendInput(t, r, p.addr)
	if err := errors.Join(cmd.Start(), r.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "half"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.out, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if rest, err := io.ReadAll(p.out); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v behind the end", rest, err)
	}
	if code, text := p.wait(t), p.stderr.String(); code != cli.ExitFailure || !strings.Contains(text, "the bytes that left through standard output are not the whole file") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// The reader of the receiver's standard output goes away: both sides say so.
func TestPipeReaderGoesAway(t *testing.T) {
	p := startOutput(t)
	cli.Shut(p.out)
	code, sender := clitest.RunProcess(t, "send", randomFiles(t, 5_000_000)[0], p.addr)
	if code != cli.ExitFailure || !strings.Contains(sender.Stderr.String(), "the peer says") || !strings.Contains(sender.Stderr.String(), "has closed it") {
		t.Errorf("the sender: exit code %d: %s", code, sender.Stderr)
	}
	if code := p.wait(t); code != cli.ExitFailure || !strings.Contains(p.stderr.String(), "the reader of the receiver's standard output has closed it") {
		t.Errorf("the receiver: exit code %d: %s", code, &p.stderr)
	}
}

// A reader that takes nothing ends the transfer after the timeout of the receiver, and no earlier than that the process.
func TestPipeReaderStops(t *testing.T) {
	p := startOutput(t, "--timeout", "1s")
	code, sender := clitest.RunProcess(t, "send", randomFiles(t, 5_000_000)[0], p.addr)
	if code != cli.ExitFailure {
		t.Errorf("the sender: exit code %d: %s", code, sender.Stderr)
	}
	if code := p.wait(t); code != cli.ExitFailure {
		t.Errorf("the receiver: exit code %d: %s", code, &p.stderr)
	}
}

// ^C ends both sides while the source gives nothing, and while the reader takes nothing.
func TestPipesInterrupted(t *testing.T) {
	for _, name := range []string{"source gives nothing", "reader takes nothing"} {
		for _, side := range []string{"sender", "receiver"} {
			t.Run(name+"/"+side, func(t *testing.T) {
				silent, hold, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer silent.Close()
				defer hold.Close()
				if _, err := hold.Write([]byte{0}); err != nil {
					t.Fatal(err)
				}
				var in io.Reader = silent
				if name == "reader takes nothing" {
					in = zero{}
				}
				p := startOutput(t)
				cmd := clitest.Exec(t, "send", "-", p.addr)
				cmd.Stdin = in
				if in != io.Reader(silent) {
					cmd.WaitDelay = time.Second // of the goroutine that feeds it
				}
				text, err := cmd.StderrPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err != nil {
					t.Fatal(err)
				}
				lines := bufio.NewReader(text)
				if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "sending stdin (size unknown)") {
					t.Fatalf("%q, %v", line, err)
				}
				if _, err := io.ReadFull(p.out, make([]byte, 1)); err != nil { // the transfer has begun
					t.Fatal(err)
				}
				victim := cmd.Process
				if side == "receiver" {
					victim = p.Process
				}
				begun := time.Now()
				if err := victim.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
				rest, _ := io.ReadAll(lines)
				_ = cmd.Wait() // it has failed, of which the exit code speaks
				code := p.wait(t)
				took := time.Since(begun)
				want := [2]int{cli.ExitSignal + int(syscall.SIGINT), cli.ExitFailure}
				if side == "receiver" {
					want[0], want[1] = want[1], want[0]
				}
				if got := [2]int{cmd.ProcessState.ExitCode(), code}; got != want {
					t.Errorf("exit codes %d, want %d: %s; %s", got, want, rest, &p.stderr)
				}
				if took > 10*time.Second {
					t.Errorf("the end took %v", took)
				}
			})
		}
	}
}

// zero is an endless source.
type zero struct{}

func (zero) Read(b []byte) (int, error) { return len(b), nil }

// A tree does not fit into standard output.
func TestPipeRefusesTree(t *testing.T) {
	f := &outputFile{}
	if _, err := f.open(t.Context(), netip.AddrPort{}, "tree/", xfer.Meta{}, 1); !errors.Is(err, xfer.CodeName) {
		t.Errorf("got %v", err)
	}
	if _, err := f.WriteAt(nil, 7); err == nil {
		t.Error("data at a wrong offset was taken")
	}
}

func TestPipeArguments(t *testing.T) {
	dir, file := t.TempDir(), clitest.WriteTemp(t, "a", nil)
	for _, c := range []struct{ args, says string }{
		{"send - - 127.0.0.1:1", "given 2 times"},
		{"send - 127.0.0.1:1 --protocol basic", "--protocol basic"},
		{"send - 127.0.0.1:1 --dry-run", "--dry-run"},
		{"send - 127.0.0.1:1 --name a/b", "invalid --name"},
		{"send - " + file + " 127.0.0.1:1 --name a", "would both be stored as"},
		{"send " + file + " " + file + "x 127.0.0.1:1 --name n", "with 2 files"},
		{"send -r " + dir + " 127.0.0.1:1 --name n", "for a directory"},
		{"recv - --dir " + dir, "--dir was given with -"},
		{"recv - --json", "--json was given with -"},
		{"recv out", `"out" was given; - is standard output`},
		{"recv - -", "recv"},
	} {
		var o clitest.Output
		if code := clitest.Run(t.Context(), strings.Fields(c.args), o.Streams()); code != cli.ExitUsage || !strings.Contains(o.Err.String(), c.says) {
			t.Errorf("%s: exit code %d, %s", c.args, code, &o.Err)
		}
	}
}
