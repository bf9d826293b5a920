package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// LinkType is the number of a form of link headers (LINKTYPE_... of the pcap files).
type LinkType uint16

// The link types that Parse reads.
const (
	LinkNull     LinkType = 0 // loopback of BSD: the family in the order of the host
	LinkEthernet LinkType = 1
	linkRawBSD   LinkType = 12
	linkRawOBSD  LinkType = 14
	LinkRaw      LinkType = 101 // IPv4 or IPv6 without a header before it
	LinkLoop     LinkType = 108 // loopback of OpenBSD: the family in network order
	LinkCooked   LinkType = 113 // Linux, any interface (SLL)
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkCooked2  LinkType = 276 // SLL2
)

// Segment is the part of a packet that belongs to a program: a segment of TCP or a datagram of UDP.
type Segment struct {
	Src, Dst netip.AddrPort
	TCP      bool
	Seq      uint32 // of TCP, as the next four
	SYN, FIN bool
	RST      bool
	Length   int    // bytes of the payload on the network
	Payload  []byte // those of them that the file has
}

// Skip is the reason for which a packet has no Segment.
type Skip uint8

// The reasons.
const (
	Taken     Skip = iota // the packet has a segment
	Other                 // another protocol than TCP or UDP over IP
	Fragment              // a fragment of an IP packet
	Short                 // the headers end before their end, or contradict each other
	LinkWrong             // a link type that is not known
)

func (s Skip) String() string {
	switch s {
	case Taken:
		return "taken"
	case Other:
		return "another protocol"
	case Fragment:
		return "a fragment of an IP packet"
	case Short:
		return "incomplete headers"
	case LinkWrong:
		return "an unknown link type"
	}
	return fmt.Sprintf("skip %d", uint8(s))
}

// Numbers in headers.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd

	protoHopByHop = 0
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoAuth     = 51
	protoOptions  = 60

	maxTags    = 4 // VLAN tags of one packet
	maxHeaders = 8 // extension headers of one packet
)

// Parse reads the headers of a packet, which is hostile. The payload is a part of p.Data.
func Parse(p *Packet) (s Segment, skip Skip) {
	b := p.Data
	switch p.Link {
	case LinkEthernet:
		return parseEther(b, 12)
	case LinkCooked:
		return parseEther(b, 14)
	case LinkCooked2:
		if len(b) < 20 {
			return s, Short
		}
		return parseNetwork(binary.BigEndian.Uint16(b), b[20:])
	case LinkNull, LinkLoop:
		if len(b) < 4 {
			return s, Short
		}
		return parseAny(b[4:]) // the family's number differs between systems, and IP has its version itself
	case LinkRaw, linkRawBSD, linkRawOBSD:
		return parseAny(b)
	case LinkIPv4:
		return parseIPv4(b)
	case LinkIPv6:
		return parseIPv6(b)
	}
	return s, LinkWrong
}

// parseEther reads a header whose number of the protocol is at byte at, with VLAN tags behind it.
func parseEther(b []byte, at int) (s Segment, skip Skip) {
	for range maxTags + 1 {
		if len(b) < at+2 {
			return s, Short
		}
		switch kind := binary.BigEndian.Uint16(b[at:]); kind {
		case 0x8100, 0x88a8, 0x9100:
			at += 4
		default:
			return parseNetwork(kind, b[at+2:])
		}
	}
	return s, Other
}

func parseNetwork(kind uint16, b []byte) (s Segment, skip Skip) {
	switch kind {
	case etherIPv4:
		return parseIPv4(b)
	case etherIPv6:
		return parseIPv6(b)
	}
	return s, Other
}

// parseAny reads an IP packet by its version.
func parseAny(b []byte) (s Segment, skip Skip) {
	if len(b) < 1 {
		return s, Short
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b)
	case 6:
		return parseIPv6(b)
	}
	return s, Other
}

func parseIPv4(b []byte) (s Segment, skip Skip) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return s, Short
	}
	head, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 { // a packet that the network card cuts
		total = len(b)
	}
	if head < 20 || total < head || len(b) < head {
		return s, Short
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		return s, Fragment
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return parseTransport(b[9], b[head:min(total, len(b))], total-head, src, dst)
}

func parseIPv6(b []byte) (s Segment, skip Skip) {
	if len(b) < 40 || b[0]>>4 != 6 {
		return s, Short
	}
	proto, length := b[6], int(binary.BigEndian.Uint16(b[4:]))
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	b = b[40:]
	if length == 0 {
		length = len(b)
	}
	b = b[:min(length, len(b))]
	for range maxHeaders {
		switch proto {
		case protoHopByHop, protoRouting, protoOptions, protoFragment, protoAuth:
		default:
			return parseTransport(proto, b, length, src, dst)
		}
		if len(b) < 8 {
			return s, Short
		}
		n := 8 + 8*int(b[1])
		switch proto {
		case protoFragment:
			if binary.BigEndian.Uint16(b[2:])&0xfff9 != 0 {
				return s, Fragment
			}
			n = 8
		case protoAuth:
			n = 8 + 4*int(b[1])
		}
		if n > len(b) {
			return s, Short
		}
		proto, b, length = b[0], b[n:], length-n
	}
	return s, Other
}

// parseTransport reads a TCP or UDP header at the start of b, which is the part of length bytes that the file has.
func parseTransport(proto byte, b []byte, length int, src, dst netip.Addr) (s Segment, skip Skip) {
	if proto != protoTCP && proto != protoUDP {
		return s, Other
	}
	if len(b) < 8 {
		return s, Short
	}
	s.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	s.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	head := 8
	if proto == protoTCP {
		if len(b) < 20 {
			return s, Short
		}
		head = int(b[12]>>4) * 4
		s.TCP, s.Seq = true, binary.BigEndian.Uint32(b[4:])
		s.FIN, s.SYN, s.RST = b[13]&1 != 0, b[13]&2 != 0, b[13]&4 != 0
	} else if n := int(binary.BigEndian.Uint16(b[4:])); n >= 8 {
		length = min(length, n)
		b = b[:min(n, len(b))]
	}
	if head < 8 || s.TCP && head < 20 || head > len(b) || head > length {
		return Segment{}, Short
	}
	s.Payload, s.Length = b[head:], length-head
	return s, Taken
}
