package ofiverbs

import (
	"encoding/binary"
	"fmt"
)

// The types of this file describe recorded packets and private data to programs that decode captures.

// Packet is a packet of a queue pair.
type Packet struct {
	Type       string // the name of its type, such as "eager"
	Connection uint64 // the index that the receiver has given
	Credits    uint64 // of a credit packet
	Request    bool   // of an eager packet, as the next three
	Response   bool
	Tag        uint32
	Payload    []byte
	Size       uint64 // of a segment or a rendezvous: bytes of the whole message
}

// IsPacket reports whether b looks like a packet: its versions are those of rxm.
func IsPacket(b []byte) bool {
	return len(b) >= headerLen && b[offVersion] == ctrlVersion && b[offType] <= byte(typeWriteDone) && b[offOpVer] == packetOpVersion
}

// ParsePacket reads a packet, which is hostile, from all of b. Unlike an Endpoint it takes packets of all types.
func ParsePacket(b []byte) (Packet, error) {
	if !IsPacket(b) {
		return Packet{}, fmt.Errorf("%d bytes that are no packet of rxm", len(b))
	}
	t := packetType(b[offType])
	p := Packet{Type: t.String(), Connection: binary.LittleEndian.Uint64(b[offConnID:])}
	if t != typeEager && t != typeCredit {
		p.Size = binary.LittleEndian.Uint64(b[offSize:])
		return p, nil
	}
	m, err := parsePacket(b)
	if err != nil {
		return Packet{}, err
	}
	p.Credits, p.Tag, p.Payload = m.credits, m.tag, m.payload
	p.Request, p.Response = m.kind == kindRequest, m.kind == kindExpected
	return p, nil
}

// Offer is the private data of rxm in a connection request or an acceptance.
type Offer struct {
	Port    uint16 // that the requester listens on; 0 in an acceptance
	Flow    string // credits: "on", "off" or "unspecified"
	Index   uint32 // of the connection in the sender's table
	Process uint32
	Go      bool // the sender is a program of this module
}

func (f flowControl) name() string {
	switch f {
	case flowOn:
		return "on"
	case flowOff:
		return "off"
	case flowUnspecified:
		return "unspecified"
	}
	return fmt.Sprintf("%d", uint8(f))
}

// ParseOffer reads the private data of a connection request, which is hostile. It returns an error unless they are those of rxm.
func ParseOffer(b []byte) (Offer, error) {
	r, err := parseRequest(b)
	if err != nil {
		return Offer{}, err
	}
	_, isGo := parseExtension(b, requestLen)
	return Offer{Port: r.port, Flow: r.flow.name(), Index: r.id.index, Process: r.id.process, Go: isGo}, nil
}

// ParseAcceptance reads the private data of an acceptance, which is hostile. It returns an error unless they are those of rxm.
func ParseAcceptance(b []byte) (Offer, error) {
	a, err := parseAccept(b)
	if err != nil {
		return Offer{}, err
	}
	_, isGo := parseExtension(b, acceptLen)
	return Offer{Flow: a.flow.name(), Index: a.id.index, Process: a.id.process, Go: isGo}, nil
}

// ParseRefusal returns the reason in the private data of a refusal, which is hostile, and false if they are not those of rxm.
func ParseRefusal(b []byte) (reason string, ok bool) {
	r := parseReject(b)
	return r.String(), r != rejectNone
}
