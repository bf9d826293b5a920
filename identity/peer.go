package identity

import (
	"net/netip"
	"strconv"
	"strings"
)

// Kind is the kind of the proof of an identity.
type Kind uint8

const (
	// Unknown is the kind of a peer of which nothing was proven.
	Unknown Kind = iota
	// Address is the kind of a peer that is known by the IP address that its connection comes from.
	Address
	// Certificate is the kind of a peer with a certificate that TLS has verified against the authorities of the configuration. The IP address is
	// known too.
	Certificate
	// Process is the kind of a process of this host whose user the kernel has named.
	Process
	// Self is the kind of the process itself.
	Self
)

// String returns the name of k in lower case.
func (k Kind) String() string {
	switch k {
	case Unknown:
		return "unknown"
	case Address:
		return "address"
	case Certificate:
		return "certificate"
	case Process:
		return "process"
	case Self:
		return "self"
	}
	return "kind " + strconv.Itoa(int(k))
}

// Peer is the identity of the peer of a connection. It contains only facts that the network, TLS or the kernel has proven. The port and the
// process id in a peer's own messages are not in it, because the peer may lie. The zero Peer is that of a peer of which nothing was proven.
//
// The receiver of a Peer must not change the elements of Names.
type Peer struct {
	Kind Kind
	// Host is the IP address that the connection comes from. Several processes may share it, and a host on the path may forge it. It is the zero
	// Addr over shared memory.
	Host netip.Addr
	// Subject is the subject of the certificate, "CN=name,O=organization". It is empty for other kinds than Certificate.
	Subject string
	// Names are the subject alternative names of the certificate: "DNS:host.example", "email:name@host.example", "IP:192.0.2.7" and
	// "URI:spiffe://cluster/name". There are none for other kinds than Certificate.
	Names []string
	// UID is the number of the user of a Process.
	UID uint32
	// PID is the process id that the kernel has attached when a Process connected; 0: the kernel has attached none. Programs should only display
	// it, because the system gives the id of a process that has ended to another one.
	PID int32
	// Token reports whether the peer has proven the token of this process.
	Token bool
}

// String returns the identity in the form in which the lists of package authz have it, with the main fact first.
func (p Peer) String() string {
	var b strings.Builder
	switch p.Kind {
	case Certificate:
		b.WriteString("subject:" + p.Subject)
		for _, n := range p.Names {
			b.WriteString(" " + n)
		}
		b.WriteString(" addr:" + p.Host.String())
	case Address:
		b.WriteString("addr:" + p.Host.String())
	case Process:
		b.WriteString("uid:" + strconv.FormatUint(uint64(p.UID), 10))
		if p.PID > 0 {
			b.WriteString(" (process " + strconv.Itoa(int(p.PID)) + ")")
		}
	case Self, Unknown:
		b.WriteString(p.Kind.String())
	default:
		b.WriteString(p.Kind.String())
	}
	if p.Token {
		b.WriteString(" token")
	}
	return b.String()
}
