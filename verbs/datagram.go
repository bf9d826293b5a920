package verbs

import (
	"encoding/binary"
	"slices"
)

// GRHLen is the room, in bytes, that every receive of a UD queue pair must have
// in front of the data, whether a global route header comes ([WC].HasGRH) or not.
// WC.Len counts it.
const GRHLen = 40

// GRH is the global route header of a datagram (struct ibv_grh): of InfiniBand,
// or the IP header that RoCE v2 has in its place.
type GRH struct {
	Type         GIDType // GIDRoCE2 for an IP header; GIDInfiniBand for the others, which look alike
	SGID, DGID   [16]byte
	FlowLabel    uint32 // 20 bits
	TrafficClass uint8
	HopLimit     uint8
}

// The header is laid out as that of IPv6, and an IPv4 header lies in the second
// half of its place:
//
//	 0               1               2               3
//	+---------------+---------------+---------------+---------------+
//	|version| traffic class |              flow label               |  0
//	|        payload length         |  next header  |   hop limit   |  4
//	|                       source GID, 16 bytes                    |  8
//	|                    destination GID, 16 bytes                  | 24
//	+---------------+---------------+---------------+---------------+
//
// InfiniBand Architecture Specification, volume 1, 8.3; annex A17 (RoCE v2), 4.5.2.
const (
	grhNextHeader = 6
	grhHopLimit   = 7
	grhSGID       = 8
	grhDGID       = 24

	grhIPv4     = 20 // where an IPv4 header begins
	ipv4Len     = 20
	ipv4TOS     = 1
	ipv4TTL     = 8
	ipv4Source  = 12
	ipv4Dest    = 16
	protocolUDP = 17
)

// ParseGRH reads the header in the first [GRHLen] bytes of the buffers of a
// receive, when its completion has HasGRH; b may be longer.
func ParseGRH(b []byte) (GRH, error) {
	const op = "parse global route header"
	if len(b) < GRHLen {
		return GRH{}, Errorf(op, ErrInvalid, "%d bytes, it has %d", len(b), GRHLen)
	}
	ip4 := b[grhIPv4:GRHLen]
	switch isIPv4, six := ip4[0]>>4 == 4, b[0]>>4 == 6; {
	case six && !(ip4[0] == 0x45 && ipv4Sum(ip4) == 0xffff): // a GID may have any bytes, but hardly a right checksum
		return parseGRH6(b), nil
	case isIPv4:
		return parseGRH4(ip4), nil
	}
	return GRH{}, Errorf(op, ErrInvalid, "neither version 6 (%d) nor an IPv4 header (%d)", b[0]>>4, ip4[0]>>4)
}

func parseGRH6(b []byte) GRH {
	first := binary.BigEndian.Uint32(b)
	g := GRH{
		SGID: [16]byte(b[grhSGID:]), DGID: [16]byte(b[grhDGID:]),
		FlowLabel: first & 0xfffff, TrafficClass: uint8(first >> 20), HopLimit: b[grhHopLimit],
	}
	if b[grhNextHeader] == protocolUDP {
		g.Type = GIDRoCE2
	}
	return g
}

// parseGRH4 maps the addresses as those of GIDs are.
func parseGRH4(ip []byte) GRH {
	mapped := func(at int) [16]byte {
		return [16]byte{10: 0xff, 11: 0xff, 12: ip[at], ip[at+1], ip[at+2], ip[at+3]}
	}
	return GRH{Type: GIDRoCE2, SGID: mapped(ipv4Source), DGID: mapped(ipv4Dest), TrafficClass: ip[ipv4TOS], HopLimit: ip[ipv4TTL]}
}

// ipv4Sum adds the words of an IPv4 header without options; 0xffff means that the checksum is right.
func ipv4Sum(ip []byte) uint16 {
	var sum uint32
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// AHAttrFromWC describes the way back to the sender of a datagram that port has
// received (ibv_init_ah_from_wc). buf begins with the first [GRHLen] bytes of the
// receive's buffers; it is not used if the completion has no HasGRH.
func (pd *PD) AHAttrFromWC(port uint8, wc *WC, buf []byte) (AHAttr, error) {
	a := AHAttr{PortNum: port, DLID: wc.SLID, SL: wc.SL, PathBits: wc.PathBits}
	if !wc.HasGRH {
		return a, nil
	}
	g, err := ParseGRH(buf)
	if err != nil {
		return AHAttr{}, err
	}
	a.GID, a.FlowLabel, a.TrafficClass, a.HopLimit = g.SGID, g.FlowLabel, g.TrafficClass, g.HopLimit
	if g.Type != GIDRoCE2 {
		a.HopLimit = 0xff // because the hops that are left of the sender's limit may be too few for the way back
	}
	attr, err := pd.dev.Query()
	if err != nil {
		return AHAttr{}, err
	}
	a.SGIDIndex, a.HasSGIDIndex = g.source(&attr, port)
	return a, nil
}

// source finds the entry of the port's table that the datagram was sent to; none
// for multicast.
func (g *GRH) source(attr *DeviceAttr, port uint8) (index uint8, ok bool) {
	if port < 1 || int(port) > len(attr.Ports) {
		return 0, false
	}
	table := attr.Ports[port-1].GIDTable
	i := slices.IndexFunc(table, func(e GIDEntry) bool {
		return e.GID == g.DGID && (e.Type == GIDRoCE2) == (g.Type == GIDRoCE2) && e.Index <= 0xff
	})
	if i < 0 {
		return 0, false
	}
	return uint8(table[i].Index), true
}

// CreateAHFromWC makes an address handle for answers to the sender of a datagram
// that port has received (ibv_create_ah_from_wc); the sender's queue pair is in
// WC.SrcQP. The arguments are those of [PD.AHAttrFromWC].
func (pd *PD) CreateAHFromWC(port uint8, wc *WC, buf []byte) (AddressHandle, error) {
	a, err := pd.AHAttrFromWC(port, wc, buf)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(a)
}
