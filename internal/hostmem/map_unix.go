//go:build unix && !race

package hostmem

import "golang.org/x/sys/unix"

// mapPages maps size bytes, a multiple of the page size, of private zeroed memory.
func mapPages(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// unmapPages undoes mapPages.
func unmapPages(b []byte) error { return unix.Munmap(b) }
