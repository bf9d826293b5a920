package cinnabar

import (
	"encoding"
	"strconv"
)

// The types below are printed by encoding/json and log/slog as the text of their String method, because both call MarshalText.

// MarshalText implements [encoding.TextMarshaler].
func (ep *Endpoint) MarshalText() ([]byte, error) { return []byte(ep.String()), nil }

// String returns the address with the provider id behind it.
func (h ProviderHandle) String() string { return h.ep.String() + "@" + strconv.Itoa(int(h.id)) }

// MarshalText implements [encoding.TextMarshaler].
func (h ProviderHandle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// MarshalText implements [encoding.TextMarshaler]. The text has no keys, so it does not give access to the memory.
func (h BulkHandle) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// MarshalText implements [encoding.TextMarshaler].
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// MarshalText implements [encoding.TextMarshaler].
func (e *Error) MarshalText() ([]byte, error) {
	if e == nil {
		return nil, nil
	}
	return []byte(e.Error()), nil
}

var _ = []encoding.TextMarshaler{(*Endpoint)(nil), ProviderHandle{}, BulkHandle{}, Mode(0), (*Error)(nil)}
