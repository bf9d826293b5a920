package balance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// state is the state of a server.
type state uint8

const (
	connecting state = iota // for the first time
	ready
	notServing
	draining
	down
)

func (s state) String() string {
	return [...]string{"connecting", "ready", "not serving", "draining", "down"}[s]
}

// server is one server of a Client.
type server struct {
	client *Client
	name   string
	target cinnabar.Target
	cancel context.CancelFunc // ends run

	// The Client's mu guards the following fields.
	state state
	cause error // of down
	calls int
	stop  context.CancelCauseFunc // ends the watch of the server's health, with the error of a call as cause; nil: there is no watch
}

// run watches the server until ctx ends. It begins again after a pause when the watch fails. Each pause is twice as long as the one before, up to
// lastPause. The first one comes again only after the server was ready for steadyTime, because one that fails soon after each connection would be
// connected to many times a second.
func (s *server) run(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if s.observe(ctx) >= steadyTime {
			pause = firstPause
		}
		if ctx.Err() != nil {
			return
		}
		timer := time.NewTimer(jitter(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// observe watches the health of the server until the watch fails, a call fails, or life ends. It returns the time since the server was ready first.
func (s *server) observe(life context.Context) time.Duration {
	c := s.client
	ctx, stop := context.WithCancelCause(life)
	defer stop(nil)
	c.mu.Lock()
	s.stop = stop
	c.mu.Unlock()
	var since time.Time // the server is ready; c.mu guards it
	silence := time.AfterFunc(reportTime, func() { stop(errSilent) })
	defer silence.Stop()
	err := c.watch(ctx, s.target, c.cfg.Service, func(st native.Serving) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if ctx.Err() != nil {
			return // a call has failed in the meantime, and its error decides
		}
		silence.Stop()
		s.state, s.cause = notServing, nil
		if st == native.ServingYes {
			s.state = ready
			if since.IsZero() {
				since = time.Now()
			}
		}
		c.changedLocked()
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.stop = nil
	if life.Err() == nil {
		s.failLocked(err)
	}
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}

// errSilent ends a watch without a first report, because calls wait for a server whose state is not known.
var errSilent = fmt.Errorf("balance: the server has not reported its health within %v (%w)", reportTime, codes.HostUnreach)

// failLocked marks the server as draining or down.
// +checklocks:s.client.mu
func (s *server) failLocked(err error) {
	s.state, s.cause = down, err
	if codes.Of(err) == codes.Draining {
		s.state, s.cause = draining, nil
	}
	s.client.changedLocked()
	s.client.want()
}

// release ends a call of the server, and marks the server if the error says that it is draining or lost.
func (s *server) release(err error) {
	c := s.client
	c.mu.Lock()
	defer c.mu.Unlock()
	s.calls--
	if implied := stateAfter(err); implied != draining && implied != down {
		return
	}
	if s.stop != nil {
		s.stop(err)
	}
	s.failLocked(err)
}

// stateAfter returns the state of a server that a call with the result err implies.
func stateAfter(err error) state {
	e, ok := errors.AsType[*cinnabar.Error](err)
	switch {
	case !ok:
	case e.Remote && e.Code == codes.Draining && !handled(err):
		return draining
	case !e.Remote && (e.Code == codes.HostUnreach || e.Code == codes.HostFirewall):
		return down
	}
	return ready
}

// handled reports whether a handler, or an interceptor of the server, has made the error. Only these errors come with a native.Error, so an error
// without one shows that no handler has begun.
func handled(err error) bool {
	_, ok := errors.AsType[*native.Error](err)
	return ok
}

// watchHealth reports the states of a service until ctx ends or the server is lost. A server without a health service, or with too many watches, is serving
// until a call fails.
func watchHealth(ctx context.Context, to cinnabar.Target, service string, report func(native.Serving)) error {
	watch, err := native.WatchHealth(ctx, to, service)
	if err != nil {
		return err
	}
	for state, err := range watch.Receive(ctx) {
		if err == nil {
			report(state)
			continue
		}
		e, ok := errors.AsType[*cinnabar.Error](err)
		if ok && e.Remote && (e.Code == codes.NoEntry || e.Code == codes.ProtoNoSupport || e.Code == codes.Again) {
			report(native.ServingYes)
			<-ctx.Done()
		}
		return err
	}
	return fmt.Errorf("balance: the server has ended the watch of its health (%w)", codes.HostUnreach)
}
