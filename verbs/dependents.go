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

// dependents counts the open objects that depend on an object, by kind, and
// records whether the object is closed itself. Lock order: an object's
// dependents before those of its parent.
type dependents struct {
	mu     sync.Mutex
	closed bool             // +checklocks:mu
	n      [numChildren]int // +checklocks:mu
}

// addDependent counts one more child of kind k, unless the object is closed. op
// names the caller's operation and object the object itself, for the error.
func (d *dependents) addDependent(k child, op, object string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return Errorf(op, ErrClosed, "the %s was closed", object)
	}
	d.n[k]++
	return nil
}

// removeDependent takes back one addDependent.
func (d *dependents) removeDependent(k child) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n[k]--
}

// closeUnlessBusy closes the object by calling release. It fails with ErrBusy, naming the
// children, while there are any. After success it returns nil at once; after a
// failed release it can be called again.
func (d *dependents) closeUnlessBusy(op string, release func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if list := d.listLocked(); list != "" {
		return Errorf(op, ErrBusy, "close first: %s", list)
	}
	if err := release(); err != nil {
		return err
	}
	d.closed = true
	return nil
}

// listLocked names the living children, "" if there are none.
//
// +checklocks:d.mu
func (d *dependents) listLocked() string {
	var list []string
	for k, n := range d.n {
		switch {
		case n == 1:
			list = append(list, "1 "+childNames[k])
		case n > 1:
			list = append(list, fmt.Sprintf("%d %ss", n, childNames[k]))
		}
	}
	return strings.Join(list, ", ")
}
