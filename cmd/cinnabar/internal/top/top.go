// Package top has the command top, which shows the state of a running process in a terminal, again and again.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/inspect"
	"cinnabar/stats"
)

const (
	askTimeout    = 5 * time.Second
	defaultEvery  = time.Second
	leastInterval = 200 * time.Millisecond // a process answers 10 questions of a host in a second
	rowsAsked     = 256
)

// errNoTerminal is the error of top without a terminal.
var errNoTerminal = errors.New("top needs a terminal on standard input and standard output; cinnabar query --state ADDRESS prints the same once")

// New returns the command top.
func New(s cli.Streams) *cobra.Command {
	var caller cli.Caller
	every := defaultEvery
	cmd := &cobra.Command{
		Use:   "top ADDRESS",
		Short: "Watch a running process: requests, calls, peers, memory",
		Long: `top shows the state of the process at ADDRESS, such as ofi+tcp://10.0.0.1:1234, and asks again
at each interval: the requests that it serves, the calls for which it waits, its connections, its
exposed memory and its pools. A Go process answers if its engine has Config.AllowQuery. The key ?
lists the keys, q ends top. cinnabar query --state prints the same once.`,
		Example: "  cinnabar top ofi+tcp://127.0.0.1:7000\n  cinnabar top --interval 5s 'ofi+tcp://[::1]:7000'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < leastInterval {
				return cli.Usagef("--interval is %v; want %v or more", every, leastInterval)
			}
			outer := cmd.Context()
			return caller.Ask(outer, args[0], func(ctx context.Context, _ *cinnabar.Engine, ep *cinnabar.Endpoint) error {
				in, out, err := terminals(s)
				if err != nil {
					return err
				}
				ask := func(ctx context.Context) (*stats.State, error) {
					ctx, cancel := context.WithTimeout(ctx, caller.Timeout())
					defer cancel()
					return inspect.AskState(ctx, ep, rowsAsked)
				}
				first, err := ask(ctx)
				if err != nil {
					return err
				}
				sc := newScreen(ep.String(), every)
				sc.answered(first, time.Now())
				return watch(outer, sc, ask, in, out) // not ctx, which ends after --timeout
			})
		},
	}
	cmd.Flags().DurationVarP(&every, "interval", "i", defaultEvery, "time between two questions")
	caller.Register(cmd.Flags(), s, askTimeout, "how long to wait for each answer")
	return cmd
}

// terminals returns the terminal for the keys and the one for the screen.
func terminals(s cli.Streams) (in, out *os.File, err error) {
	in, inOK := s.In.(*os.File)
	out, outOK := s.Out.(*os.File)
	if !inOK || !outOK || !isTerminal(in) || !isTerminal(out) {
		return nil, nil, errNoTerminal
	}
	return in, out, nil
}

// control calls f with the descriptor of a file. It does not use [os.File.Fd], because that would make deadlines of reads ineffective.
func control(file *os.File, f func(fd int)) error {
	c, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return c.Control(func(fd uintptr) { f(int(fd)) })
}

func isTerminal(file *os.File) (is bool) {
	err := control(file, func(fd int) { is = term.IsTerminal(fd) })
	return err == nil && is
}

// size returns the columns and rows of a terminal.
func size(file *os.File) (width, height int) {
	var err error
	errC := control(file, func(fd int) { width, height, err = term.GetSize(fd) })
	if errC != nil || err != nil || width < 1 || height < 1 {
		return cli.Width, 24
	}
	return min(width, 1000), min(height, 1000)
}

// enterScreen switches the terminal to its alternate screen and turns the cursor off, and the wrapping of lines, because a character may take two
// columns. leaveScreen undoes that.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// raw puts the terminal into raw mode, in which it passes on each key at once and does not act on it. restore undoes that.
func raw(in *os.File) (restore func() error, err error) {
	var before *term.State
	errC := control(in, func(fd int) { before, err = term.MakeRaw(fd) })
	if err = errors.Join(errC, err); err != nil {
		return nil, err
	}
	return func() error {
		var err error
		errC := control(in, func(fd int) { err = term.Restore(fd, before) })
		return errors.Join(errC, err)
	}, nil
}

