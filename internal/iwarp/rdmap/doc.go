// Package rdmap is the Remote Direct Memory Access Protocol of iWARP (RFC 5040)
// with the extensions of RFC 7306: atomic operations and immediate data. It is
// pure: no I/O, no goroutine, no clock, and no allocation except for a
// [Terminate].
//
// RDMAP puts one octet into every DDP header, and an STag into that of a Send
// with Invalidate (RFC 5040 figure 3; the two octets before are MPA's length):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	                                +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	                                |T|L| Resrv | DV| RV|Rsv| Opcode|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Invalidate STag                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// The opcode decides the rest:
//
//	opcode  message                      model     queue  payload
//	0       RDMA Write                   tagged    -      data
//	1       RDMA Read Request            untagged  1      [ReadRequest], 28 octets
//	2       RDMA Read Response           tagged    -      data
//	3       Send                         untagged  0      data
//	4       Send with Invalidate         untagged  0      data
//	5       Send with SE                 untagged  0      data
//	6       Send with SE and Invalidate  untagged  0      data
//	7       Terminate                    untagged  2      [Terminate], 4 to 52 octets
//	8       Immediate Data               untagged  0      8 octets
//	9       Immediate Data with SE       untagged  0      8 octets
//	10      Atomic Request               untagged  1      [AtomicRequest], 52 octets
//	11      Atomic Response              untagged  3      [AtomicResponse], 12 octets
//
// Nouns: a [Receiver] checks the inbound half of a connection, an [MSNs]
// numbers the outbound half, a [Cause] is a reason to end it and makes the
// [Terminate] that says so. The inbound loop of a connection:
//
//	h, n := ddp.ParseHeader(ulpdu)
//	if n == 0 {
//		return rdmap.TermCatastrophic.Terminate()
//	}
//	s, term := receiver.Segment(h, len(ulpdu)-n)
//	if term != nil {
//		return term
//	}
//	switch s.Op {
//	case rdmap.OpReadRequest:
//		r, _ := rdmap.ParseReadRequest(ulpdu[n:])
//		if !readable(r) {
//			return rdmap.TermBaseBounds.ForReadRequest(h, s.Payload, r)
//		}
//		...
//
// Functions are safe for concurrent use. Types with state are not.
//
// Limits: a Send of more than [MaxMessage] octets is refused, a tagged message
// of more than [ddp.MaxMessage]; RDMAP version 0 is refused (see [Version]).
package rdmap
