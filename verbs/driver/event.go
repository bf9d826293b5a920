package driver

// EventType is the kind of an asynchronous event (enum ibv_event_type).
type EventType uint32

const (
	EventCQErr       EventType = iota // completion queue overrun
	EventQPFatal                      // the connection failed with no request left to tell it
	EventQPReqErr                     // the peer sent an invalid request
	EventQPAccessErr                  // the peer violated access rights
	EventCommEst                      // first message came before the connection was reported
	EventSQDrained                    // SQD reached
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached  // fewer than Limit receives are posted
	EventQPLastWQEReached // a queue pair on a shared receive queue is in error and will take no more from it
	EventClientReregister
	EventGIDChange
	EventWQFatal
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

// AsyncEvent is something that happened outside of any work request (struct
// ibv_async_event).
type AsyncEvent struct {
	Type    EventType
	Context any    // Context of the CQ, QP or SRQ concerned; nil for port and device
	QPNum   uint32 // when a queue pair is concerned
	Port    uint8  // when a port is concerned
	Vendor  uint32 // as in WC
	Err     error  // the cause in words, where the device knows it
}
