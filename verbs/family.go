package verbs

import (
	"fmt"
	"strings"
	"sync"
)

// child is a kind of object that keeps another one open.
type child uint8

const (
	childPD child = iota
	childCQ
	childListener
	childMR
	childQP
	childSRQ
	numChildren
)

var childNames = [numChildren]string{
	"protection domain", "completion queue", "listener", "memory region", "queue pair", "shared receive queue",
}

// family is the reference counting of an object: its living children by kind,
// and whether it is closed itself. Lock order: an object's family before its
// parent's.
type family struct {
	mu     sync.Mutex
	closed bool             // +checklocks:mu
	n      [numChildren]int // +checklocks:mu
}

// adopt counts one more child of kind k, unless the object is closed. op names
// the caller's operation and what the object, for the error.
func (f *family) adopt(k child, op, what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return Errorf(op, ErrClosed, "the %s was closed", what)
	}
	f.n[k]++
	return nil
}

// leave takes back one adopt.
func (f *family) leave(k child) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n[k]--
}

// shut closes the object by calling release. It fails with ErrBusy, naming the
// children, while there are any. After success it returns nil at once; after a
// failed release it can be called again.
func (f *family) shut(op string, release func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	if list := f.listLocked(); list != "" {
		return Errorf(op, ErrBusy, "close first: %s", list)
	}
	if err := release(); err != nil {
		return err
	}
	f.closed = true
	return nil
}

// listLocked names the living children, "" if there are none.
//
// +checklocks:f.mu
func (f *family) listLocked() string {
	var list []string
	for k, n := range f.n {
		switch {
		case n == 1:
			list = append(list, "1 "+childNames[k])
		case n > 1:
			list = append(list, fmt.Sprintf("%d %ss", n, childNames[k]))
		}
	}
	return strings.Join(list, ", ")
}