// watch draws the screen until a key or ctx ends it.
func watch(ctx context.Context, sc *screen, ask func(context.Context) (*stats.State, error), in, out *os.File) (err error) {
	restore, err := raw(in)
	if err != nil {
		return fmt.Errorf("the terminal cannot be set up: %w", err)
	}
	defer func() { err = errors.Join(err, restore()) }()
	defer func() { _, _ = io.WriteString(out, leaveScreen) }() // before restore; an error means that the terminal is gone
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	keys := readKeys(in)
	defer keys.stop()
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel() // which ends the question
	answers := make(chan answer, 1)
	tick := time.NewTicker(sc.every)
	defer tick.Stop()
	var typed []byte // the start of a key whose other bytes have not come
	incomplete := time.NewTimer(0)
	defer incomplete.Stop()
	p := &painter{out: out}
	for busy := false; ; {
		if err := p.paint(sc); err != nil {
			return err
		}
		var whole []byte
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case b, ok := <-keys.bytes:
			if !ok {
				return nil // the terminal is gone
			}
			whole, typed = splitKeys(append(typed, b...))
			incomplete.Reset(keyTime)
		case <-incomplete.C:
			whole, typed = typed, nil // the key Escape, for example
		case <-tick.C:
			if !busy && !sc.paused {
				busy = true
				asking.Go(func() {
					s, err := ask(ctx)
					answers <- answer{s, err}
				})
			}
		case a := <-answers:
			busy = false
			if a.err != nil {
				sc.failed(a.err)
			} else if !sc.paused {
				sc.answered(a.state, time.Now())
			}
		}
		for _, k := range parseKeys(whole) {
			if k == keyRedraw {
				p.shown = nil
			} else if sc.press(k) {
				return nil
			}
		}
	}
}

// keyTime is the time within which the bytes of one key come, because a slow connection may cut the sequence of an arrow key, which begins as the key
// Escape does.
const keyTime = 100 * time.Millisecond

// answer is the result of a question.
type answer struct {
	state *stats.State
	err   error
}

// painter draws a screen on a terminal. It writes only the lines that have changed, so that keys take effect soon where the connection of the terminal
// is slow.
type painter struct {
	out           *os.File
	width, height int
	shown         []line // on the terminal; nil: it may show other text
}

// paint writes the lines of the screen that the terminal does not show yet.
func (p *painter) paint(sc *screen) error {
	width, height := size(p.out)
	var b strings.Builder
	if width != p.width || height != p.height || p.shown == nil {
		b.WriteString("\x1b[2J")
		p.width, p.height, p.shown = width, height, nil
	}
	lines := sc.draw(width, height)
	for i, l := range lines {
		if i < len(p.shown) && p.shown[i] == l {
			continue
		}
		fmt.Fprintf(&b, "\x1b[%d;1H", i+1)
		if l.reverse {
			b.WriteString("\x1b[7m" + l.text + "\x1b[0m")
		} else {
			b.WriteString(l.text)
		}
		b.WriteString("\x1b[K")
	}
	if p.shown = lines; b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(p.out, b.String())
	return err
}

// keyReader reads the bytes of a terminal's keys on a goroutine of its own.
type keyReader struct {
	bytes chan []byte // closed when the terminal is gone
	end   chan struct{}
	done  chan struct{}
	in    *os.File
}

func readKeys(in *os.File) *keyReader {
	r := &keyReader{bytes: make(chan []byte), end: make(chan struct{}), done: make(chan struct{}), in: in}
	go func() {
		defer close(r.done)
		defer close(r.bytes)
		for {
			b := make([]byte, 256)
			n, err := in.Read(b)
			if err != nil {
				return
			}
			select {
			case r.bytes <- b[:n]:
			case <-r.end:
				return
			}
		}
	}()
	return r
}

// stop ends the goroutine. If the file supports no read deadlines, which is usual for standard input, the goroutine waits in Read until another
// key comes or the process exits.
func (r *keyReader) stop() {
	close(r.end)
	if err := r.in.SetReadDeadline(time.Now()); err != nil {
		return
	}
	<-r.done
	_ = r.in.SetReadDeadline(time.Time{}) // has succeeded before
}
