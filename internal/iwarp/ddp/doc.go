// Package ddp is the Direct Data Placement layer of iWARP (RFC 5041): the two
// segment headers, the rules that tie segments into messages, and the numbers
// by which violations are reported. It is pure: no I/O, no goroutine, no clock,
// and no allocation except for an [Error].
//
// Every segment (the ULPDU that MPA carries) starts with a header. The first
// octet says which of the two it is; the second belongs to the layer above
// (RDMAP's control octet).
//
// Tagged, 14 octets: the payload goes to offset TO of the buffer named by STag.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|1|L| Rsvd  | DV|    RsvdULP    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             STag                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              TO                               |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// Untagged, 18 octets: the payload goes to offset MO of the buffer that the
// receiver posted as number MSN to queue QN.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|0|L| Rsvd  | DV| RsvdULP[0:7]  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                         RsvdULP[8:39]                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              QN                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              MSN                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              MO                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// T (bit 0) is the tagged flag, L (bit 1) marks the last segment of a message,
// DV is the version, always 1. All integers are big-endian.
//
// Nouns: a [Header] is a parsed header, a [Queue] follows the inbound messages
// of one untagged queue, a [Tagged] those of one kind of tagged message. A
// sender walks a message like this:
//
//	h := ddp.Header{Version: ddp.Version, ULP: ctrl, QN: ddp.QNSend, MSN: msn}
//	for {
//		n := min(len(msg), ddp.MaxPayload(mulpdu, h.Tagged))
//		h.Last = n == len(msg)
//		frame = append(ddp.AppendHeader(frame[:0], h), msg[:n]...)
//		// hand frame to MPA
//		if h.Last {
//			break
//		}
//		h, msg = h.Advance(n), msg[n:]
//	}
//
// Nothing here is safe for concurrent use; a connection's owner holds one of
// each. Which STags and buffers exist is the device's knowledge, so the checks
// that need it (RFC 5041 section 7.1: STag, bounds, posted buffers) are the
// device's too; it reports them with the codes defined here.
package ddp
