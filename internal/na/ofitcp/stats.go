package ofitcp

import "sync/atomic"

// Stats counts the messages, transfers and connections of an endpoint since it was opened.
type Stats struct {
	RequestsSent, RequestsReceived uint64 // unexpected messages
	ExpectedSent, ExpectedReceived uint64 // expected messages, those without a waiter included
	ReadsSent, ReadsReceived       uint64 // reads on the wire: one Get may be many
	WritesSent, WritesReceived     uint64 // writes on the wire
	Connections                    uint64 // made, in either direction
	Complaints                     uint64 // messages and connections against the protocol
	TransferBytesStaged            uint64 // of transfers: bytes that came with a message's header, and were copied to their place
	Open                           int    // connections at the moment
}

type counters struct {
	requestsSent, requestsReceived atomic.Uint64
	expectedSent, expectedReceived atomic.Uint64
	readsSent, readsReceived       atomic.Uint64
	writesSent, writesReceived     atomic.Uint64
	connections                    atomic.Uint64
	complaints                     atomic.Uint64
	transferBytesStaged            atomic.Uint64
}

// Stats returns the counters.
func (e *Endpoint) Stats() Stats {
	c := &e.stats
	open := 0
	for _, c := range e.connections() {
		if !c.dead.Load() {
			open++
		}
	}
	return Stats{
		RequestsSent: c.requestsSent.Load(), RequestsReceived: c.requestsReceived.Load(),
		ExpectedSent: c.expectedSent.Load(), ExpectedReceived: c.expectedReceived.Load(),
		ReadsSent: c.readsSent.Load(), ReadsReceived: c.readsReceived.Load(),
		WritesSent: c.writesSent.Load(), WritesReceived: c.writesReceived.Load(),
		Connections: c.connections.Load(), Complaints: c.complaints.Load(), TransferBytesStaged: c.transferBytesStaged.Load(), Open: open,
	}
}
