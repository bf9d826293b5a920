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
//   - Memory is a region of the device, registered with exactly the rights that peers have. It covers one segment of the program's memory, or several
//     that are neighbours (mergeNeighbours). A transfer is a Get or Put, cut into RDMA reads or writes of 1 MiB and less, between the
//     memory of the two programs.
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
// docs/wire-ofiverbs.md describes the bytes. The tests compare them with bytes that were captured between C programs, and connect
// endpoints of this package with each other, and with queue pairs that the tests drive themselves, over the device of package verbs/iwarp.
// test/rdmavm/fabric connects them with libfabric's fi_pingpong, on devices of the kernel.
//
// # Safety
//
// The protocol has no authentication: every host that can connect can send requests. Every length, index and number of a packet is
// checked before use. A packet that breaks the protocol ends the connection that it came over. An expected message for which no operation
// waits is dropped, and so is a request without a valid sender's address. Responses go over the connection that the request came from, or
// not at all. The address inside a request is checked and not used, because it could make this process dial third parties. If another
// process connects with the IP address and port of a connected peer, it is refused if the peer's device answers a read of no bytes, or if the
// connection goes on to make progress. If neither happens for 1 s, its connection replaces the old one, because the peer was restarted.
//
// Connections and unfinished handshakes are counted by host (Config.Quota). When the limit or the share of a host is reached, an idle
// connection gives way, and if none is idle the new one is refused. A peer of this package is asked to end the idle connection, so that it loses no
// request that is under way (see conn.ask). Goroutines that poll connections take turns by host ([hostquota.Readers]). The device enforces keys, ranges
// and rights of memory.
//
// # Memory
//
// A connection has at most 512 KiB of buffers, which are registered and therefore pinned. Beyond Config.OwnQueues connections those that peers
// make share receive queues, and have less (receives.go). A message is copied once on each side.
// The bytes of transfers move between the memories of the two programs, and the device needs a registration of this side's memory: memory of
// [Endpoint.Alloc] is registered once, and slices of Go's heap stay registered in a cache of Config.RegCacheBytes. Small pieces are copied
// through registered memory, up to the size of which the copying takes as long as a registration; Open measures it. Memory that the program has
// mapped is registered for the transfer. So is each sink of a read over iWARP, because the peer's device writes it; no peer has a right to any
// of the other regions. [Endpoint.Moved] counts the bytes.
//
// # Failure
//
// When a connection is lost all operations that wait for its peer fail, except requests that were not sent and, if the connection was idle and gave
// way, transfers that were not begun. Those wait for the next connection, which the endpoint dials at once, or after a pause of at most 250 ms if several connections in a row ended before they sent
// anything. Reads and writes that the device is working on complete when the queue pair is closed, because
// the device uses their memory until then. For the same reason a canceled transfer completes later than Cancel, and if the device does not end it
// within a second, its connection ends.
//
// A peer counts as lost if its device answers nothing for Config.KeepAlive. If a peer is silent for three eighths of that time, the endpoint
// posts an RDMA read of zero bytes, which the peer's device answers without its program. A device in hardware also answers for a process that
// is stopped. Over a network that takes longer than KeepAlive for 16 MiB, a transfer of that size can look like silence. A peer
// that posts no receives for the messages that wait counts as lost after Config.SendTimeout.
//
// On iWARP a write is complete when TCP has taken it (see package verbs/iwarp). A Put there ends with a read of one byte of the peer,
// because the peer's device answers the read after it has placed the writes. A peer in C offers no such byte. A Put to it completes before
// the peer's device has placed the bytes, as in libfabric; a response that is sent after the Put still arrives after its bytes. A write
// that the peer's device refuses ends the connection.
//
// # Limits
//
// Messages have 16,384 bytes at most, so segmentation and rendezvous of ofi_rxm are not used, and a peer that uses them loses its
// connection. The servers of given-up calls ([na.LateServer]) find closed memory still registered for Config.LateAccess, except memory of the
// program that peers may write or that the program has mapped. All methods are safe for concurrent use.
package ofiverbs
