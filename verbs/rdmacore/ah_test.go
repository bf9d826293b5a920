//go:build linux

package rdmacore

import (
	"errors"
	"math"
	"testing"

	"cinnabar/verbs"
)

// newTestAH is a handle of a device that is there, which the library does not know.
func newTestAH() *ah {
	return &ah{h: someAH, pd: &pd{dev: &device{removal: removal{gone: make(chan struct{})}}}}
}

// A handle is held once for each datagram and released once, whoever empties
// the place, also where the counter of positions begins anew.
func TestDestinations(t *testing.T) {
	d, a := make(destinations, 4), newTestAH()
	first := uint32(math.MaxUint32 - 1)
	for pos := first; pos != first+4; pos++ {
		if h, err := d.take(pos, &verbs.SendWR{AH: a}); h != someAH || err != nil {
			t.Fatalf("take: %v, %v", h, err)
		}
	}
	for _, step := range []struct {
		from, end uint32
		want      int64
	}{{first, first, 4}, {first, first + 3, 1}, {first, first + 3, 1}, {first + 4, first + 3, 1}} {
		if d.drop(step.from, step.end); a.users.Users() != step.want {
			t.Errorf("drop from %d to %d: %d users, want %d", step.from, step.end, a.users.Users(), step.want)
		}
	}
	d.dropAll()
	d.dropAll()
	if n := a.users.Users(); n != 0 {
		t.Errorf("%d users, want none", n)
	}
	a.users.Close()
	if _, err := d.take(0, &verbs.SendWR{AH: a}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("take of a closed one: %v, want ErrClosed", err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestHandleInUse(t *testing.T) {
	a := newTestAH()
	a.users.Acquire()
	if err := a.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close in use: %v, want ErrBusy", err)
	}
	var none destinations
	none.dropAll()
	var zero ahHandle
	if h, err := none.take(3, &verbs.SendWR{}); h != zero || err != nil {
		t.Errorf("a queue without datagrams: %v, %v", h, err)
	}
}
