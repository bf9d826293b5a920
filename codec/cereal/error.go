package cereal

import (
	"fmt"
	"reflect"

	"cinnabar/codec"
)

// finish completes an error made below with what only the entry points know.
func finish(err error, op codec.Op, t reflect.Type) error {
	e := own(err)
	e.Codec, e.Op, e.Type = name, op, t
	return e
}

// maxPath bounds the text that says where in a value an error lies; deep values have long ones.
const maxPath = 200

// under puts step, a field name or an index in brackets, before the path of err.
func under(err error, step string) error {
	e := own(err)
	if len(e.Path) >= maxPath {
		return e
	}
	if e.Path != "" && e.Path[0] != '[' {
		step += "."
	}
	if e.Path = step + e.Path; len(e.Path) >= maxPath {
		e.Path = "…" + e.Path
	}
	return e
}

// own returns err as the *codec.Error that everything below the entry points returns.
func own(err error) *codec.Error {
	if e, ok := err.(*codec.Error); ok { //nolint:errorlint // not a wrapped one: it is changed in place
		return e
	}
	return &codec.Error{Problem: err.Error(), Err: err}
}

// foreign makes an error that own may change from that of a custom type. An unfinished one comes from a function of
// this package and is taken over with its path.
func foreign(err error) error {
	if e, ok := err.(*codec.Error); ok && e.Codec == "" { //nolint:errorlint // a wrapped one has text of its own around it
		return new(*e)
	}
	return &codec.Error{Problem: err.Error(), Err: err}
}

// overflow returns an error that is codec.ErrOverflow.
func overflow(format string, args ...any) error {
	return &codec.Error{Problem: fmt.Sprintf(format, args...), Err: codec.ErrOverflow}
}
