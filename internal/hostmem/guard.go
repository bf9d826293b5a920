package hostmem

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrFault is the error that every [FaultError] matches.
var ErrFault = errors.New("memory is gone: its file became shorter, or its file system is full")

// FaultError says that memory could not be read or written. It belongs to a mapping of a file that has become shorter, or
// of a file on a full file system, or it is not mapped any more.
type FaultError struct {
	Addr uintptr // where
}

// Error says where and why.
func (e *FaultError) Error() string { return fmt.Sprintf("fault at address %#x: %v", e.Addr, ErrFault) }

// Is reports whether target is [ErrFault].
func (e *FaultError) Is(target error) bool { return target == ErrFault }

// Guard calls f, which reads or writes memory that may be a mapping, and returns a [*FaultError] where the process would
// otherwise end by a signal. Then f has finished a part of its work only. Guard holds for the calling goroutine only; other panics
// go on. It costs some 10 ns.
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

// Copy is the built-in copy for memory of which either side may be a mapping.
func Copy(dst, src []byte) (n int, err error) {
	err = Guard(func() { n = copy(dst, src) })
	return n, err
}
