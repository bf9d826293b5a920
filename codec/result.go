package codec

import "errors"

// Result is a value or the text of the error that took its place: a bool, then one of the two. It is the result type that
// services on Margo and Thallium declare for themselves, as a structure with a flag, or as a class with a save method that writes
// m_value or m_error. Both codecs write it. The fields that its bool excludes must be zero.
type Result[T any] struct {
	OK    bool
	Value T      `proc:"when=OK" cereal:"when=OK"`
	Err   string `proc:"when=!OK" cereal:"when=!OK"`
}

// ResultOf returns the Result that carries v, or the text of err if that is not nil.
func ResultOf[T any](v T, err error) Result[T] {
	if err != nil {
		return Result[T]{Err: err.Error()}
	}
	return Result[T]{OK: true, Value: v}
}

// Get returns the value, or an error with the text that came in its place.
func (r Result[T]) Get() (T, error) {
	if r.OK {
		return r.Value, nil
	}
	var zero T
	return zero, errors.New(r.Err)
}
