// Package ofiverbs is libfabric's verbs provider under its utility provider ofi_rxm (FI_PROTO_RXM) as Mercury's OFI plugin uses it: the
// network behind addresses like "ofi+verbs;ofi_rxm://10.7.0.1:5555". It implements [na.Endpoint] on any device of package verbs.
//
// The nouns:
//
//   - An [Endpoint] is a listener of a device and one connection per peer, shared by the traffic of both directions. The side that has
//     something to send first dials.
//   - A peer is an address, and the connection and operations that the endpoint has with it. Its identity is the IP address that its
//     connection comes from and the port that it says it listens on.
//   - An origin is the address of a request: the peer, by the connection that the request came over.
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
// docs/wire-ofiverbs.md has the bytes. Golden ones of the C programs are in the tests. No C program has been tried as a peer of this
// package yet: the tests connect endpoints of this package, and peers by hand, over the device of package verbs/iwarp.
//
// # Safety
//
// The protocol has no authentication: every host that can connect can send requests. Every length, index and number of a packet is
// checked before use. A packet against the protocol ends the connection that it came over; a message that is merely not wanted is
// dropped. Responses go over the connection that the request came from, or not at all; the address inside a request is checked and not
// used, because it could make this process dial third parties. A process that connects as a peer that has a connection replaces that
// connection, as in libfabric: so a process of the same host can end a connection of another one.
//
// Connections and unfinished handshakes are counted by host (Config.Quota), and a host beyond its share is refused. The device enforces
// keys, ranges and rights of memory.
//
// # Memory
//
// The buffers of a connection have at most 512 KiB, which are pinned. Messages are copied once on either side; transfers are not copied
// by this package. The memory of a transfer is registered for as long as the transfer lasts.
//
// # Failure
//
// When a connection is lost everything that waits for its peer fails, except requests that were not sent: they wait for the next
// connection, which is dialed at once, or after a pause of at most 250 ms if several connections in a row ended before they sent anything. Reads and writes that the device is working on complete when the queue pair is closed, because
// the device uses their memory until then. For the same reason a canceled transfer completes later than Cancel, and if the device does not end it
// within a second, its connection ends.
//
// On iWARP a write is complete when TCP has taken it (see package verbs/iwarp). So a Put ends with a read of one byte of the peer, which its
// device answers when it has placed the writes. A peer in C has no such byte; a Put to it completes before the peer has placed the bytes, as in
// libfabric, and a response that is sent behind it arrives behind it. A write that the peer refuses ends the connection.
//
// # Limits
//
// Messages have 16,384 bytes at most, so segmentation and rendezvous of ofi_rxm are not used, and a peer that uses them loses its
// connection. Names of hosts are not resolved. The package does not probe idle connections, so a host that vanishes is found by the next message to
// it. It keeps no closed memory for the servers of given-up calls ([na.LateServer]): such a server's access ends the connection. It uses
// no shared receive queue. All methods are safe for concurrent use.
package ofiverbs
