package hostmem

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// errNotMapped is the refusal of Unmap for a slice that Map did not return.
var errNotMapped = errors.New("hostmem: slice is not a live mapping")

// mappings holds the live results of Map by their first byte, because Unmap accepts no other slices. In builds with mappings in Go
// memory it also keeps them alive until Unmap, as the operating system does elsewhere.
var mappings struct {
	mu   sync.Mutex
	live map[*byte]mapping // +checklocks:mu
}

// mapping is one live result of Map.
type mapping struct {
	b     []byte // as returned by Map
	whole []byte // as obtained from the system, whole pages
}

// Map returns size bytes of zeroed, page-aligned memory outside the Go heap. The
// caller owns it until [Unmap]; it is never freed by the collector and must not
// be used after Unmap, not even read. The slice has no spare capacity.
//
// In builds with the race detector the memory is a page-aligned Go slice.
func Map(size int) ([]byte, error) {
	page := os.Getpagesize()
	if size <= 0 || size > maxInt-page {
		return nil, fmt.Errorf("hostmem: map %d bytes: size must be from 1 to %d", size, maxInt-page)
	}
	whole, err := mapPages((size + page - 1) / page * page)
	if err != nil {
		return nil, fmt.Errorf("hostmem: map %d bytes: %w", size, err)
	}
	b := whole[:size:size]
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	if mappings.live == nil {
		mappings.live = make(map[*byte]mapping)
	}
	mappings.live[&b[0]] = mapping{b: b, whole: whole}
	return b, nil
}

const maxInt = int(^uint(0) >> 1)

// Unmap returns memory to the system. b must be exactly the result of a call of [Map]: Unmap refuses a part of it, or memory that is
// not mapped any more, and leaves it as it is. No goroutine or device may access b afterwards.
func Unmap(b []byte) error {
	m, err := removeMapping(b)
	if err != nil {
		return err
	}
	if err := unmapPages(m.whole); err != nil {
		return fmt.Errorf("hostmem: unmap %d bytes: %w", len(b), err)
	}
	return nil
}

// removeMapping removes b from the table of live mappings.
func removeMapping(b []byte) (mapping, error) {
	if len(b) == 0 {
		return mapping{}, errNotMapped
	}
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	m, ok := mappings.live[&b[0]]
	if !ok {
		return mapping{}, errNotMapped
	}
	if len(m.b) != len(b) {
		return mapping{}, fmt.Errorf("%w: %d bytes of a mapping of %d", errNotMapped, len(b), len(m.b))
	}
	delete(mappings.live, &b[0])
	return m, nil
}

// Mapped returns the number of mappings that [Map] made and [Unmap] has not yet
// returned. Tests use it to show that none was left behind.
func Mapped() int64 {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	return int64(len(mappings.live))
}
