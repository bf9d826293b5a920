//go:build linux

package rdmacore

import (
	"context"
	"errors"
	"syscall"

	"cinnabar/verbs"
)

// NextEvent implements verbs.DeviceDriver.
func (d *device) NextEvent(ctx context.Context) (verbs.DeviceEvent, error) { return d.events.Next(ctx) }

// readAsync takes one event from the library.
func (d *device) readAsync() error {
	raw, err := nextAsync(d.ctx)
	switch {
	case errors.Is(err, syscall.EIO): // reading fails so once the device is taken from its users
		d.remove()
		return err
	case err != nil:
		return err
	case raw.typ == verbs.EventDeviceFatal:
		d.remove() // raises the event, with a cause
		return nil
	}
	if ev, ok := d.translate(raw); ok {
		d.events.Add(ev)
	}
	return nil
}

// translate finds the object that an event is about; false means that it is closed.
func (d *device) translate(raw rawAsync) (verbs.DeviceEvent, bool) {
	ev := verbs.DeviceEvent{Type: raw.typ}
	switch raw.typ {
	case verbs.EventCQErr:
		c := d.findCQ(raw.id)
		if c == nil {
			return ev, false
		}
		c.overrun.Store(true)
		ev.Context, ev.Err = c.context, verbs.ErrCQOverrun
		c.notify()
	case verbs.EventSRQErr, verbs.EventSRQLimitReached:
		s := d.findSRQ(raw.id)
		if s == nil {
			return ev, false
		}
		ev.Context = s.init.Context
		if raw.typ == verbs.EventSRQLimitReached {
			s.limit.Store(0)
		}
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
		q := d.findQP(raw.id)
		if q == nil {
			return ev, false
		}
		ev.Context, ev.QPNum = q.init.Context, q.num
		ev.Err = verbs.Errorf("queue pair", nil, "the device reports: %v", raw.typ)
		q.failureRaised.Store(true)
		q.broken(ev.Err)
	case verbs.EventCommEst, verbs.EventSQDrained, verbs.EventPathMig, verbs.EventPathMigErr, verbs.EventQPLastWQEReached:
		q := d.findQP(raw.id)
		if q == nil {
			return ev, false
		}
		ev.Context, ev.QPNum = q.init.Context, q.num
	case verbs.EventPortErr:
		ev.Port = uint8(raw.id)
		ev.Err = verbs.Errorf("port", nil, "%s", d.portDown(int(ev.Port), verbs.PortDown))
	default: // ports, and events that libraries newer than this package raise
		ev.Port = uint8(raw.id)
	}
	return ev, true
}
