package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"cinnabar"
	"cinnabar/systemd"
)

// How long a server that a signal ends waits for the calls and transfers under way.
const (
	drainTime     = 10 * time.Second       // at SIGTERM, by which a service manager ends it
	interruptTime = 300 * time.Millisecond // at SIGINT, because a user waits after ^C
)

// firstCheckTime bounds the calls that a server makes to itself before it serves.
const firstCheckTime = 10 * time.Second

// Draining returns the context in which a server ends its work after ctx has ended. A second signal ends the process at once.
func Draining(ctx context.Context) (context.Context, context.CancelFunc) {
	d := interruptTime
	if Terminated(ctx) {
		d = drainTime
	}
	return context.WithTimeoutCause(context.WithoutCancel(ctx), d, fmt.Errorf("the server waits for %v at most", d))
}

// Terminated reports whether SIGTERM has ended ctx.
func Terminated(ctx context.Context) bool {
	s, ok := errors.AsType[SignalError](context.Cause(ctx))
	return ok && s.Signal == syscall.SIGTERM
}

// Drain shuts down the engines of a server after ctx has ended, all at the same time. The error of one that has cut calls short is printed, and
// Drain returns the cause of ctx then.
func (s Streams) Drain(ctx context.Context, engines ...*cinnabar.Engine) error {
	limited, cancel := Draining(ctx)
	defer cancel()
	errs := make([]error, len(engines))
	var wg sync.WaitGroup
	for i, e := range engines {
		wg.Go(func() { errs[i] = e.Shutdown(limited) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		s.Notef("warning: calls were cut short: %s\n", Printable(OneLine(err)))
		return context.Cause(ctx)
	}
	return nil
}

// Sockets returns the sockets that systemd has opened for a command that listens at n addresses: n of them, or none.
func Sockets(n int) ([]net.Listener, error) {
	given, err := systemd.Listeners()
	if err != nil {
		return nil, err
	}
	list := make([]net.Listener, len(given))
	for i, l := range given {
		list[i] = l.Listener
	}
	if len(list) > 0 && len(list) != n {
		for _, l := range list {
			Shut(l)
		}
		return nil, fmt.Errorf("the service manager has opened %d sockets, and the command listens at %d addresses; change the socket unit", len(list), n)
	}
	return list, nil
}

// Check is a part of a service that the watchdog calls, such as a [systemd.Probe] of an engine.
type Check interface {
	// Check returns an error if the part does not work. ctx bounds the call.
	Check(ctx context.Context) error
	io.Closer
}

// EngineChecks returns a function for StartService that opens a check of each engine.
func EngineChecks(engines ...*cinnabar.Engine) func(ctx context.Context) ([]Check, error) {
	return func(ctx context.Context) (list []Check, err error) {
		for _, e := range engines {
			p, err := systemd.NewProbe(ctx, e)
			if err != nil {
				return list, err
			}
			list = append(list, p)
		}
		return list, nil
	}
}

// StartService reports to the service manager that a command serves, with the text of its status, and proves it to the watchdog by the checks that open
// returns, until the caller calls stop. The first checks are made before, so that a service that the watchdog would end does not begin. stop reports that
// the service ends, and closes the checks; the caller calls it before it closes the service, and may call it again. Without a service manager both do
// nothing, and open is not called without a watchdog. If open fails, StartService closes the checks that it has returned.
func (s Streams) StartService(ctx context.Context, status string, open func(ctx context.Context) ([]Check, error)) (stop func(), err error) {
	limit, err := systemd.WatchdogTime()
	if err != nil {
		return nil, err
	}
	w := new(watched)
	if limit > 0 {
		if err := w.open(ctx, open); err != nil {
			return nil, err
		}
	}
	sent := s.notify(ctx, systemd.Ready, systemd.Status(status))
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if limit > 0 {
		w.wg.Go(func() {
			// The environment was read above without an error.
			_ = systemd.Watchdog(running, w.check, func(err error) { s.Notef("warning: the watchdog is not served: %s\n", Printable(OneLine(err))) })
		})
	}
	return sync.OnceFunc(func() {
		cancel()
		w.stop()
		if sent {
			s.notify(context.WithoutCancel(ctx), systemd.Stopping)
		}
	}), nil
}

// notify sends states to the service manager, and reports whether there is one. It prints an error, because a server works without its manager too.
func (s Streams) notify(ctx context.Context, states ...string) bool {
	sent, err := systemd.Notify(ctx, states...)
	if err != nil {
		s.Notef("warning: %s\n", Printable(OneLine(err)))
	}
	return sent
}

// watched is the work of a watchdog.
type watched struct {
	wg     sync.WaitGroup
	checks []Check
}

// open opens the checks, and makes the first ones.
func (w *watched) open(ctx context.Context, open func(ctx context.Context) ([]Check, error)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, firstCheckTime)
	defer cancel()
	if w.checks, err = open(ctx); err != nil {
		w.stop()
		return err
	}
	if err := w.check(ctx); err != nil {
		w.stop()
		return fmt.Errorf("the watchdog of the service manager cannot be served: %w; see whether this host can reach the address, or remove WatchdogSec= from the unit", err)
	}
	return nil
}

// check makes all checks.
func (w *watched) check(ctx context.Context) error {
	for _, c := range w.checks {
		if err := c.Check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stop waits for the end of the checks, and closes them.
func (w *watched) stop() {
	w.wg.Wait()
	for _, c := range w.checks {
		Shut(c)
	}
}
