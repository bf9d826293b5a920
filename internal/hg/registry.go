package hg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"cinnabar/internal/hg/wire"
	"cinnabar/internal/invariants"
)

// Registry is a table of the registrations of RPCs by their ids. Lookup takes no lock. The zero Registry is empty.
type Registry[T any] struct {
	mu      invariants.Mutex // serializes changes
	entries atomic.Pointer[map[uint64]Entry[T]]
}

// Entry is one registration.
type Entry[T any] struct {
	ID    uint64
	Name  string // of the RPC
	Value T
}

// ExistsError is the error of a registration with an id that is taken.
type ExistsError struct {
	ID          uint64
	Name, Taken string // of the RPC that was to be registered, and of the one that is
}

func (e *ExistsError) Error() string {
	if e.Name == e.Taken {
		return fmt.Sprintf("%q is registered already for provider %d; remove it first or use another provider id", e.Name, wire.Provider(e.ID))
	}
	return fmt.Sprintf("%q and %q, which is registered already, have the same id %#016x; rename one or use another provider id", e.Name, e.Taken, e.ID)
}

// Add registers value; the error is an [*ExistsError].
func (r *Registry[T]) Add(id uint64, name string, value T) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.load()
	if e, taken := old[id]; taken {
		return &ExistsError{ID: id, Name: name, Taken: e.Name}
	}
	changed := maps.Clone(old)
	if changed == nil {
		changed = map[uint64]Entry[T]{}
	}
	changed[id] = Entry[T]{ID: id, Name: name, Value: value}
	r.entries.Store(&changed)
	return nil
}

// Remove undoes Add and reports whether anything was registered under id.
func (r *Registry[T]) Remove(id uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.load()
	if _, known := old[id]; !known {
		return false
	}
	changed := maps.Clone(old)
	delete(changed, id)
	r.entries.Store(&changed)
	return true
}

// Lookup returns the registration with an id.
func (r *Registry[T]) Lookup(id uint64) (Entry[T], bool) {
	e, ok := r.load()[id]
	return e, ok
}

// Any reports whether match returns true for at least one registration.
func (r *Registry[T]) Any(match func(T) bool) bool {
	for _, e := range r.load() {
		if match(e.Value) {
			return true
		}
	}
	return false
}

// Entries returns all registrations, by name and id.
func (r *Registry[T]) Entries() []Entry[T] {
	return slices.SortedFunc(maps.Values(r.load()), func(a, b Entry[T]) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return int(wire.Provider(a.ID)) - int(wire.Provider(b.ID))
	})
}

func (r *Registry[T]) load() map[uint64]Entry[T] {
	if m := r.entries.Load(); m != nil {
		return *m
	}
	return nil
}
