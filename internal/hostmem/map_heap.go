//go:build race || (!unix && !windows)

package hostmem

import (
	"fmt"
	"os"
)

// heapMax is the most bytes taken from the Go heap for one mapping: make ends
// the program, rather than fail, when memory does not suffice.
const heapMax = 64 << 30

// mapPages stands in for the system's mapping with a page-aligned Go slice of
// size bytes: under the race detector, which watches Go memory only, and on
// systems without mappings.
func mapPages(size int) ([]byte, error) {
	if uint64(size) > heapMax {
		return nil, fmt.Errorf("at most %d bytes of Go memory in this build", uint64(heapMax))
	}
	page := os.Getpagesize()
	b := make([]byte, size+page)
	skip := 0
	if over := int(Addr(b) % uint64(page)); over != 0 {
		skip = page - over
	}
	return b[skip : skip+size : skip+size], nil
}

// unmapPages leaves the slice to the collector.
func unmapPages([]byte) error { return nil }
