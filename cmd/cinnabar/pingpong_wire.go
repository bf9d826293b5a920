package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The exchange of ibv_rc_pingpong, byte for byte: each side sends one text of
// 52 bytes over TCP, the client first, and the client ends with "done" and NUL.
//
//	"LLLL:QQQQQQ:PPPPPP:GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG\0"
//
// LID, queue pair number, packet sequence number and GID, in hexadecimal. iWARP
// has neither LIDs nor packet sequence numbers, and its connection manager does
// the connecting, so the fields carry what that needs: the GID is the IP
// address (an IPv4 address mapped into IPv6, as RoCE writes it) and the PSN is
// the server's port for connection requests.
const (
	pingpongPort = 18515
	destLen      = len("0000:000000:000000:00000000000000000000000000000000") + 1
	destDone     = "done\x00"
	gidDigits    = 32
)

// dest is one side of the exchange (struct pingpong_dest).
type dest struct {
	lid uint16
	qpn uint32 // 24 bits
	psn uint32 // 24 bits
	gid [16]byte
}

// destOf describes a side by its queue pair and by the address it is reached at.
func destOf(qpn uint32, at netip.AddrPort) dest {
	d := dest{qpn: qpn & 0xffffff, psn: uint32(at.Port())}
	if at.Addr().IsValid() {
		d.gid = at.Addr().As16()
	}
	return d
}

// addrPort is the address that a peer's dest carries. It fails for one that
// carries none, as a C program's does that connects queue pairs by hand.
func (d dest) addrPort() (netip.AddrPort, error) {
	ip := netip.AddrFrom16(d.gid).Unmap()
	if ip.IsUnspecified() || d.psn == 0 || d.psn > 65535 {
		return netip.AddrPort{}, fmt.Errorf("the peer sent no address to connect to (LID 0x%04x, PSN 0x%06x, GID %s): it connects queue pairs by hand, which iWARP cannot; run cinnabar pingpong there", d.lid, d.psn, gidText(d.gid))
	}
	return netip.AddrPortFrom(ip, uint16(d.psn)), nil
}

// appendDest encodes d with its NUL.
func appendDest(b []byte, d dest) []byte {
	b = fmt.Appendf(b, "%04x:%06x:%06x:", d.lid, d.qpn, d.psn)
	return append(hex.AppendEncode(b, d.gid[:]), 0)
}

// parseDest decodes a peer's text. It takes exactly what appendDest writes, in
// either case of letters.
func parseDest(b []byte) (dest, error) {
	fields := strings.Split(strings.TrimSuffix(string(b), "\x00"), ":")
	if len(b) != destLen || len(fields) != 4 || len(fields[3]) != gidDigits {
		return dest{}, badDest(b)
	}
	var numbers [3]uint64
	for i, digits := range []int{4, 6, 6} {
		n, err := strconv.ParseUint(fields[i], 16, 32)
		if err != nil || len(fields[i]) != digits {
			return dest{}, badDest(b)
		}
		numbers[i] = n
	}
	d := dest{lid: uint16(numbers[0]), qpn: uint32(numbers[1]), psn: uint32(numbers[2])}
	if _, err := hex.Decode(d.gid[:], []byte(fields[3])); err != nil {
		return dest{}, badDest(b)
	}
	return d, nil
}

func badDest(b []byte) error {
	return fmt.Errorf("the peer's address %q is no LID:QPN:PSN:GID of %d bytes; is the other side a pingpong?", b, destLen)
}

// gidText prints a GID as inet_ntop does: a mapped IPv4 address with dots.
func gidText(gid [16]byte) string { return netip.AddrFrom16(gid).String() }

// writeDest prints the line that ibv_rc_pingpong prints for a side.
func destLine(side string, d dest) string {
	return fmt.Sprintf("  %-15s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", side+" address:", d.lid, d.qpn, d.psn, gidText(d.gid))
}

// pingpongSettings travel in the private data of the connect request, so that
// the server can refuse a client that would wait for other messages than it
// sends:
//
//	 0        4        8        12
//	+--------+--------+--------+
//	|  "ppng"|  size  | iters  |
//	+--------+--------+--------+
type pingpongSettings struct {
	size  uint32 // bytes of a message
	iters uint32 // exchanges
}

const (
	settingsMagic = "ppng"
	settingsLen   = 12
)

func appendSettings(b []byte, p pingpongSettings) []byte {
	b = append(b, settingsMagic...)
	b = binary.BigEndian.AppendUint32(b, p.size)
	return binary.BigEndian.AppendUint32(b, p.iters)
}

// parseSettings decodes a connect request's private data. Bytes behind the
// settings are allowed: transports may pad private data.
func parseSettings(b []byte) (pingpongSettings, error) {
	if len(b) < settingsLen || string(b[:len(settingsMagic)]) != settingsMagic {
		return pingpongSettings{}, fmt.Errorf("the connect request carries no settings of pingpong (%d bytes of private data); is the other side a cinnabar pingpong?", len(b))
	}
	return pingpongSettings{size: binary.BigEndian.Uint32(b[4:]), iters: binary.BigEndian.Uint32(b[8:])}, nil
}

// mismatch names every setting in which a client differs from the server, or
// returns "".
func (p pingpongSettings) mismatch(client pingpongSettings) string {
	var differ []string
	if p.size != client.size {
		differ = append(differ, fmt.Sprintf("size (-s) is %d at the server and %d at the client", p.size, client.size))
	}
	if p.iters != client.iters {
		differ = append(differ, fmt.Sprintf("iters (-n) is %d at the server and %d at the client", p.iters, client.iters))
	}
	return strings.Join(differ, "; ")
}
