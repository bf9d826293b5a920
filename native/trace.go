package native

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Trace is the trace context of a call, as the Trace Context of the W3C defines it. It travels with each call that is made with a context that
// has one, and so through the services that a request leads to. The package passes the span id on as it is; a tracer puts its own
// span in with [WithTrace], in an interceptor for example.
type Trace struct {
	TraceID [16]byte // of the whole trace; not all zero
	SpanID  [8]byte  // of the caller's span ("parent-id"); not all zero
	Flags   byte     // bit 0: sampled; bit 1: the trace id is random
	State   string   // the list of tracestate, at most 512 bytes; empty: none
}

// traceFlags are the flags that the specification defines. It wants the others to be 0.
const traceFlags = 3

// Limits of tracestate.
const (
	maxState      = 512 // bytes
	maxStateList  = 32  // members
	maxStateParts = 256 // bytes of a key, and of a value
)

// NewTrace returns the beginning of a trace, with random ids.
func NewTrace(sampled bool) Trace {
	t := Trace{Flags: 2}
	if sampled {
		t.Flags |= 1
	}
	for isZero(t.TraceID[:]) {
		_, _ = rand.Read(t.TraceID[:]) // it never fails
	}
	return t.Child()
}

// Child returns the trace with a random span id of its own. The child of the zero Trace is the zero Trace.
func (t Trace) Child() Trace {
	if t.IsZero() {
		return t
	}
	t.SpanID = [8]byte{}
	for isZero(t.SpanID[:]) {
		_, _ = rand.Read(t.SpanID[:]) // it never fails
	}
	return t
}

func isZero(id []byte) bool { return !slices.ContainsFunc(id, func(b byte) bool { return b != 0 }) }

// ParseTrace reads the values of the headers traceparent and tracestate; state may be empty. Versions of traceparent above 00 are read as
// version 00, as the specification asks.
func ParseTrace(parent, state string) (Trace, error) {
	t, err := parseParent(parent)
	if err != nil {
		return Trace{}, err
	}
	if t.State, err = normalState(state); err != nil {
		return Trace{}, err
	}
	return t, nil
}

// Offsets in a traceparent: version-traceid-parentid-flags, in lower-case hexadecimal digits.
const (
	traceStart, traceEnd = 3, 35
	spanStart, spanEnd   = 36, 52
	flagsStart           = 53
	parentLen            = 55
)

func parseParent(s string) (t Trace, err error) {
	var ver, flags [1]byte
	switch {
	case len(s) < parentLen || s[2] != '-' || s[traceEnd] != '-' || s[spanEnd] != '-':
		return t, fmt.Errorf("traceparent %.100q: it has the form 00-32 digits-16 digits-2 digits", s)
	case !unhex(ver[:], s[:2]) || !unhex(t.TraceID[:], s[traceStart:traceEnd]) || !unhex(t.SpanID[:], s[spanStart:spanEnd]) || !unhex(flags[:], s[flagsStart:parentLen]):
		return t, fmt.Errorf("traceparent %.100q: its digits are 0 to 9 and a to f", s)
	case ver[0] == 0xff:
		return t, fmt.Errorf("traceparent %.100q: version ff is not valid", s)
	case ver[0] == 0 && len(s) > parentLen || len(s) > parentLen && s[parentLen] != '-':
		return t, fmt.Errorf("traceparent %.100q: version %02x has %d characters, or a further field behind a dash if it is above 00", s, ver[0], parentLen)
	}
	t.Flags = flags[0] & traceFlags
	return t, t.check()
}

// unhex decodes lower-case digits.
func unhex(dst []byte, s string) bool {
	if strings.ContainsAny(s, "ABCDEF") {
		return false
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}

// check returns an error if t is not valid.
func (t *Trace) check() error {
	switch {
	case isZero(t.TraceID[:]):
		return errors.New("trace: the trace id is zero")
	case isZero(t.SpanID[:]):
		return errors.New("trace: the span id is zero")
	case t.Flags&^traceFlags != 0:
		return fmt.Errorf("trace: flags %#02x, of which %#02x are defined", t.Flags, traceFlags)
	}
	state, err := normalState(t.State)
	if err == nil && state != t.State {
		err = fmt.Errorf("tracestate %.100q: it has spaces or empty members between its members; ParseTrace removes them", t.State)
	}
	return err
}

// normalState returns a tracestate without the spaces and the empty members that the specification allows between members.
func normalState(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	var members, keys []string
	for m := range strings.SplitSeq(s, ",") {
		if m = strings.Trim(m, " \t"); m == "" {
			continue
		}
		key, value, _ := strings.Cut(m, "=")
		switch {
		case !isStateKey(key) || !isStateValue(value):
			return "", fmt.Errorf("tracestate member %.100q: it has the form key=value, with a lower-case key and a printable value, %d characters each at most", m, maxStateParts)
		case slices.Contains(keys, key):
			return "", fmt.Errorf("tracestate has the key %.100q twice", key)
		}
		members, keys = append(members, m), append(keys, key)
	}
	if len(members) > maxStateList {
		return "", fmt.Errorf("tracestate has %d members, at most %d", len(members), maxStateList)
	}
	normal := strings.Join(members, ",")
	if len(normal) > maxState {
		return "", fmt.Errorf("tracestate has %d bytes, at most %d; remove members from its end", len(normal), maxState)
	}
	return normal, nil
}

// isStateKey reports whether s is a key of tracestate.
func isStateKey(s string) bool {
	if s == "" || len(s) > maxStateParts {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && strings.IndexByte("_-*/@", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// isStateValue reports whether s is a value of tracestate. It may begin with spaces, but not end with one.
func isStateValue(s string) bool {
	if s == "" || len(s) > maxStateParts || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return true
}

// IsZero reports whether t is the zero Trace, which stands for none.
func (t Trace) IsZero() bool { return t == Trace{} }

// String returns the value of the header traceparent.
func (t Trace) String() string {
	return "00-" + hex.EncodeToString(t.TraceID[:]) + "-" + hex.EncodeToString(t.SpanID[:]) + "-" + hex.EncodeToString([]byte{t.Flags})
}

type traceKey struct{}

// WithTrace returns a context for native calls that carry t in place of the trace context of ctx. Call returns an error if t is not valid.
// With the zero Trace the calls carry none.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the trace context of calls that are made with ctx: in a handler that of its request, unless [WithTrace] has replaced it. It is
// zero if there is none.
func TraceFrom(ctx context.Context) Trace {
	t, _ := ctx.Value(traceKey{}).(Trace)
	return t
}
