package verbs

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// EventType is the kind of an asynchronous event (enum ibv_event_type).
type EventType uint32

const (
	// EventCQErr: a completion queue overran.
	EventCQErr EventType = iota
	// EventQPFatal: a connection failed with no request left to report it.
	EventQPFatal
	// EventQPReqErr: the peer sent an invalid request.
	EventQPReqErr
	// EventQPAccessErr: the peer violated access rights.
	EventQPAccessErr
	// EventCommEst: the first message came before the connection was reported.
	EventCommEst
	// EventSQDrained: a draining send queue is empty.
	EventSQDrained
	// EventPathMig: a connection moved to its alternate path.
	EventPathMig
	// EventPathMigErr: a connection failed to move to its alternate path.
	EventPathMigErr
	// EventDeviceFatal: the device is in a catastrophic state.
	EventDeviceFatal
	// EventPortActive: a link came up.
	EventPortActive
	// EventPortErr: a link went down.
	EventPortErr
	// EventLIDChange: a port's LID changed.
	EventLIDChange
	// EventPKeyChange: a port's partition table changed.
	EventPKeyChange
	// EventSMChange: a port has another subnet manager.
	EventSMChange
	// EventSRQErr: a shared receive queue failed.
	EventSRQErr
	// EventSRQLimitReached: a shared receive queue has fewer receives than its limit.
	EventSRQLimitReached
	// EventQPLastWQEReached: a failed queue pair will take no more from its shared receive queue.
	EventQPLastWQEReached
	// EventClientReregister: the subnet manager asks for new subscriptions.
	EventClientReregister
	// EventGIDChange: a port's GID table changed.
	EventGIDChange
	// EventWQFatal: a raw work queue failed.
	EventWQFatal
	// EventDeviceSpeedChange: a link has another speed.
	EventDeviceSpeedChange
)

var eventNames = [...]string{
	"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
	"local access violation work queue error", "communication established", "send queue drained",
	"path migrated", "path migration request error", "local catastrophic error", "port active",
	"port error", "LID change", "P_Key change", "SM change", "SRQ catastrophic error",
	"SRQ limit reached", "last WQE reached", "client reregistration", "GID table change",
	"WQ fatal", "Device link speed change",
}

// NumEventTypes is the number of defined events, numbered from 0.
const NumEventTypes = len(eventNames)

// String returns the text that ibv_event_type_str gives.
func (e EventType) String() string { return nameOf(eventNames[:], int(e)) }

// AsyncEvent is something that happened outside of any work request. At most
// one of QP, CQ, SRQ and Port is set. A program
// need not acknowledge it.
type AsyncEvent struct {
	Type   EventType
	QP     *QP
	CQ     *CQ
	SRQ    *SRQ
	Port   uint8  // number of the port concerned
	Vendor uint32 // the device's own detail, as in WC
	Err    error  // the cause in words, where the device knows it
}

// String returns the type of the event with the object or port that it is about, and the cause where the device knows it.
func (e AsyncEvent) String() string {
	text := e.Type.String()
	switch {
	case e.QP != nil:
		text += fmt.Sprintf(" of queue pair %d", e.QP.Num())
	case e.CQ != nil:
		text += " of a completion queue"
	case e.SRQ != nil:
		text += " of a shared receive queue"
	case e.Port != 0:
		text += fmt.Sprintf(" of port %d", e.Port)
	}
	if e.Vendor != 0 {
		text += fmt.Sprintf(" (vendor code %#x)", e.Vendor)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// NextEvent returns the oldest asynchronous event, waiting for one until ctx
// ends or the device is closed ([ErrClosed]). Each event goes to one caller.
func (d *Device) NextEvent(ctx context.Context) (AsyncEvent, error) {
	e, err := d.drv.NextEvent(ctx)
	if err != nil {
		return AsyncEvent{}, err
	}
	return asyncEvent(e), nil
}

// Events iterates over the asynchronous events of the device. It ends without
// an error when ctx ends or the device is closed; any other failure is yielded
// once, as the last pair.
func (d *Device) Events(ctx context.Context) iter.Seq2[AsyncEvent, error] {
	return func(yield func(AsyncEvent, error) bool) {
		for {
			e, err := d.NextEvent(ctx)
			if err == nil {
				if !yield(e, nil) {
					return
				}
				continue
			}
			if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
				yield(AsyncEvent{}, err)
			}
			return
		}
	}
}

// asyncEvent puts handles in the place of the context that the driver was given.
func asyncEvent(e DeviceEvent) AsyncEvent {
	ev := AsyncEvent{Type: e.Type, Port: e.Port, Vendor: e.Vendor, Err: e.Err}
	switch h := e.Context.(type) {
	case *QP:
		ev.QP = h
	case *CQ:
		ev.CQ = h
	case *SRQ:
		ev.SRQ = h
	}
	return ev
}
