//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

// bareDevice is a device without hardware, for what the kernel and the libraries
// may say one day.
func bareDevice() *device {
	d := &device{name: "bare0", qps: map[uint64]*qp{}, cqs: map[uint64]*cq{}, srqs: map[uint64]*srq{}, ids: map[uint64]*cmID{}}
	d.events.Init()
	d.removal.gone = make(chan struct{})
	return d
}

// TestBadUnknownEvents meets events of libraries newer than this package, and
// events about objects that are closed: none of them ends anything.
// parity(vm): V51
func TestBadUnknownEvents(t *testing.T) {
	d := bareDevice()
	ev, ok := d.translate(rawAsync{typ: 99, id: 1})
	if !ok || ev.Type != 99 || ev.Port != 1 || ev.Type.String() != "unknown" {
		t.Errorf("event 99 became %+v (%v), %v", ev, ev.Type, ok)
	}
	for typ := range verbs.EventType(verbs.NumEventTypes) {
		d.translate(rawAsync{typ: typ, id: 77}) // of an object that is gone
	}
	id := &cmID{cm: &cm{dev: d}, events: make(chan cmEvent, 2)}
	id.put(cmEvent{typ: 99})
	id.put(cmEvent{typ: rdmacm.EventEstablished})
	if _, err := id.wait(context.Background(), "connect", rdmacm.EventEstablished); err != nil {
		t.Errorf("an unknown event of the connection manager ended the wait: %v", err)
	}
}

// TestBadPortEvent says what has happened and what helps.
// parity(vm): V41
func TestBadPortEvent(t *testing.T) {
	ev, ok := bareDevice().translate(rawAsync{typ: verbs.EventPortErr, id: 1})
	if !ok || ev.Err == nil || !strings.Contains(ev.Err.Error(), "port 1 of bare0 is down") {
		t.Errorf("event %+v, %v", ev, ok)
	}
}

// TestBadFatalEvent is the end of a device, which is told once.
// parity(vm): V35 V41
func TestBadFatalEvent(t *testing.T) {
	d := bareDevice()
	if err := d.usable("create"); err != nil {
		t.Errorf("a device that is there: %v", err)
	}
	d.remove()
	d.remove()
	ev, err := d.NextEvent(context.Background())
	if err != nil || ev.Type != verbs.EventDeviceFatal || !errors.Is(ev.Err, verbs.ErrDeviceRemoved) {
		t.Errorf("event %+v, %v", ev, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if ev, err := d.NextEvent(ctx); err == nil {
		t.Errorf("a second event: %+v", ev)
	}
	for what, err := range map[string]error{"create": d.usable("create"), "a connection manager's wait": waitGone(d)} {
		if !errors.Is(err, verbs.ErrDeviceRemoved) || !strings.Contains(err.Error(), "bare0") {
			t.Errorf("%s: %v, want ErrDeviceRemoved with the name", what, err)
		}
	}
}

func waitGone(d *device) error {
	id := &cmID{cm: &cm{dev: d, closing: make(chan struct{})}, events: make(chan cmEvent)}
	_, err := id.wait(context.Background(), "connect", rdmacm.EventEstablished)
	return err
}
