package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/na"
)

// Situation is the error that describes the step at which a call was when its context ended or it was cancelled: "request sent
// 2.0s ago, no answer". The error of the call wraps it.
type Situation struct{ text string }

func (s *Situation) Error() string { return s.text }

// Clock returns the time since a fixed moment. Now is cheap and accurate enough for ages in texts; Exact reads the system's clock.
type Clock interface {
	Now() time.Duration
	Exact() time.Duration
}

// ended is the error of an operation that ended with its context: the context's error and the situation of the operation.
type ended struct {
	cause     error
	situation *Situation
}

func (e *ended) Error() string   { return e.cause.Error() + ": " + e.situation.text }
func (e *ended) Unwrap() []error { return []error{e.cause, e.situation} }

// During returns cause with the Situation in err's chain, or cause alone if there is none.
func During(cause, err error) error {
	s, ok := errors.AsType[*Situation](err)
	if !ok || cause == nil {
		return cause
	}
	return &ended{cause, s}
}

// during returns cause, which may be nil, with the present situation of the call.
func (k *Call) during(cause error) error {
	s := k.situation()
	switch {
	case s == nil:
		return cause
	case cause == nil:
		return s
	}
	return &ended{cause, s}
}

// situation returns the present situation of the call, nil if the call is not under way over the network.
func (k *Call) situation() *Situation {
	w := k.state.load()
	launched, sending := w.has(flagLaunched), w.has(opSend)
	switch {
	case w.phase() != phaseStarted || k.via == nil:
		return nil
	case w.has(opPull):
		return &Situation{"the answer has come, and is being fetched"}
	case launched && !sending && k.c.cfg.Clock != nil:
		return &Situation{fmt.Sprintf("request sent %.1fs ago, no answer", (k.c.cfg.Clock.Exact() - time.Duration(k.sentAt.Load())).Seconds())}
	case launched && !sending:
		return &Situation{"request sent, no answer"}
	}
	if r, ok := k.c.ep.(na.Reporter); ok {
		if text := r.Report(k.to); text != "" {
			return &Situation{"request not sent: " + text}
		}
	}
	if launched {
		return &Situation{"request not sent: the network has not taken it"}
	}
	return &Situation{"request not sent: no answer to the first request, which asks whether the peer is built with checksums"}
}
