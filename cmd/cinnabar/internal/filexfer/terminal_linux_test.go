package filexfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// terminal is a pseudo-terminal with what was written to it so far.
type terminal struct {
	user    *os.File // where what the program writes is read
	program *os.File
	reader  sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	seen bytes.Buffer
}

// openTerminal makes a terminal of 100 columns, which is read until the test ends.
func openTerminal(t *testing.T) *terminal {
	t.Helper()
	return openNarrow(t, 100)
}

// openNarrow is openTerminal with so many columns.
func openNarrow(t *testing.T, columns uint16) *terminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(user.Fd())
	number, errN := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	errU := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	errS := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
	if err := errors.Join(errN, errU, errS); err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	p := &terminal{user: user, program: program}
	p.reader.Go(p.read)
	t.Cleanup(func() {
		p.all()
		user.Close()
	})
	return p
}

// read keeps what is written until the other side is closed.
func (p *terminal) read() {
	for b := make([]byte, 4096); ; {
		n, err := p.user.Read(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.seen.Write(b[:n])
		p.mu.Unlock()
	}
}

// text is what was written so far.
func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// all is what was written, at the end.
func (p *terminal) all() string {
	p.program.Close() // the last of the program's side: the reader's error
	p.reader.Wait()
	return p.text()
}

// On a terminal a transfer is a bar with rate and time left, which goes when it ends;
// lines come above it.
// parity: B49
func TestBarOnTerminal(t *testing.T) {
	term := openTerminal(t)
	r := newReporter(t.Context(), recvWords, false, cli.Streams{Out: term.program, Err: term.program})
	if !r.terminal || !r.shared {
		t.Fatal("the terminal is not seen as one")
	}
	shown := make(chan struct{})
	big, unknown := sampleFast, sampleBasic
	big.Size, unknown.Size, unknown.Name = 8<<30, -1, "from-the-paper"
	p, q := r.watch(), r.watch()
	p.Start(big)
	q.Start(unknown)
	if err := r.resultf("a line between"); err != nil {
		t.Fatal(err)
	}
	bar := regexp.MustCompile(`test-file +[0-9.]+ [KMG]iB / 8.0 GiB \[[=>-]+\] +\d+ % +[0-9.]+ .iB/s +\S+ left`)
	spinner := regexp.MustCompile(`from-the-paper .*[0-9.]+ [KMG]iB +[0-9.]+ .iB/s`)
	go func() { // the container draws in its own time; every look moves the transfers on
		defer close(shown)
		for t.Context().Err() == nil && (!bar.MatchString(term.text()) || !spinner.MatchString(term.text())) {
			p.Advance(1 << 10)
			q.Advance(1 << 10)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	select {
	case <-shown:
	case <-ctx.Done():
		t.Fatalf("no bar was drawn: %q", term.text())
	}
	p.Finish(big, nil)
	q.Finish(unknown, sampleFailure)
	r.mu.Lock()
	if r.bars != nil {
		t.Error("the container outlives its bars")
	}
	r.mu.Unlock()
	if err := r.finished("", sampleFast, nil); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"a line between", "receiving test-file (8.0 GiB)", "receiving from-the-paper (size unknown)"} {
		if !strings.Contains(term.all(), line) {
			t.Errorf("no line %q in %q", line, term.all())
		}
	}
}

// The command on a terminal, from beginning to end.
func TestSendOnTerminal(t *testing.T) {
	server := startRecv(t, "127.0.0.1:0", "--once")
	term := openTerminal(t)
	path := randomFiles(t, 25<<20)[0]
	cmd := clitest.Exec(t, "send", path, server.addr)
	cmd.Stdout, cmd.Stderr = term.program, term.program
	if err := cmd.Run(); err != nil || server.ExitCode() != 0 {
		t.Errorf("%v: %q", err, term.all())
	}
	if text := term.all(); !strings.HasPrefix(text, "sending size-26214400 ") || !strings.Contains(text, "sent size-26214400: 26214400 bytes") {
		t.Errorf("the terminal shows %q", text)
	}
}

// waitFor waits until the terminal shows text that matches from the byte at the offset on, and returns how much was
// written by then.
func (p *terminal) waitFor(t *testing.T, from int, pattern string, meanwhile func()) int {
	t.Helper()
	re := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for ctx.Err() == nil {
		meanwhile()
		if text := p.text(); re.MatchString(text[from:]) {
			return len(text)
		}
		runtime.Gosched()
	}
	t.Fatalf("the terminal does not show %q but %q", pattern, p.text()[from:])
	return 0
}

// A bar of a transfer that does not move says so instead of its last rate, until it moves again.
func TestBarStalls(t *testing.T) {
	term := openTerminal(t)
	r := newReporter(t.Context(), recvWords, false, cli.Streams{Out: term.program, Err: term.program})
	var passed atomic.Int64 // nanoseconds of a clock that only this test moves
	r.now = func() time.Time { return time.Unix(1_000_000_000, passed.Load()) }
	p := r.watch()
	big := sampleFast
	big.Size = 8 << 30
	p.Start(big)
	defer p.Finish(big, nil)
	moves := func() {
		passed.Add(int64(10 * time.Millisecond))
		p.Advance(1 << 10)
	}
	at := term.waitFor(t, 0, `iB/s +\S+ left`, moves)
	passed.Add(int64(3 * time.Second))
	at = term.waitFor(t, at, `\d % +stalled for 3s`, func() {})
	passed.Add(int64(65 * time.Second))
	at = term.waitFor(t, at, `stalled for 1m8s`, func() {})
	term.waitFor(t, at, `iB/s +\S+ left`, moves)
}

// On a narrow terminal no line of a bar is longer than the terminal, which would break it, and rate, time left and stall are shown as long as there is room.
func TestBarOnNarrowTerminal(t *testing.T) {
	for columns, c := range map[uint16]struct{ moves, stalls string }{
		100: {`test-file +[0-9.]+ [KMG]iB / 8.0 GiB \[.*iB/s +\S+ left`, `stalled for 3s`},
		60:  {`test-file .*iB/s +\S+ left`, `stalled for 3s`},
		40:  {`test-f\S* .*\d+ % +[0-9.]+ .iB/s +\d`, `stalled for 3s`},
		20:  {`te\S+ +\d+ %`, `te\S+ +\d+ %`},
		5:   {`te`, `te`},
	} {
		t.Run(strconv.Itoa(int(columns)), func(t *testing.T) {
			term := openNarrow(t, columns)
			r := newReporter(t.Context(), recvWords, false, cli.Streams{Out: term.program, Err: term.program})
			r.outlook = &outlook{files: 2, size: 16 << 30}
			var passed atomic.Int64 // nanoseconds of a clock that only this test moves
			r.now = func() time.Time { return time.Unix(1_000_000_000, passed.Load()) }
			p := r.watch()
			big := sampleFast
			big.Size = 8 << 30
			p.Start(big)
			at := term.waitFor(t, 0, c.moves, func() {
				passed.Add(int64(10 * time.Millisecond))
				p.Advance(1 << 10)
			})
			passed.Add(int64(3 * time.Second))
			term.waitFor(t, at, c.stalls, func() {})
			p.Finish(big, nil)
			_, lines, _ := strings.Cut(term.all(), "\n") // behind the line about the agreement
			for line := range strings.SplitSeq(regexp.MustCompile(`\x1b\[\d*[A-Z]|\r`).ReplaceAllString(lines, ""), "\n") {
				if n := utf8.RuneCountInString(line); n > int(columns) {
					t.Errorf("a line has %d columns: %q", n, line)
				}
			}
		})
	}
}

// Below the bar of a tree stands that of the file which is read, and below that of one of several files that of all.
func TestLinesBelowBar(t *testing.T) {
	term := openTerminal(t)
	r := newReporter(t.Context(), sendWords, false, cli.Streams{Out: term.program, Err: term.program})
	r.outlook = &outlook{files: 2, size: 16 << 30, tree: places{{Path: "2026/one.raw", Done: 1 << 30, Size: 2 << 30}}}
	p := r.watch()
	big := sampleFast
	big.Size = 8 << 30
	p.Start(big)
	moves := func() { p.Advance(1 << 10) }
	term.waitFor(t, 0, `test-file .* left\s+2026/one.raw 1.0 GiB / 2.0 GiB \[=+-+\] 50 %\s+all files, 1 of 2 [0-9.]+ .i?B / 16 GiB \[=*-+\] \d+ %`, moves)
	p.Finish(big, nil)
}

// A directory on a terminal, from beginning to end: the file that is read has a line of its own.
func TestTreeOnTerminal(t *testing.T) {
	server := startRecv(t, "127.0.0.1:0")
	term := openTerminal(t)
	path := randomFiles(t, 4<<20)[0]
	cmd := clitest.Exec(t, "send", "-r", "--limit", "64KiB/s", filepath.Dir(path), server.addr)
	cmd.Stdout, cmd.Stderr = term.program, term.program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1} // so that ^C is a signal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	term.waitFor(t, 0, `(?s)  size-4194304 [0-9.]+ .iB / 4.0 MiB \[=*-+\]`, func() {})
	if _, err := term.user.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != cli.ExitSignal+int(syscall.SIGINT) {
		t.Errorf("%v: %q", err, term.all())
	}
	server.interrupt(t)
}

// After ^C, which the terminal shows where the cursor is, the next line begins at the start of a line.
func TestInterruptOnTerminal(t *testing.T) {
	server := startRecv(t, "127.0.0.1:0")
	term := openTerminal(t)
	cmd := clitest.Exec(t, "send", clitest.EndlessFile(t), server.addr)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.program, term.program, term.program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that ^C is a signal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at := term.waitFor(t, 0, `endless .* left`, func() {})
	if _, err := term.user.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitSignal+int(syscall.SIGINT) {
		t.Errorf("exit code %d, %v", code, err)
	}
	// Line ends are \r\n on a terminal; a \r of its own is not.
	if text := term.all()[at:]; !regexp.MustCompile(`(?s)\^C.*\r[^\n].*endless.*cancelled`).MatchString(text) {
		t.Errorf("after ^C the terminal gets %q", text)
	}
	server.interrupt(t)
}

// Bytes of a sender do not go to a terminal.
func TestOutputIsNoTerminal(t *testing.T) {
	term := openTerminal(t)
	cmd := clitest.Exec(t, "recv", "-")
	cmd.Stdout = term.program
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != cli.ExitUsage || !strings.Contains(stderr.String(), "standard output is a terminal") {
		t.Errorf("%v: %s", err, &stderr)
	}
}
