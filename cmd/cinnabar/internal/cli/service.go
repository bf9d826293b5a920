package cli

import (
	"context"
	"errors"
	"fmt"
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
	interruptTime = 500 * time.Millisecond // otherwise, because a user waits after ^C
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

// StartService reports to the service manager that a command serves, with the text of its status, and proves it to the watchdog by calls to
// the engines until the caller calls stop. The first calls are made before, so that a service that the watchdog would end does not begin. stop reports that
// the service ends; the caller calls it before it closes the engines, and may call it again. Without a service manager both do nothing.
func (s Streams) StartService(ctx context.Context, status string, engines ...*cinnabar.Engine) (stop func(), err error) {
	limit, err := systemd.WatchdogTime()
	if err != nil {
		return nil, err
	}
	w := new(watched)
	if limit > 0 {
		if err := w.open(ctx, engines); err != nil {
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
	probes []*systemd.Probe
}

// open opens a probe of each engine, and makes the first calls.
func (w *watched) open(ctx context.Context, engines []*cinnabar.Engine) error {
	if len(engines) == 0 {
		return errors.New("WATCHDOG_USEC is set, and this command has no engine that the watchdog could call; remove WatchdogSec= from its unit")
	}
	ctx, cancel := context.WithTimeout(ctx, firstCheckTime)
	defer cancel()
	for _, e := range engines {
		p, err := systemd.NewProbe(ctx, e)
		if err != nil {
			w.stop()
			return err
		}
		w.probes = append(w.probes, p)
	}
	if err := w.check(ctx); err != nil {
		w.stop()
		return fmt.Errorf("the watchdog of the service manager cannot be served: %w; see whether this host can reach the address, or remove WatchdogSec= from the unit", err)
	}
	return nil
}

// check calls all engines.
func (w *watched) check(ctx context.Context) error {
	for _, p := range w.probes {
		if err := p.Check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the calls, and closes the probes.
func (w *watched) stop() {
	w.wg.Wait()
	for _, p := range w.probes {
		Shut(p)
	}
}
