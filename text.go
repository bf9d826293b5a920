package cinnabar

import (
	"encoding"
	"log/slog"
	"strconv"
)

// The types below are logged, and printed as JSON, as the text of their String method: encoding/json calls MarshalText, and
// log/slog calls LogValue, so that text and JSON handlers print the same words.

// LogValue implements [slog.LogValuer].
func (ep *Endpoint) LogValue() slog.Value { return slog.StringValue(ep.String()) }

// MarshalText implements [encoding.TextMarshaler].
func (ep *Endpoint) MarshalText() ([]byte, error) { return []byte(ep.String()), nil }

// String returns the address with the provider id behind it.
func (h ProviderHandle) String() string { return h.ep.String() + "@" + strconv.Itoa(int(h.id)) }

// LogValue implements [slog.LogValuer].
func (h ProviderHandle) LogValue() slog.Value { return slog.StringValue(h.String()) }

// MarshalText implements [encoding.TextMarshaler].
func (h ProviderHandle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// LogValue implements [slog.LogValuer]. It has no keys.
func (h BulkHandle) LogValue() slog.Value { return slog.StringValue(h.String()) }

// MarshalText implements [encoding.TextMarshaler]. The text has no keys, so it does not give access to the memory.
func (h BulkHandle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// LogValue implements [slog.LogValuer].
func (m Mode) LogValue() slog.Value { return slog.StringValue(m.String()) }

// MarshalText implements [encoding.TextMarshaler].
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// LogValue implements [slog.LogValuer].
func (s Side) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements [encoding.TextMarshaler].
func (s Side) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements [slog.LogValuer].
func (e *Error) LogValue() slog.Value {
	if e == nil {
		return slog.Value{}
	}
	return slog.StringValue(e.Error())
}

// MarshalText implements [encoding.TextMarshaler].
func (e *Error) MarshalText() ([]byte, error) {
	if e == nil {
		return nil, nil
	}
	return []byte(e.Error()), nil
}

// text is implemented by each type that is logged and marshaled as its String.
type text interface {
	slog.LogValuer
	encoding.TextMarshaler
}

var _ = []text{(*Endpoint)(nil), ProviderHandle{}, BulkHandle{}, Mode(0), Side(0), (*Error)(nil)}
