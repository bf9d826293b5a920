package hostmem

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrFault is the error that every [FaultError] matches.
var ErrFault = errors.New("memory is gone: its file became shorter, or its file system is full")

// FaultError is the error of an access to memory of a file that has become shorter, or that is on a full file system, or to memory
// that is not mapped any more.
type FaultError struct {
	Addr uintptr // the address of the access
}

// Error returns a text with the address and the possible causes.
func (e *FaultError) Error() string { return fmt.Sprintf("fault at address %#x: %v", e.Addr, ErrFault) }

// Is reports whether target is [ErrFault].
func (e *FaultError) Is(target error) bool { return target == ErrFault }

// Guard calls f, which accesses memory that may be a mapping, and returns a [*FaultError] if the process would otherwise end by a
// signal. Then f has not run to its end. Guard acts on the calling goroutine only and passes other panics on. It costs some 10 ns.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		v := recover()
		if v == nil {
			return
		}
		fault, ok := v.(interface{ Addr() uintptr })
		if !ok {
			panic(v)
		}
		err = &FaultError{Addr: fault.Addr()}
	}()
	f()
	return nil
}

// Copy is the built-in copy for two slices of which each may be a mapping.
func Copy(dst, src []byte) (n int, err error) {
	err = Guard(func() { n = copy(dst, src) })
	return n, err
}
