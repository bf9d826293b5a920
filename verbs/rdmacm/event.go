package rdmacm

import "cinnabar/verbs"

// EventType is the kind of an [Event] (enum rdma_cm_event_type, with its numbers).
type EventType uint32

// The kinds of events.
const (
	// EventAddrResolved: [ID.ResolveAddr] succeeded.
	EventAddrResolved EventType = iota
	// EventAddrError: [ID.ResolveAddr] failed.
	EventAddrError
	// EventRouteResolved: [ID.ResolveRoute] succeeded.
	EventRouteResolved
	// EventRouteError: [ID.ResolveRoute] failed.
	EventRouteError
	// EventConnectRequest: a peer wants to connect to a listening identifier.
	EventConnectRequest
	// EventConnectResponse: the peer accepted, for programs that drive the states of
	// their queue pairs. No method of this package makes it.
	EventConnectResponse
	// EventConnectError: connecting or accepting failed.
	EventConnectError
	// EventUnreachable: the peer did not answer.
	EventUnreachable
	// EventRejected: the peer refused the connection.
	EventRejected
	// EventEstablished: the connection is established.
	EventEstablished
	// EventDisconnected: the connection is over.
	EventDisconnected
	// EventDeviceRemoval: the device was closed or removed.
	EventDeviceRemoval
	// EventMulticastJoin: a multicast group was joined. No method of this package makes it.
	EventMulticastJoin
	// EventMulticastError: joining a group failed, or the group is gone. No method of this
	// package makes it.
	EventMulticastError
	// EventAddrChange: the network address of the device changed.
	EventAddrChange
	// EventTimewaitExit: the queue pair may be used for another connection.
	EventTimewaitExit
	// EventAddrInfoResolved: an asynchronous rdma_getaddrinfo succeeded.
	EventAddrInfoResolved
	// EventAddrInfoError: an asynchronous rdma_getaddrinfo failed.
	EventAddrInfoError
)

var eventNames = [...]string{
	EventAddrResolved:     "RDMA_CM_EVENT_ADDR_RESOLVED",
	EventAddrError:        "RDMA_CM_EVENT_ADDR_ERROR",
	EventRouteResolved:    "RDMA_CM_EVENT_ROUTE_RESOLVED",
	EventRouteError:       "RDMA_CM_EVENT_ROUTE_ERROR",
	EventConnectRequest:   "RDMA_CM_EVENT_CONNECT_REQUEST",
	EventConnectResponse:  "RDMA_CM_EVENT_CONNECT_RESPONSE",
	EventConnectError:     "RDMA_CM_EVENT_CONNECT_ERROR",
	EventUnreachable:      "RDMA_CM_EVENT_UNREACHABLE",
	EventRejected:         "RDMA_CM_EVENT_REJECTED",
	EventEstablished:      "RDMA_CM_EVENT_ESTABLISHED",
	EventDisconnected:     "RDMA_CM_EVENT_DISCONNECTED",
	EventDeviceRemoval:    "RDMA_CM_EVENT_DEVICE_REMOVAL",
	EventMulticastJoin:    "RDMA_CM_EVENT_MULTICAST_JOIN",
	EventMulticastError:   "RDMA_CM_EVENT_MULTICAST_ERROR",
	EventAddrChange:       "RDMA_CM_EVENT_ADDR_CHANGE",
	EventTimewaitExit:     "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	EventAddrInfoResolved: "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
	EventAddrInfoError:    "RDMA_CM_EVENT_ADDRINFO_ERROR",
}

// NumEventTypes is the number of defined events, numbered from 0.
const NumEventTypes = len(eventNames)

// String returns the name that rdma_event_str gives, "UNKNOWN EVENT" for others.
func (t EventType) String() string {
	if int(t) >= len(eventNames) {
		return "UNKNOWN EVENT"
	}
	return eventNames[t]
}

// Event is the result of an operation of an [ID], or a change of its connection (struct rdma_cm_event).
type Event struct {
	Type     EventType
	ID       *ID             // the identifier; for EventConnectRequest a new one, which the program accepts or rejects
	Listener *ID             // EventConnectRequest: the identifier that listens
	Param    verbs.ConnParam // EventConnectRequest: the peer's parameters; EventEstablished: those in force; EventRejected: only the peer's PrivateData
	Err      error           // the cause of a failure; EventDisconnected: nil for an orderly end

	owner *ID           // the identifier that waits for Ack: Listener if set, else ID
	slot  chan struct{} // the listener's backlog, in which Get frees a place; nil: not a request
	ch    *EventChannel // the channel from which Get took the event; nil before Get and after Ack
}

// String names the event as rdma_event_str does, and the error if there is one.
func (e *Event) String() string {
	if e.Err != nil {
		return e.Type.String() + ": " + e.Err.Error()
	}
	return e.Type.String()
}

// Ack marks the event as handled (rdma_ack_cm_event). Until then its identifier cannot
// be closed or moved to another channel. A second Ack does nothing.
func (e *Event) Ack() { e.owner.ackEvent(e) }
