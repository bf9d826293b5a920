// Package mpa is the lowest layer of iWARP: Marker PDU Aligned Framing for TCP (RFC 5044) with the enhanced
// connection set-up of RFC 6581. It turns a TCP stream into records and back, and settles with the peer, in
// one exchange of frames, how. It is pure: no sockets, no goroutines, no clock.
//
// # The start-up phase
//
// The active side (initiator) sends a request [Frame] as the first octets of the stream and the passive side
// (responder) answers with a reply of the same form:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                                                               |
//	+                                                               +
//	|       Key, 16 octets: "MPA ID Req Frame" in a request,        |
//	+                       "MPA ID Rep Frame" in a reply           +
//	|                                                               |
//	+                                                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|M|C|R|S|  Res  |      Rev      |    PD_Length (0 to 512)       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|A|B|            IRD            |C|D|            ORD            |  only with S, and counted
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+  in PD_Length
//	|                                                               |
//	~                    the user's private data                    ~
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	M  markers are demanded       A  peer-to-peer: the active side sends an RTR
//	C  CRCs are wanted            B  the RTR may be a zero-length Send
//	R  rejected, replies only     C  ... a zero-length RDMA Write
//	S  set-up data is present     D  ... a zero-length RDMA Read
//
// The two ends run so:
//
//	f, err := mpa.Request(local)              // active
//	b, err = mpa.AppendFrame(b, f)            // send b, read the reply into r
//	reply, n, err := mpa.ParseFrame(r)        // n == 0 && err == nil: read on
//	agreed, err := mpa.Finish(f, reply, local)
//
//	req, n, err := mpa.ParseFrame(r)          // passive
//	reply, agreed, err := mpa.Respond(req, local)
//	if reply.Reply {                          // with an error too, then it rejects
//		b, _ = mpa.AppendFrame(b, reply)  // send b
//	}
//
// # Full operation
//
// Behind the frames the stream consists of FPDUs, in both directions, each with one ULPDU: one DDP segment.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         ULPDU_Length          |                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
//	~                             ULPDU                             ~
//	|                               +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                               |        PAD (0-3 octets)       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           CRC32C, least significant octet first               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// ULPDU_Length counts the ULPDU alone. The pad makes the FPDU a multiple of four octets; it is zero, and the
// CRC covers everything before itself. With CRCs off its field stays, holds zero and is not looked at.
//
// A device reads and writes these parts without copying, by [FPDULen], [Update], [AppendTrailer] and
// [CheckTrailer]; [Framer] is a reader that does the same over octets in memory.
//
// # Choices
//
// Markers are neither sent nor wanted, though RFC 5044 section 4.3 asks every sender to be able to: over a
// socket they have no use, Linux's siw has none either, and a peer that demands them is rejected by a reply
// that names them. A reply that demands them is an error.
//
// CRCs are used if either end asks. [Local] leaves the choice to its caller, which should default to on.
//
// Linux's siw is the reference where the RFCs leave a choice, see [Respond]. Frames without set-up data, of
// revision 1 or 2, are answered in kind. A reply must have the request's revision, see [Finish].
//
// # Errors, limits, concurrency
//
// Input of a peer never causes a panic or an allocation larger than itself. Malformed input is refused
// with an [*Error] that has the code for the Terminate message (layer 2, type 0). A rejection by the peer is a
// [*RejectedError].
//
// All functions are safe for concurrent use on separate data. A Framer belongs to one goroutine at a time.
package mpa
