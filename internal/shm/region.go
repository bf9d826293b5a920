package shm

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrFault is the error of an access to a part of a region that its file does not have any more, because another program has truncated
// it.
var ErrFault = errors.New("shm: the shared file was truncated while in use")

// Region is memory that this process shares with all others that map the same file.
type Region struct {
	mem  []byte
	name string
	file File
}

// File identifies a file, its owner and its rights.
type File struct {
	Dev, Ino uint64
	UID      uint32
	Mode     uint32 // type and rights, as the kernel has them
}

// Same reports whether f and o describe the same file.
func (f File) Same(o File) bool { return f.Dev == o.Dev && f.Ino == o.Ino }

// Bytes returns the memory of the region. The caller must not use it after Close.
func (r *Region) Bytes() []byte { return r.mem }

// Name returns the path of the file as it was created or opened, "" for private memory.
func (r *Region) Name() string { return r.name }

// File returns the description of the file as it was when it was created or opened. Private memory has none.
func (r *Region) File() File { return r.file }

// Guard turns memory faults of the calling goroutine into panics, from which [Region.Recover] recovers. The caller passes the result
// to Recover, which restores the former setting.
func (r *Region) Guard() (old bool) { return debug.SetPanicOnFault(true) }

// Recover undoes [Region.Guard]; it must be deferred. If the goroutine has faulted within the region, *err becomes
// [ErrFault]; other panics go on.
func (r *Region) Recover(old bool, err *error) {
	debug.SetPanicOnFault(old)
	v := recover()
	if v == nil {
		return
	}
	if !r.faulted(v) {
		panic(v)
	}
	*err = ErrFault
}

// faulted reports whether a panic is the fault of an access to r.
func (r *Region) faulted(v any) bool {
	e, ok := v.(runtime.Error)
	if !ok {
		return false
	}
	at, ok := e.(interface{ Addr() uintptr })
	return ok && contains(r.mem, at.Addr())
}

// checkSize returns an error if a file is smaller than want bytes.
func checkSize(path string, have int64, want int) error {
	if have < int64(want) {
		return fmt.Errorf("shm: %s has %d bytes, %d are needed: it is another program's, or was not set up to the end", path, have, want)
	}
	return nil
}
