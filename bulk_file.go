package cinnabar

import (
	"errors"
	"os"

	"cinnabar/codes"
)

// ExposeFile exposes the content of a file as it is on disk: the file is mapped, peers read it from, and write it to, the
// system's page cache, and the system reads from disk only the pages that are accessed. The length of the Bulk, in bytes, is that of
// the file at this moment; the program may close f right afterwards. For a mode other than ReadOnly f must be open for reading and writing.
//
// As with every mapping, the file should not become shorter before Close. Accesses to the part that is gone, and writes for which the
// file system has no room, fail: those by [Bulk.ReadAt], [Bulk.WriteAt] and transfers with codes.Fault, a peer's with its
// connection. A program that touches the memory itself, as [Bulk.Bytes] returns it, is ended by the system. Only regular
// files can be exposed, and on Unix only.
func (e *Engine) ExposeFile(mode Mode, f *os.File) (*Bulk, error) {
	m, err := e.exposeFile(mode, f)
	if err != nil {
		return nil, err
	}
	return m.newBulk(), nil
}

func (e *Engine) exposeFile(mode Mode, f *os.File) (*memory, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fileError(err)
	}
	size := info.Size()
	if !info.Mode().IsRegular() || size != int64(int(size)) {
		return nil, argumentError("expose file", "", "", "%s is %v of %d bytes; it must be a regular file that fits into memory", f.Name(), info.Mode().Type(), size)
	}
	if size == 0 {
		return e.expose(mode, [][]byte{nil}, nil) // there is nothing to map
	}
	mapped, unmap, err := mapFile(f, int(size), mode.allows(WriteOnly))
	if err != nil {
		return nil, fileError(err)
	}
	m, err := e.expose(mode, [][]byte{mapped}, unmap)
	if err != nil {
		return nil, err
	}
	m.fixed = !mode.allows(WriteOnly)
	return m, nil
}

// fileError is the refusal of a file, for the reason that the system gives.
func fileError(err error) error {
	e := &Error{Op: "expose file", Code: codes.IOError, Err: err}
	switch {
	case errors.Is(err, os.ErrPermission):
		e.Code = codes.Access
	case errors.Is(err, errors.ErrUnsupported):
		e.Code = codes.OpNotSupported
	}
	return e
}
