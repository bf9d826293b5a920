//go:build unix

package hostmem

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestMappedIsNotInGoHeap checks that memory which a program has mapped does not count as memory of Go's heap.
func TestMappedIsNotInGoHeap(t *testing.T) {
	mapped, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if InGoHeap(mapped) || InGoHeap(mapped[1<<20-1:]) {
		t.Error("mapped memory is in the heap")
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Error(err)
	}
}
