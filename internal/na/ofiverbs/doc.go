// Package ofiverbs speaks the protocol of libfabric's verbs provider under its utility provider ofi_rxm (FI_PROTO_RXM), as Mercury's OFI
// plugin uses it for addresses like "ofi+verbs;ofi_rxm://10.7.0.1:5555". It implements [na.Endpoint] on any device of package verbs.
//
// The nouns:
//
//   - An [Endpoint] is a listener of a device and one connection per peer, which carries the traffic of both directions. The side that
//     sends the first message dials.
//   - A peer is an address, and the connection and operations that the endpoint has with it. Its identity is the source IP address of
//     its connection and the port in the private data of its connection request, on which it listens.
//   - An origin is the address that a handler gets with a request: the peer, and the connection over which the request came.
//   - A conn is a queue pair with a completion queue and buffers of its own. A packet is a message on it, and a credit is the right to
//     send one: the receiver has posted a receive for it.
//   - Memory is a region of the device, registered with exactly the rights that peers have. A transfer is a Get or Put, cut into RDMA
//     reads or writes of 1 MiB and less, between the memory of the two programs.
//
// Use:
//
//	e, err := ofiverbs.Open(ctx, ofiverbs.Config{Device: dev, Address: "ofi+verbs://10.7.0.1:0", Listen: true, Handler: h})
//	if err != nil {
//		return err
//	}
//	defer e.Close(ctx)
//	to, err := e.Lookup("ofi+verbs://10.7.0.2:43905")
//	...
//	e.RecvExpected(&answer, to, tag, buf)
//	e.SendRequest(&sent, to, tag, msg)
//	e.Drive(to, &event)
//
// docs/wire-ofiverbs.md describes the bytes. The tests compare them with bytes that were captured between C programs. No C program has
// been tried as a peer of this package yet: the tests connect endpoints of this package with each other, and with queue pairs that
// the tests drive themselves, over the device of package verbs/iwarp.
//
// # Safety
//
// The protocol has no authentication: every host that can connect can send requests. Every length, index and number of a packet is
// checked before use. A packet that breaks the protocol ends the connection that it came over. An expected message for which no operation
// waits is dropped, and so is a request without a valid sender's address. Responses go over the connection that the request came from, or
// not at all. The address inside a request is checked and not used, because it could make this process dial third parties. If another
// process connects with the IP address and port of a connected peer, its connection replaces the old one, as in libfabric. A process can
// therefore end a connection of another process of the same host.
//
// Connections and unfinished handshakes are counted by host (Config.Quota), and a host beyond its share is refused. The device enforces
// keys, ranges and rights of memory.
//
// # Memory
//
// A connection has at most 512 KiB of buffers, which are registered and therefore pinned. A message is copied once on each side.
// This package does not copy the bytes of transfers: it registers their memory for as long as the transfer lasts.
//
// # Failure
//
// When a connection is lost all operations that wait for its peer fail, except requests that were not sent. Those wait for the next
// connection, which the endpoint dials at once, or after a pause of at most 250 ms if several connections in a row ended before they sent
// anything. Reads and writes that the device is working on complete when the queue pair is closed, because
// the device uses their memory until then. For the same reason a canceled transfer completes later than Cancel, and if the device does not end it
// within a second, its connection ends.
//
// On iWARP a write is complete when TCP has taken it (see package verbs/iwarp). A Put there ends with a read of one byte of the peer,
// because the peer's device answers the read after it has placed the writes. A peer in C offers no such byte. A Put to it completes before
// the peer's device has placed the bytes, as in libfabric; a response that is sent after the Put still arrives after its bytes. A write
// that the peer's device refuses ends the connection.
//
// # Limits
//
// Messages have 16,384 bytes at most, so segmentation and rendezvous of ofi_rxm are not used, and a peer that uses them loses its
// connection. Names of hosts are not resolved. The package does not probe idle connections, so the loss of a host is found by the next
// message to it. Closed memory is not kept for the servers of given-up calls ([na.LateServer]): an access by such a server ends the
// connection. No shared receive queue is used. All methods are safe for concurrent use.
package ofiverbs
