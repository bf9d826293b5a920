//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"cinnabar/verbs"
)

// Handles of objects that are closed lead nowhere: every call but Close has to
// leave them alone. Here they are zero, so that a call that does not
// ends the test's process.
func TestClosedObjects(t *testing.T) {
	d := &device{ports: 1, closed: true, removal: removal{gone: make(chan struct{})}, ids: map[uint64]*cmID{}}
	d.attr.QPTypes = []verbs.QPType{verbs.UD}
	p := &pd{dev: d}
	p.children.Store(pdClosed)
	q := &qp{pd: p, closed: true, gone: true, init: verbs.QPInit{Type: verbs.UD}}
	q.state.Store(uint32(verbs.StateRTS))
	s := &srq{pd: p, closed: true, init: verbs.SRQInit{MaxWR: 4}}
	c := &cq{dev: d, closed: true, bell: make(chan struct{})}
	reset := verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateReset}
	for name, call := range map[string]func() error{
		"query device":          func() error { _, err := d.Query(); return err },
		"create address handle": func() error { _, err := p.CreateAH(verbs.AHAttr{}); return err },
		"modify queue pair":     func() error { return q.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}) },
		"reset queue pair":      func() error { return q.Modify(reset) },
		"rename queue pair": func() error { // by a reset that Close has overtaken
			q.sendMu.Lock()
			defer q.sendMu.Unlock()
			q.recvMu.Lock()
			defer q.recvMu.Unlock()
			return q.rename(reset)
		},
		"post send":    func() error { _, err := q.PostSend(nil); return err },
		"post receive": func() error { _, err := q.PostRecv(nil); return err },
		"post shared":  func() error { _, err := s.PostRecv(nil); return err },
		"limit":        func() error { return s.Modify(verbs.SRQAttr{Limit: 1}, true, false) },
		"poll":         func() error { _, err := c.Poll(make([]verbs.WC, 1)); return err },
		"arm":          func() error { return c.Arm(false) },
		"resize":       func() error { return c.Resize(2) },
		"listen":       func() error { _, err := d.Listen(netip.AddrPort{}, verbs.ListenConfig{}); return err },
		"connect": func() error {
			_, err := d.Dial(context.Background(), q, netip.AddrPort{}, verbs.ConnParam{})
			return err
		},
		"allocate a domain": func() error { _, err := d.AllocPD(); return err },
	} {
		if err := call(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	if a, _ := q.Query(); a.State != verbs.StateRTS {
		t.Errorf("a closed queue pair is in %v, want the state that it was closed in", a.State)
	}
	q.broken(errors.New("an event that came late"))
	if err := errors.Join(p.Close(), d.Close(), c.Close(), s.Close(), q.Close()); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// A request that the end of its listener or device has refused cannot be answered.
func TestRejectOver(t *testing.T) {
	id := &cmID{cm: &cm{dev: &device{ids: map[uint64]*cmID{}}}}
	id.once.Do(func() {}) // as destroy does
	if err := (&connRequest{id: id}).Reject([]byte("no")); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Reject: %v, want ErrClosed", err)
	}
}

// TestPostOnRemoved posts a receive on a removed device, where no message comes any more: the post must fail.
func TestPostOnRemoved(t *testing.T) {
	d := &device{removal: removal{gone: make(chan struct{})}}
	close(d.removal.gone)
	s := &srq{pd: &pd{dev: d}, ids: make([]uint64, 1), free: make([]uint32, 1), batch: new(recvBatch)}
	if n, err := s.PostRecv(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrDeviceRemoved) {
		t.Errorf("PostRecv: %d, %v; want ErrDeviceRemoved", n, err)
	}
}

// A domain that gains an object while it is closed keeps it, or is closed before.
func TestAdopt(t *testing.T) {
	p := &pd{dev: &device{removal: removal{gone: make(chan struct{})}}}
	if !p.adopt() {
		t.Fatal("an open domain adopts nothing")
	}
	if err := p.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close: %v, want ErrBusy", err)
	}
}

// TestMarkerShared ends a connection twice at a time: the second Disconnect waits for the marker of the first.
func TestMarkerShared(t *testing.T) {
	q := &qp{drained: make(chan struct{})}
	q.state.Store(uint32(verbs.StateRTS))
	first := q.drained
	if done, err := q.mark(); done != first || err != nil {
		t.Errorf("mark: %v, %v; want the marker that is on its way", done, err)
	}
	q.markerDone()
	select {
	case <-first:
	default:
		t.Error("the marker is done, and not closed")
	}
}
