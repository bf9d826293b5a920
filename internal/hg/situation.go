package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/internal/na"
)

// Situation says what a call was doing when it was given up: "request sent 2.0s ago, no answer". It is the cause of the
// call's error, or a part of it.
type Situation struct{ text string }

func (s *Situation) Error() string { return s.text }

// Clock tells the time since some moment: Now cheaply, with the accuracy that ages need which people read, and Exact exactly.
type Clock interface {
	Now() time.Duration
	Exact() time.Duration
}

// ended is the end of a context, with the situation of the operation that it ended.
type ended struct {
	cause     error
	situation *Situation
}

func (e *ended) Error() string   { return e.cause.Error() + ": " + e.situation.text }
func (e *ended) Unwrap() []error { return []error{e.cause, e.situation} }

// During returns cause with the situation that err has, if it has one.
func During(cause, err error) error {
	s, ok := errors.AsType[*Situation](err)
	if !ok || cause == nil {
		return cause
	}
	return &ended{cause, s}
}

// during returns cause, which may be nil, with what the call is doing now.
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

// situation returns what the call is doing, nil if there is nothing to say.
func (k *Call) situation() *Situation {
	k.mu.Lock()
	state, ops, launched, sentAt := k.state, k.ops, k.launched, k.sentAt
	k.mu.Unlock()
	switch {
	case state != callStarted || k.via == nil:
		return nil
	case ops&opPull != 0:
		return &Situation{"the answer has come, and is being fetched"}
	case launched && ops&opSend == 0 && k.c.cfg.Clock != nil:
		return &Situation{fmt.Sprintf("request sent %.1fs ago, no answer", (k.c.cfg.Clock.Exact() - sentAt).Seconds())}
	case launched && ops&opSend == 0:
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
