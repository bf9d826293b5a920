package codecplan

import (
	"fmt"
	"reflect"

	"cinnabar/codec"
)

// MaxMin bounds the bytes that every value of a type takes, so that sums of them are far from overflowing an int. No
// transport takes messages of this size.
const MaxMin = 1 << 30

// Finish completes an error made below a codec's entry points with the facts that only those know.
func Finish(err error, name string, op codec.Op, t reflect.Type) error {
	e := Own(err)
	e.Codec, e.Op, e.Type = name, op, t
	return e
}

// maxPath bounds the text that says where in a value an error lies, in bytes, because deep values have long paths.
const maxPath = 200

// Under puts step, a field name or an index in brackets, before the path of err.
func Under(err error, step string) error {
	e := Own(err)
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

// Own returns err itself if it is a *codec.Error, and otherwise a new one that wraps err. The caller may change the result in place:
// Under adds to its path, and Finish sets the codec, the method and the type.
func Own(err error) *codec.Error {
	if e, ok := err.(*codec.Error); ok { //nolint:errorlint // not a wrapped one: it is changed in place
		return e
	}
	return &codec.Error{Problem: err.Error(), Err: err}
}

// Foreign returns a new *codec.Error, which Own may change, for err, an error that a method of a custom type returned. If err is itself an
// unfinished *codec.Error, it comes from a function for parts of a value, and Foreign returns a copy with its path.
func Foreign(err error) error {
	if e, ok := err.(*codec.Error); ok && e.Codec == "" { //nolint:errorlint // a wrapped one has text of its own around it
		return new(*e)
	}
	return &codec.Error{Problem: err.Error(), Err: err}
}

// Overflow returns an error that is [codec.ErrOverflow].
func Overflow(format string, args ...any) error {
	return &codec.Error{Problem: fmt.Sprintf(format, args...), Err: codec.ErrOverflow}
}

// TooLarge returns the error for a type with values of more than [MaxMin] bytes; the arguments give the type and the number.
func TooLarge(format string, args ...any) error {
	return &codec.Error{
		Problem: fmt.Sprintf(format, args...) + fmt.Sprintf(", more than the %d that a message can have", MaxMin),
		Remedy:  "expose the memory and send a bulk handle",
	}
}

// Value returns the variable that v points to, which is addressable. ptr is the pointer type that v must have.
func Value(v any, ptr reflect.Type) (reflect.Value, error) {
	if reflect.TypeOf(v) != ptr {
		return reflect.Value{}, &codec.Error{Problem: fmt.Sprintf("given a %T", v), Remedy: "pass a " + ptr.String()}
	}
	rv := reflect.ValueOf(v).Elem()
	if !rv.IsValid() {
		return rv, &codec.Error{Problem: "given a nil pointer", Remedy: "pass a pointer to a value"}
	}
	return rv, nil
}
