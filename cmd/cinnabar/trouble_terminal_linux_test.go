package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
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

	more chan struct{} // capacity 1; Write sends to it when the program writes

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write appends output of the program to the text, and wakes expect.
func (p *terminal) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
	return p.text.Write(b)
}

func (p *terminal) written() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// expect waits until a line matches the pattern.
func (p *terminal) expect(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for !re.MatchString(strings.ReplaceAll(p.written(), "\r", "")) {
		select {
		case <-p.more:
		case <-ctx.Done():
			t.Fatalf("the terminal does not show %q: %q", pattern, p.written())
		}
	}
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
	p := &terminal{user: user, program: program, more: make(chan struct{}, 1)}
	p.reader.Go(func() { _, _ = io.Copy(p, user) }) // fails when the program's side is closed
	t.Cleanup(func() { p.all() })
	return p
}

// all closes the terminal and returns the text that was written.
func (p *terminal) all() string {
	cli.Shut(p.program)
	p.reader.Wait()
	cli.Shut(p.user)
	return p.written()
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

// columnCase describes how TestTroubleColumns runs a command, and the lines that may be longer than the terminal.
type columnCase struct {
	args  string
	code  int
	free  string // pattern of lines that may be longer than a terminal of 80 columns, because they are records or have addresses and names of any length
	fits  bool   // no line is longer than 40 columns on a terminal of 40; if false, the terminal may break lines, and the output has the same words as on 80
	none  string // the reason for which the test does not run the command; the other fields are empty then
	draws bool   // it draws bars, which move the cursor
}

// columnCases has a row for each command that ends by itself. The test takes servers from the field Interrupt of troubleRows.
var columnCases = map[string]columnCase{
	"demo":              {args: "SMALL", free: " between processes "},
	"send":              {args: "SMALL RECEIVER", draws: true, free: `(^|\x1b\[J)(sending|sent|small) `},
	"get":               {args: "FILES small --dir DIR", draws: true, free: `(^|\x1b\[J)(getting|got|small) `},
	"ls":                {args: "FILES"},
	"devices":           {args: "-v", free: "^\tcapabilities:"},
	"rping":             {args: "-c -v -C 3 -a 127.0.0.1 -p RPING", free: "^ping data: "},
	"compare":           {args: "--size 64KiB"},
	"perf rate":         {args: "PERF --size 64 --count 1"},
	"perf bw-read":      {args: "PERF --size 64 --count 1"},
	"perf bw-write":     {args: "PERF --size 64 --count 1"},
	"perf registration": {args: "--most 4KiB"},
	"doctor":            {args: "--only capabilities,seccomp,routes", fits: true},
	"info":              {args: "-l"},
	"query":             {args: "SERVER --state"},
	"shutdown":          {args: "MORTAL"},
	"call":              {args: "SERVER sum", code: cli.ExitFailure, free: "^cinnabar call: "},
	"ping":              {args: "SERVER -n 1", free: "^1 round trip over tcp to "},
	"id":                {args: "sum"},
	"token new":         {},
	"wire":              {args: "CAPTURE", free: "^ +[0-9]+ "},
	"mem alloc":         {args: "LENDER 5", free: "^rmem:"},
	"mem put":           {args: "TOKEN SMALL"},
	"mem get":           {args: "TOKEN"},
	"mem free":          {args: "LOST", code: cli.ExitFailure, free: "^cinnabar mem free: "},
	"mem stat":          {args: "LENDER"},
	"version":           {},
	"help":              {args: "send"}, // TestTroubleWidth has that of each command
	"top":               {none: "TestScreens and TestPainter of its package draw it on 80 and 40 columns"},
}

// letters matches words that are the same in each run, unlike figures and their units.
var letters = regexp.MustCompile(`^[A-Za-z][a-z-]+[:,;.]?$`)

// onTerminal runs a command on a terminal, and returns the text that it writes there. If ready is not empty, onTerminal sends SIGINT when a line matches it, because
// servers do not end by themselves.
func onTerminal(t *testing.T, columns int, args []string, code int, ready string) string {
	t.Helper()
	term := openTerminal(t, columns)
	cmd := clitest.Exec(t, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.program, term.program, term.program
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if ready != "" {
		term.expect(t, ready)
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait() // the exit code is compared
	text := strings.ReplaceAll(term.all(), "\r\n", "\n")
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%q: exit code %d, want %d: %s", args, got, code, text)
	}
	return text
}

// TestTroubleColumns runs each command on terminals of 80 and of 40 columns. On 80 columns all lines fit, except those that match free. On 40 columns all lines fit
// if the row has fits, and otherwise the terminal breaks them. The words are those of 80 columns. Only commands with bars move the cursor.
func TestTroubleColumns(t *testing.T) {
	shared := map[string]string{}
	for _, word := range []string{"SERVER", "LENDER", "TOKEN", "PERF", "CAPTURE", "SMALL", "LOST"} {
		shared[word] = newCaseWords(t).words[word]()
	}
	seen := map[string]bool{}
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		if isGroup(words, cmd) {
			return
		}
		c, ok := columnCases[words]
		ready := ""
		if seen[words] = ok; !ok {
			i := troubleRows[words].Interrupt
			if c, ready = (columnCase{args: i.args, code: i.code, free: ` at 127\.0\.0\.1:[0-9]+`}), i.ready; ready == "" {
				t.Fatal("the command has no row")
			}
		}
		if c.none != "" {
			t.Log(c.none)
			return
		}
		found := map[int]map[string]bool{}
		for _, columns := range []int{80, 40} {
			args := newScene(t, shared).fields(words, c.args)
			text := onTerminal(t, columns, args, c.code, ready)
			t.Logf("%d columns:\n%s", columns, text)
			plain := strings.ReplaceAll(text, "\t", " ") // of the layout of ibv_devinfo
			if ready != "" {
				plain = strings.Replace(plain, "\r", "", 1) // an interrupt overwrites the ^C of the terminal
			}
			if i := strings.IndexFunc(plain, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); i >= 0 && !c.draws {
				t.Errorf("%d columns: the output moves the cursor: %q", columns, plain[i:])
			}
			free := regexp.MustCompile(cmp.Or(c.free, "^$"))
			for line := range strings.SplitSeq(text, "\n") {
				if n := utf8.RuneCountInString(line); n > columns && !free.MatchString(line) && (columns == 80 || c.fits) && !strings.Contains(cmd.Example, strings.TrimSpace(line)) {
					t.Errorf("%d columns on a terminal of %d: %s", n, columns, line)
				}
			}
			found[columns] = map[string]bool{}
			for _, word := range strings.Fields(text) {
				if letters.MatchString(word) {
					found[columns][strings.TrimRight(word, ":,;.")] = true
				}
			}
		}
		for word := range found[80] {
			if !found[40][word] && !c.draws {
				t.Errorf("on 40 columns the output lacks %q", word)
			}
		}
	})
	for words := range columnCases {
		if !seen[words] {
			t.Errorf("the table has a row %q, which is no command", words)
		}
	}
}

// TestMemGetOnTerminal prints lent memory on a terminal, without the bytes that the terminal might act upon, and elsewhere as it is.
func TestMemGetOnTerminal(t *testing.T) {
	token := newCaseWords(t).words["TOKEN"]()
	clitest.WantRun(t, cli.ExitOK, []string{"mem", "put", token, clitest.WriteTemp(t, "bytes", []byte("\x1b[2J\n"))})
	if got, want := onTerminal(t, 80, []string{"mem", "get", token}, cli.ExitOK, ""), `\x1b[2J`+"\n"; got != want {
		t.Errorf("the terminal has %q, want %q", got, want)
	}
	if o := clitest.WantRun(t, cli.ExitOK, []string{"mem", "get", token}); o.Out.String() != "\x1b[2J\n" {
		t.Errorf("standard output has %q", &o.Out)
	}
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
