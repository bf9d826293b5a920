// Package capture reads recorded network traffic: files in the forms pcap and pcapng, the headers of the link, of IP, TCP and UDP, and the
// streams of TCP connections.
//
//	file ── Reader ──▶ Packet ── Parse ──▶ Segment ── Assembler ──▶ Handler
//	                                          │
//	                                          └─ UDP: one datagram
//
// A [Reader] returns the packets of a file one after the other. [Parse] finds the addresses and the payload of a packet. An [Assembler]
// puts the segments of TCP connections in order and calls a [Handler] for each connection with the bytes of its two directions.
//
// Everything in a capture is hostile, because its packets come from any network. Each length is checked before its use. A packet has at
// most [MaxPacket] bytes. An Assembler has limits on its connections, and on out-of-order segments, which wait for the bytes before them. A
// Handler receives a gap for bytes that are missing, and the end of a connection that the Assembler dropped because there were too many.
//
// A value of each type is used by one goroutine at a time. The package starts no goroutine.
package capture
