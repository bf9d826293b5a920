package fault

import (
	"context"

	"cinnabar/verbs"
)

// subject is the kind of object that an event is about.
type subject uint8

const (
	aboutDevice subject = iota
	aboutPort
	aboutQP
	aboutCQ
	aboutSRQ
)

// subjectOf follows ibv_get_async_event(3).
func subjectOf(t verbs.EventType) subject {
	switch t {
	case verbs.EventCQErr:
		return aboutCQ
	case verbs.EventSRQErr, verbs.EventSRQLimitReached:
		return aboutSRQ
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventCommEst,
		verbs.EventSQDrained, verbs.EventPathMig, verbs.EventPathMigErr, verbs.EventQPLastWQEReached:
		return aboutQP
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange,
		verbs.EventSMChange, verbs.EventClientReregister, verbs.EventGIDChange, verbs.EventDeviceSpeedChange:
		return aboutPort
	default:
		return aboutDevice
	}
}

// Raise raises an asynchronous event now. Number says about which queue pair,
// completion queue or shared receive queue (in the order of creation, from 1) or
// about which port it is, as the type requires; for events about the device it is
// not used.
func (in *Injector) Raise(t verbs.EventType, number int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	ev := verbs.DeviceEvent{Type: t}
	have := 0
	switch subjectOf(t) {
	case aboutQP:
		if have = len(in.qps); number > 0 && number <= have {
			q := in.qps[number-1]
			ev.Context, ev.QPNum = q.init.Context, q.inner.Num()
		}
	case aboutCQ:
		if have = len(in.cqs); number > 0 && number <= have {
			ev.Context = in.cqs[number-1].context
		}
	case aboutSRQ:
		if have = len(in.srqs); number > 0 && number <= have {
			ev.Context = in.srqs[number-1].context
		}
	case aboutPort:
		have, ev.Port = 255, uint8(number)
	default:
		have, number = 1, 1
	}
	if number < 1 || number > have {
		return verbs.Errorf("inject event", verbs.ErrInvalid, "%v about number %d; there are %d", t, number, have)
	}
	in.raise(ev)
	return nil
}

// raiseAt raises an event about a queue pair or an object that it uses.
func (in *Injector) raiseAt(t verbs.EventType, q *qp) {
	ev := verbs.DeviceEvent{Type: t}
	switch subjectOf(t) {
	case aboutQP:
		ev.Context, ev.QPNum = q.init.Context, q.inner.Num()
	case aboutCQ:
		ev.Context = q.send.context
	case aboutSRQ:
		if q.srq == nil {
			return // the trace says that it was asked for; there is no queue to name
		}
		ev.Context = q.srq.context
	case aboutPort:
		ev.Port = 1
	case aboutDevice:
	}
	in.raise(ev)
}

// raise queues an event and wakes the waiters of NextEvent. The caller holds mu.
func (in *Injector) raise(ev verbs.DeviceEvent) {
	in.events = append(in.events, ev)
	for cancel := range in.waiters {
		(*cancel)()
	}
	clear(in.waiters)
}

// NextEvent returns raised events first, then those of the device below. A
// waiting call is woken by ending the context that it passed down.
func (d *device) NextEvent(ctx context.Context) (verbs.DeviceEvent, error) {
	for {
		below, ev, ok := d.in.nextRaised(ctx)
		if ok {
			return ev, nil
		}
		ev, err := d.inner.NextEvent(below.ctx)
		woken := below.ctx.Err() != nil && ctx.Err() == nil
		d.in.forget(below)
		if err == nil || !woken {
			return ev, err
		}
	}
}

// waiter is one call of NextEvent.
type waiter struct {
	ctx    context.Context
	cancel *context.CancelFunc
}

// nextRaised takes an event, or registers the caller to be woken by the next.
func (in *Injector) nextRaised(ctx context.Context) (waiter, verbs.DeviceEvent, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.events) > 0 {
		ev := in.events[0]
		in.events = in.events[1:]
		return waiter{}, ev, true
	}
	c, cancel := context.WithCancel(ctx)
	w := waiter{ctx: c, cancel: &cancel}
	in.waiters[w.cancel] = struct{}{}
	return w, verbs.DeviceEvent{}, false
}

func (in *Injector) forget(w waiter) {
	(*w.cancel)()
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.waiters, w.cancel)
}
