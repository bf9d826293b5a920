package verbs

import "cinnabar/verbs/driver"

// Kinds of connection management events.
const (
	// CMAddrResolved: [ID.ResolveAddr] succeeded.
	CMAddrResolved = driver.CMAddrResolved
	// CMAddrError: it failed.
	CMAddrError = driver.CMAddrError
	// CMRouteResolved: [ID.ResolveRoute] succeeded.
	CMRouteResolved = driver.CMRouteResolved
	// CMRouteError: it failed.
	CMRouteError = driver.CMRouteError
	// CMConnectRequest: a peer wants to connect to a listening identifier.
	CMConnectRequest = driver.CMConnectRequest
	// CMConnectResponse: the peer accepted, for those who manage states by hand.
	CMConnectResponse = driver.CMConnectResponse
	// CMConnectError: connecting or accepting failed.
	CMConnectError = driver.CMConnectError
	// CMUnreachable: the peer did not answer.
	CMUnreachable = driver.CMUnreachable
	// CMRejected: the peer refused.
	CMRejected = driver.CMRejected
	// CMEstablished: the connection stands.
	CMEstablished = driver.CMEstablished
	// CMDisconnected: the connection is over.
	CMDisconnected = driver.CMDisconnected
	// CMDeviceRemoval: the device was closed or is gone.
	CMDeviceRemoval = driver.CMDeviceRemoval
	// CMMulticastJoin: a multicast group was joined.
	CMMulticastJoin = driver.CMMulticastJoin
	// CMMulticastError: joining failed, or the group is gone.
	CMMulticastError = driver.CMMulticastError
	// CMAddrChange: the network address of the device changed.
	CMAddrChange = driver.CMAddrChange
	// CMTimewaitExit: the queue pair may be used for another connection.
	CMTimewaitExit = driver.CMTimewaitExit
	// CMAddrInfoResolved: an asynchronous look-up succeeded.
	CMAddrInfoResolved = driver.CMAddrInfoResolved
	// CMAddrInfoError: it failed.
	CMAddrInfoError = driver.CMAddrInfoError
)

// NumCMEventTypes is the number of defined events, numbered from 0.
const NumCMEventTypes = driver.NumCMEventTypes

// CMEvent is something that happened to an [ID] (struct rdma_cm_event).
type CMEvent struct {
	Type     CMEventType
	ID       *ID       // the identifier concerned; for CMConnectRequest a new one, to be answered
	Listener *ID       // CMConnectRequest: the identifier that listens
	Param    ConnParam // CMConnectRequest: what the peer asks for; CMEstablished: what is in force; CMRejected: the peer's PrivateData
	Err      error     // the cause of a failure; CMDisconnected: nil for an orderly end

	owner *ID           // who has to wait for Ack: Listener if set, else ID
	slot  chan struct{} // a listener's place in its backlog, freed when the event is taken
	ch    *EventChannel // where it was taken from; nil until then, and after Ack
}

// String names the event as rdma_event_str does, and the error if there is one.
func (e *CMEvent) String() string {
	if e.Err != nil {
		return e.Type.String() + ": " + e.Err.Error()
	}
	return e.Type.String()
}

// Ack says that the event has been dealt with. Until then its identifier cannot
// be closed or moved to another channel. A second Ack does nothing.
func (e *CMEvent) Ack() { e.owner.ackEvent(e) }
