package ofitcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"cinnabar/internal/na/ofiaddr"
)

// Types of a connection message (enum in libfabric include/ofi_proto.h).
const (
	cmRequest  = 0 // ofi_ctrl_connreq
	cmResponse = 1 // ofi_ctrl_connresp
	cmNack     = 6 // ofi_ctrl_nack
)

const (
	cmVersion = 3   // OFI_CTRL_VERSION
	cmHead    = 32  // before the data
	cmData    = 8   // struct xnet_rdm_cm
	cmLen     = 40  // of the messages that we send
	cmMaxData = 256 // XNET_MAX_CM_DATA_SIZE

	// cmHasID stands in the word of the segment number, which C neither sets nor reads in connection messages. It
	// states that the two words of message numbers, likewise unused, hold a processID.
	cmHasID = 0x636e6272

	// cmWantsTLS stands in the same word of a refusal of an endpoint on ofi+tcps to a peer without TLS.
	cmWantsTLS = 0x636e7473

	// cmTaken stands there in a refusal inside TLS, because a peer with another certificate has the place of the address.
	cmTaken = 0x636e746b

	// An endpoint with a token puts cmWantsToken there in its refusal of a peer without one. An endpoint whose Config.Admit refuses the peer
	// puts cmNotAdmitted there.
	cmWantsToken  = 0x636e776b
	cmNotAdmitted = 0x636e6e61

	featureFirewall = 0x1 // XNET_RDM_FIREWALL_ADDR: never connect back

	// rdmVersion is the version of the protocol that we advertise and answer. With 0, peers never use the rendezvous
	// of tagged messages (operations 5 to 7).
	rdmVersion = 0
)

// Offsets, see the package documentation.
const (
	offCMVersion  = 0
	offCMType     = 1
	offCMSize     = 2
	offCMHasID    = 4
	offCMID       = 8
	offCMProbe    = 24
	offCMRDM      = 32
	offCMFeatures = 33
	offCMPort     = 34
	offCMPid      = 36
)

// cmMessage is a connection request, response or refusal.
type cmMessage struct {
	typ      byte
	version  byte
	features byte
	port     uint16
	pid      uint32
	probe    probe
	id       processID // zero: a process in C
	mark     uint32    // of a refusal: its reason, such as cmWantsTLS; 0 or an unknown value: an ordinary refusal
}

// processID is the random identity of an endpoint for one peer. Go peers send it in words of the connection message that C ignores. It
// distinguishes two processes that have the same address and port: behind address translation, or because one of them
// claims the other's.
type processID [16]byte

func (id processID) isZero() bool { return id == processID{} }

// identity is the secret that an endpoint derives its process ids from. Each peer sees one of its own, because a peer that
// knew the id which others see could pass for the endpoint with them.
type identity [32]byte

// newIdentity makes one that no other endpoint has or can guess.
func newIdentity() (s identity) {
	_, _ = rand.Read(s[:]) // never fails (crypto/rand)
	return s
}

// with returns the process id that the peer at an address sees, or the server of a name at that address.
func (s *identity) with(peer netip.AddrPort, name string) (id processID) {
	h := hmac.New(sha256.New, s[:])
	_, _ = h.Write(append(ofiaddr.Append(nil, peer), name...)) // never fails (package hash)
	copy(id[:], h.Sum(nil))
	return id
}

// sameProcess reports whether a connection message that carries pid and id comes from the process that m comes from.
func (m *cmMessage) sameProcess(pid uint32, id processID) bool { return m.pid == pid && m.id == id }

// probe is the byte order of the sender.
type probe uint8

const (
	probeNone probe = iota // neither
	probeLittle
	probeBig
)

// appendCM appends m as it travels.
func appendCM(b []byte, m cmMessage) []byte {
	n := len(b)
	b = append(b, make([]byte, cmLen)...)
	c := b[n:]
	c[offCMVersion], c[offCMType] = cmVersion, m.typ
	binary.BigEndian.PutUint16(c[offCMSize:], cmData)
	switch m.probe {
	case probeLittle:
		c[offCMProbe] = 1
	case probeBig:
		c[offCMProbe+7] = 1
	case probeNone:
	}
	if !m.id.isZero() {
		binary.BigEndian.PutUint32(c[offCMHasID:], cmHasID)
		copy(c[offCMID:], m.id[:])
	}
	c[offCMRDM], c[offCMFeatures] = m.version, m.features
	binary.BigEndian.PutUint16(c[offCMPort:], m.port)
	binary.BigEndian.PutUint32(c[offCMPid:], m.pid)
	return b
}

// parseCMHead reads the first cmHead bytes of b, which is hostile, and returns how many bytes of data follow them. A
// negative size is malformed: another version of the control protocol, or more data than there can be.
func parseCMHead(b []byte) (m cmMessage, size int) {
	if b[offCMVersion] != cmVersion {
		return m, -1
	}
	m.typ = b[offCMType]
	switch binary.LittleEndian.Uint64(b[offCMProbe:]) {
	case 1:
		m.probe = probeLittle
	case 1 << 56:
		m.probe = probeBig
	}
	if binary.BigEndian.Uint32(b[offCMHasID:]) == cmHasID {
		m.id = processID(b[offCMID : offCMID+len(m.id)])
	}
	if m.typ == cmNack {
		m.mark = binary.BigEndian.Uint32(b[offCMHasID:])
	}
	size = int(binary.BigEndian.Uint16(b[offCMSize:]))
	if size > cmMaxData {
		return m, -1
	}
	return m, size
}

// parseCMData reads the data of a message of an RDM endpoint from all of it.
func (m *cmMessage) parseCMData(b []byte) {
	m.version, m.features = b[offCMRDM], b[offCMFeatures]
	m.port = binary.BigEndian.Uint16(b[offCMPort:])
	m.pid = binary.BigEndian.Uint32(b[offCMPid:])
}

// nackOf returns the refusal of the request req. It carries the data of the request back.
func nackOf(req []byte) []byte {
	b := make([]byte, len(req))
	b[offCMVersion], b[offCMType] = cmVersion, cmNack
	copy(b[offCMSize:offCMSize+2], req[offCMSize:])
	copy(b[cmHead:], req[cmHead:])
	return b
}

// markedNack returns the refusal of a request with a reason, such as cmWantsTLS.
func markedNack(req []byte, reason uint32) []byte {
	b := nackOf(req)
	binary.BigEndian.PutUint32(b[offCMHasID:], reason)
	return b
}
