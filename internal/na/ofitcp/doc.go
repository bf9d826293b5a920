// Package ofitcp is libfabric's native tcp provider (xnet, FI_PROTO_XNET) as Mercury's OFI plugin uses it: the network
// behind addresses like "ofi+tcp://127.0.0.1:43905". It implements [na.Endpoint].
//
// The nouns:
//
//   - An [Endpoint] is a listener and one connection per peer, shared by the traffic of both directions. The side
//     that has something to send first dials; the other side uses that connection for its own traffic.
//   - A peer is an address, and the connection and operations that the endpoint has with it. Its identity is the IP address that its connections come
//     from and the port that it listens on. A further process of the same address, which only a Go peer can be, is called a
//     twin.
//   - An origin is the address of a request: the peer, by the connection that the request came over.
//   - A conn is a connection. Two roles make its progress, reading and writing, each held by one goroutine at a time
//     and only for calls that do not block.
//   - The shared poller watches the parked connections of all endpoints of the process. While several of them have traffic, its
//     goroutine alone spins, and no caller does.
//   - Memory is registered with a random 64-bit key. Peers name it by key and offset.
//   - A transfer is a Get or Put, cut into reads or writes of 1 MiB and less, of which some are under way.
//
// Use:
//
//	e, err := ofitcp.Open(ctx, ofitcp.Config{Address: "ofi+tcp://127.0.0.1:0", Listen: true, Handler: h})
//	if err != nil {
//		return err
//	}
//	defer e.Close(ctx)
//	to, err := e.Lookup("ofi+tcp://127.0.0.1:43905")
//	...
//	e.RecvExpected(&answer, to, tag, buf)
//	e.SendRequest(&sent, to, tag, msg)
//	e.Drive(to, &event)
//
// # Connection messages
//
// Each side sends one when a connection is made; integers are big endian but for the probe, which is in the sender's
// order (libfabric include/ofi_proto.h, prov/tcp/src/xnet_rdm_cm.c):
//
//	 0               1               2               3
//	+---------------+---------------+-------------------------------+
//	| version 3     | type          | length behind these 32: 8     |   type 0 request, 1 response, 6 nack
//	+---------------+---------------+-------------------------------+
//	| zero in C, or 0x636e6272: an identity follows                 |   4..7
//	+---------------------------------------------------------------+
//	| zero in C, or the sender's random identity for the peer       |   8..23
//	+---------------------------------------------------------------+
//	| probe: the number 1 in 8 bytes                                |   24..31, zero in a nack
//	+---------------+---------------+-------------------------------+
//	| RDM version   | features      | port that the requester       |   32..35, feature 1: do not dial me
//	|               |               | listens on                    |
//	+---------------+---------------+-------------------------------+
//	| number of the sender's process                                |   36..39
//	+---------------------------------------------------------------+
//
// We advertise and answer RDM version 0. Peers then never use the rendezvous of tagged messages (xnet_set_protocol,
// xnet_rts_check), so its operations are errors here. The number of the process is random: see randomPid. Requests of other protocols over the same control
// messages, such as tcp;ofi_rxm, and of big-endian peers get a nack.
//
// # Messages
//
// Then messages follow in both directions, with little-endian integers (prov/tcp/src/xnet_proto.h):
//
//	 0               1               2               3
//	+---------------+---------------+-------------------------------+
//	| version 3     | op            | flags                         |
//	+---------------+---------------+---------------+---------------+
//	| op data       | pieces        | header length | number        |
//	+---------------+---------------+---------------+---------------+
//	| length of the whole message, 8 bytes                          |
//	+---------------------------------------------------------------+
//
//	op 0  request             [completion data: tag 8]              payload: sender's address, message
//	op 0  acknowledgement     op data 2
//	op 1  expected message    [completion data 8] tag 8             payload: message
//	      request, old form   tag with bit 32 set                   payload: sender's address, message
//	op 2  read                1 to 4 times offset 8, length 8, key 8
//	op 3  answer to a read                                          payload: the bytes of the read
//	op 4  write               [completion data 8] 1 to 4 times ...  payload
//
//	flags 1: there is completion data; 4 and 8: acknowledge when placed
//
// Answers to reads and acknowledgements carry no identifier: they come in the order of the reads and writes. The number
// counts messages in the order of sending, which debug builds of libfabric verify; we do not.
//
// # Safety
//
// The protocol of C has no authentication: every host that can connect can send requests. An endpoint with Config.Token exchanges proofs with
// its peers before the connection request (package tokenproof), and one with Config.Admit asks the program behind it. The access of a peer to memory is bounded by the
// keys that it was given, which are not to be guessed. Every length, range and right is checked before use. A message
// against the protocol, and an access that is not allowed, ends the connection it came over; a message that is merely
// not wanted is dropped. Garbage on the port costs its own connection. Answers go over the connection that the request
// came from, or not at all; the address inside a request is checked and not used, because it could make this process dial
// third parties. A process that connects as a peer that has a connection does not end that connection while it lives.
//
// Connections are counted by host (Config.Quota). When they, or descriptors, run out, the connection that was idle for
// longest of the host that has most gives way; a host beyond its share is refused before its request is answered. An
// access to registered memory that is gone, such as a truncated file's, ends the connection and not the process.
//
// # Failure
//
// When a connection is lost everything that waits for its peer fails, and the next operation dials anew. A host that
// vanishes is found by keep-alive and by sent bytes that it does not acknowledge (Config.KeepAlive, Config.SendTimeout). A
// refused connection fails at once, unless Config.DialRetry says otherwise.
//
// # Limits
//
// One read or write that a peer sends may be of any size. A peer that asks without reading its answers is no longer read
// from when 4,096 answers are owed to it; of a peer not more than 2,048 are asked for at a time, those that were given
// up included. A peer that leaves 8,192 answers to its requests unread loses its connection. A driver reads for 20 ms at
// most. IPv4 and IPv6 do not mix: the family of the endpoint's address decides. All methods are safe for concurrent use.
package ofitcp
