//go:build windows && !race

package hostmem

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapPages reserves and commits size bytes, a multiple of the page size, of
// zeroed memory. Regions begin at the allocation granularity, which is a
// multiple of the page size.
func mapPages(size int) ([]byte, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	// The memory is not Go's, so no collector can invalidate the address
	// between the call and this conversion; the detour through &addr says so
	// to vet, which cannot know.
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(p), size), nil
}

// unmapPages undoes mapPages. MEM_RELEASE frees the whole region and demands
// size 0.
func unmapPages(b []byte) error {
	return windows.VirtualFree(uintptr(Addr(b)), 0, windows.MEM_RELEASE)
}
