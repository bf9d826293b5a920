package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// terminal is a pseudo-terminal with the text that was written to it.
type terminal struct {
	user, program *os.File
	reader        sync.WaitGroup
	text          bytes.Buffer // complete after all
}

// openTerminal makes a terminal of so many columns, which is read until all is called.
func openTerminal(t *testing.T, columns int) *terminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(user.Fd())
	number, errN := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	errU := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	errS := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)})
	if err := errors.Join(errN, errU, errS); err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	p := &terminal{user: user, program: program}
	p.reader.Go(func() { _, _ = io.Copy(&p.text, user) }) // fails when the program's side is closed
	t.Cleanup(func() { p.all() })
	return p
}

// all closes the terminal and returns the text that was written.
func (p *terminal) all() string {
	cli.Shut(p.program)
	p.reader.Wait()
	cli.Shut(p.user)
	return p.text.String()
}

// TestTroubleWidth checks that the help of each command fits terminals of 80 and of 40 columns. Lines that a shell reads, which are the usage and the
// examples, are not broken, nor are words.
func TestTroubleWidth(t *testing.T) {
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		if strings.HasPrefix(words, "completion ") {
			return // its text has command lines that cobra writes
		}
		for _, columns := range []int{80, 40} {
			term := openTerminal(t, columns)
			if code := clitest.Run(t.Context(), append(strings.Fields(words), "--help"), cli.Streams{In: term.program, Out: term.program, Err: term.program}); code != cli.ExitOK {
				t.Errorf("exit code %d", code)
			}
			verbatim := cmd.UseLine() + "\n" + cmd.CommandPath() + " COMMAND\n" + cmd.Example
			text := term.all()
			if !strings.Contains(text, "Usage:") {
				t.Errorf("the help is %q", text)
			}
			for line := range strings.SplitSeq(text, "\r\n") {
				n, word := utf8.RuneCountInString(line), strings.TrimSpace(line)
				if n > columns && !strings.Contains(verbatim, word) && strings.Contains(word, " ") {
					t.Errorf("%d columns on a terminal of %d: %s", n, columns, line)
				}
			}
		}
	})
}

// wantInterrupted sends one SIGINT to a process and fails unless it ends by that.
func wantInterrupted(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != interrupted {
		t.Errorf("%q: exit code %d, %v; want %d", cmd.Args[1:], code, err, interrupted)
	}
}

// TestInterruptOfFullPipe interrupts a command that waits for the reader of its output, which reads nothing.
func TestInterruptOfFullPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(r)
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()) // less than the command writes at once
	if err != nil {
		t.Fatal(err)
	}
	cmd := clitest.Exec(t, "wire", "--json", "internal/wire/testdata/captures/siw-mpa-cases.pcap")
	cmd.Stdout = w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for n := 0; n < size; runtime.Gosched() {
		if n, err = unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ); err != nil || ctx.Err() != nil {
			t.Fatalf("%d of %d bytes are in the pipe: %v, %v", n, size, err, ctx.Err())
		}
	}
	wantInterrupted(t, cmd)
}

// TestInterruptOfNamedPipe interrupts commands whose file is a pipe that no process has opened for writing. The open of such a pipe waits for one.
func TestInterruptOfNamedPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"mem put TOKEN", "wire", "perf rate --port-file"} {
		cmd := clitest.Exec(t, append(newCaseWords(t).fields("", args), fifo)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w, err := openWhenRead(t, cmd, fifo)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		wantInterrupted(t, cmd) // while it waits for bytes
		cli.Shut(w)
	}
	// These take regular files only, and do not wait.
	for _, args := range []string{"send FIFO 127.0.0.1", "demo FIFO", "call DOWN sum --in bulk --bulk-in FIFO"} {
		list := newCaseWords(t).fields("", strings.ReplaceAll(args, "FIFO", fifo))
		clitest.WantRun(t, cli.ExitFailure, list, "is no regular file")
	}
}

// TestInterruptOfOpen interrupts commands while they open a named pipe.
func TestInterruptOfOpen(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"mem put TOKEN", "wire", "perf rate --port-file"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := time.AfterFunc(50*time.Millisecond, func() { cancel(cli.SignalError{Signal: os.Interrupt}) })
		var o clitest.Output
		list := append(newCaseWords(t).fields("", args), fifo)
		if code := clitest.Run(ctx, list, o.Streams()); code != interrupted {
			t.Errorf("%s: exit code %d, want %d: %s", args, code, interrupted, &o.Err)
		}
		stop.Stop()
		if w, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil { // ends the open that still waits
			cli.Shut(w)
		}
	}
}

// openWhenRead opens a named pipe for writing when a command opens it for reading.
func openWhenRead(t *testing.T, cmd *exec.Cmd, fifo string) (*os.File, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for ; ctx.Err() == nil; runtime.Gosched() {
		w, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.ENXIO) {
			return w, err
		}
	}
	return nil, fmt.Errorf("process %d does not open it: %w", cmd.Process.Pid, ctx.Err())
}

// TestInterruptOfInput interrupts commands that wait for more standard input.
func TestInterruptOfInput(t *testing.T) {
	capture, err := os.ReadFile("internal/wire/testdata/captures/siw-mpa-cases.pcap")
	if err != nil {
		t.Fatal(err)
	}
	const head = 24 // of a capture
	many := append(bytes.Clone(capture), bytes.Repeat(capture[head:], 1<<20/len(capture))...)
	for args, input := range map[string][]byte{"wire -": many, "mem put TOKEN": many} {
		list := newCaseWords(t).fields("", args)
		cmd := clitest.Exec(t, list...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(input); err != nil { // returns when the command has read most of it
			t.Fatal(err)
		}
		wantInterrupted(t, cmd)
	}
}
