package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes that every command shares.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128 // plus the signal's number, as a shell reports it
)

// exitError is a failure with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef is a command line that cannot be carried out as it stands.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// signalError is the cause of a context that a signal cancelled.
type signalError struct{ sig os.Signal }

func (e signalError) Error() string { return "stopped by signal: " + e.sig.String() }

// withSignals returns a context that SIGINT and SIGTERM cancel, with a
// signalError as cause. A second signal ends the process at once. The
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
			if isTerminal(screen) {
				_, _ = io.WriteString(screen, "\r") // an error leaves the ^C on the line, no more
			}
			cancel(signalError{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-done
	}
}

// exitCode decides what the process returns for err.
func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		if n, ok := s.sig.(syscall.Signal); ok {
			return exitSignal + int(n)
		}
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return exitFailure
}

// reason is why ctx ended, if it has, and err otherwise: a call that failed
// because ctx ended says only that it did.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
