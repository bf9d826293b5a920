package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// terminal is a pseudo-terminal of a person who types and reads.
type terminal struct {
	user    *os.File
	program *os.File
	reader  sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	seen bytes.Buffer
	more chan struct{} // capacity 1; something was written since
}

// openTerminal makes a terminal of 80 columns, which is read until the test ends.
func openTerminal(t *testing.T) *terminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	var number int
	var errN, errU, errS error
	errC := control(user, func(fd int) {
		number, errN = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		errU = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
		errS = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	})
	if err := errors.Join(errC, errN, errU, errS); err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	p := &terminal{user: user, program: program, more: make(chan struct{}, 1)}
	p.reader.Go(p.read)
	t.Cleanup(func() {
		program.Close() // the last of the program's side, so the read fails
		p.reader.Wait()
		user.Close()
	})
	return p
}

func (p *terminal) read() {
	for b := make([]byte, 4096); ; {
		n, err := p.user.Read(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.seen.Write(b[:n])
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
	}
}

// expect waits until text was written, and forgets everything up to it.
func (p *terminal) expect(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for {
		p.mu.Lock()
		all := p.seen.String()
		if i := strings.Index(all, text); i >= 0 {
			p.seen.Next(i + len(text))
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-ctx.Done():
			t.Fatalf("the terminal does not show %q: %q", text, all)
		}
	}
}

func (p *terminal) typed(t *testing.T, keys string) {
	t.Helper()
	if _, err := p.user.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// TestTopOnTerminal watches a server with a handler that is held, goes through the views, and ends by a key. The server then ends while
// top runs, and top ends by ^C although nothing answers.
// parity: P03
func TestTopOnTerminal(t *testing.T) {
	server := clitest.Queried(t, nil)
	held, entered := make(chan struct{}), make(chan struct{})
	hold := cinnabar.NewRPC[struct{}, struct{}]("hold")
	err := hold.Handle(server, func(context.Context, struct{}) (struct{}, error) { close(entered); <-held; return struct{}{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	client := clitest.Engine(t, nil)
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	call := hold.Start(t.Context(), ep, struct{}{})
	<-entered
	for _, end := range []string{"q", "\x03"} {
		term := openTerminal(t)
		before := modes(t, term.program)
		code := make(chan int, 1)
		go func() {
			code <- clitest.Run(t.Context(), []string{"top", "--interval", "200ms", server.Addr()}, cli.Streams{In: term.program, Out: term.program, Err: term.program})
		}()
		term.expect(t, enterScreen)
		term.expect(t, "hold ")
		term.expect(t, "requests ") // another drawing
		term.typed(t, "2")
		term.expect(t, "running")
		term.expect(t, client.Addr())
		term.typed(t, "4")
		term.expect(t, "RECEIVED")
		if end == "\x03" {
			close(held)
			if _, err := call.Wait(); err != nil {
				t.Error(err)
			}
			if err := server.Close(); err != nil {
				t.Error(err)
			}
			term.expect(t, "no answer: ")
		}
		term.typed(t, end)
		if got := <-code; got != cli.ExitOK {
			t.Errorf("%q: exit code %d", end, got)
		}
		term.expect(t, leaveScreen)
		if after := modes(t, term.program); after != before {
			t.Errorf("%q leaves the terminal in another mode", end)
		}
	}
}

// modes returns the modes of a terminal.
func modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	var m *unix.Termios
	var err error
	if errC := control(f, func(fd int) { m, err = unix.IoctlGetTermios(fd, unix.TCGETS) }); errors.Join(errC, err) != nil {
		t.Fatal(errC, err)
	}
	return *m
}

// TestTopCanceled: the end of the context ends top, and the terminal is as before.
func TestTopCanceled(t *testing.T) {
	server := clitest.Queried(t, nil)
	term := openTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- clitest.Run(ctx, []string{"top", server.Addr()}, cli.Streams{In: term.program, Out: term.program, Err: term.program})
	}()
	term.expect(t, "RUNNING")
	cancel()
	if got := <-code; got == cli.ExitOK {
		t.Error("exit code 0")
	}
	term.expect(t, leaveScreen)
}

// TestPainter draws a screen again: nothing is written for lines that are shown already, all lines when the terminal has another size, and no line is
// wider than the terminal.
func TestPainter(t *testing.T) {
	term := openTerminal(t)
	sc := newSample()
	p := &painter{out: term.program}
	paint := func() string {
		t.Helper()
		if err := p.paint(sc); err != nil {
			t.Fatal(err)
		}
		if _, err := term.program.WriteString("\x00"); err != nil { // the end of the drawing
			t.Fatal(err)
		}
		return term.until(t, "\x00")
	}
	if text := paint(); strings.Count(text, "\x1b[K") != 24 || !strings.Contains(text, "get@42") {
		t.Errorf("the first drawing is %q", text)
	}
	if text := paint(); text != "" {
		t.Errorf("without a change %q is drawn", text)
	}
	typed(sc, "j")
	if text := paint(); strings.Count(text, "\x1b[K") != 2 {
		t.Errorf("for another row %q is drawn", text)
	}
	var err error
	errC := control(term.user, func(fd int) {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: 40})
	})
	if err := errors.Join(err, errC); err != nil {
		t.Fatal(err)
	}
	text := paint()
	if strings.Count(text, "\x1b[K") != 10 || !strings.HasPrefix(text, "\x1b[2J") {
		t.Errorf("for another size %q is drawn", text)
	}
	for part := range strings.SplitSeq(regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`).ReplaceAllString(text, "\n"), "\n") {
		if utf8.RuneCountInString(part) > 40 {
			t.Errorf("%q is wider than 40 columns", part)
		}
	}
}

// until waits as expect does, and returns the text before.
func (p *terminal) until(t *testing.T, end string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	for {
		p.mu.Lock()
		before, after, ok := strings.Cut(p.seen.String(), end)
		if ok {
			p.seen.Next(p.seen.Len() - len(after))
		}
		p.mu.Unlock()
		if ok {
			return before
		}
		select {
		case <-p.more:
		case <-ctx.Done():
			t.Fatalf("the terminal does not show %q: %q", end, before)
		}
	}
}
