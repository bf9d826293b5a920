package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"cinnabar"
	"cinnabar/codes"
)

// Exit codes that every command shares.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
	ExitWarning = 3   // doctor found a warning
	ExitFault   = 4   // doctor found a fault
	ExitSignal  = 128 // plus the signal's number, as a shell reports it
)

// exitError is a failure with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// Usagef returns an error that ends the command with ExitUsage, because the command line is wrong.
func Usagef(format string, args ...any) error {
	return &exitError{code: ExitUsage, err: fmt.Errorf(format, args...)}
}

// Exitf returns an error that ends the command with exit code code, for a result that is neither a failure nor a wrong command line.
func Exitf(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// SignalError is the cause of a context that a signal cancelled.
type SignalError struct{ Signal os.Signal }

func (e SignalError) Error() string { return "stopped by signal: " + e.Signal.String() }

// ErrParentEnded ends a hidden command when its parent process is gone. Run prints nothing about it.
var ErrParentEnded = errors.New("the parent process ended")

// withSignals returns a context that SIGINT and SIGTERM cancel, with a
// SignalError as cause. A second signal ends the process at once. The
// returned function releases the signals and waits for the watcher's end.
//
// A terminal shows ^C where the cursor is. Before ctx ends, the cursor returns to the start of that line on screen, if
// that is a terminal, because bars and messages that follow are drawn from the start of a line.
func withSignals(parent context.Context, screen io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			signal.Stop(signals)
			if IsTerminal(screen) {
				_, _ = io.WriteString(screen, "\r") // an error leaves the ^C on the line, no more
			}
			cancel(SignalError{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-done
	}
}

// ExitCode returns the exit code of the process for err.
func ExitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if s, ok := errors.AsType[SignalError](context.Cause(ctx)); ok {
		if n, ok := s.Signal.(syscall.Signal); ok {
			return ExitSignal + int(n)
		}
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if wrongAddress(err) {
		return ExitUsage
	}
	return ExitFailure
}

// wrongAddress reports whether err is the error of an engine that cannot read an address, or does not know its protocol. Such an address comes
// from the command line.
func wrongAddress(err error) bool {
	e, ok := errors.AsType[*cinnabar.Error](err)
	return ok && !e.Remote && (e.Op == "open engine" || e.Op == "look up") && (e.Code == codes.ProtoNoSupport || e.Code == codes.InvalidArg)
}

// advice returns the remedy that Run prints after an error of command, and "" for most errors. A call got no answer, because nothing listens at
// the address or because the process does not answer in time; the command ping says itself which layer does not answer. Or an address of the
// command line lacks its protocol.
func advice(command string, err error) string {
	e, ok := errors.AsType[*cinnabar.Error](err)
	switch {
	case !ok || e.Remote:
	case e.Op == "open engine" && e.Code == codes.ProtoNoSupport && isHostPort(e.Addr):
		return "; the address lacks its protocol: write ofi+tcp://" + Printable(e.Addr)
	case e.Op != "call":
	case errors.Is(err, syscall.ECONNREFUSED):
		return "; see whether the server runs there: it prints its address when it starts"
	case (errors.Is(err, codes.Timeout) || errors.Is(err, os.ErrDeadlineExceeded)) && command != "ping":
		return "; see with cinnabar ping which layer of the process does not answer"
	}
	return ""
}

// isHostPort reports whether address is HOST:PORT.
func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	_, numErr := strconv.ParseUint(port, 10, 16)
	return err == nil && numErr == nil && host != ""
}

// Reason is why ctx ended, if it has, and err otherwise: a call that failed
// because ctx ended says only that it did.
func Reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
