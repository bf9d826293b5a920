//go:build unix

package cinnabar

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps the first size bytes of f, shared with other users of the file.
func mapFile(f *os.File, size int, write bool) (mapped []byte, unmap func() error, err error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	controlled := raw.Control(func(fd uintptr) { mapped, err = unix.Mmap(int(fd), 0, size, prot, unix.MAP_SHARED) })
	if controlled != nil {
		return nil, nil, controlled
	}
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes of %s: %w", size, f.Name(), err)
	}
	return mapped, func() error { return unix.Munmap(mapped) }, nil
}
