package rc

import (
	"errors"
	"fmt"
)

// Error is why a connection failed.
type Error struct {
	Op   string // "connect to", "serve", ...
	Peer string // address of the peer, or the name by which it was to be found
	Err  error  // the reason
}

// Error returns the operation, the peer, and the reason.
func (e *Error) Error() string { return e.Op + " " + e.Peer + ": " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Die makes the error by which a callback gives up more than its connection
// (rc_die): the loop that called it ends all its connections and returns the
// error. The caller of the loop decides whether the process ends. The
// arguments are those of [fmt.Errorf].
func Die(format string, args ...any) error { return &fatal{fmt.Errorf(format, args...)} }

// fatal marks an error of Die.
type fatal struct{ error }

func (f *fatal) Unwrap() error { return f.error }

func isFatal(err error) bool {
	_, ok := errors.AsType[*fatal](err)
	return ok
}
