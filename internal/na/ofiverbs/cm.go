package ofiverbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cinnabar/verbs"
)

// Each side puts a structure of the rxm provider into the private data of the connection, behind one byte with its length. The byte
// belongs to the verbs provider (struct vrb_cm_data_hdr). InfiniBand and RoCE pad private data with zeros, iWARP does not.
//
// Connection request (struct rxm_cm_data of prov/rxm/src/rxm.h); integers are in the byte order of the sender, which must be little
// endian:
//
//	 0               1               2               3
//	+---------------+---------------+---------------+---------------+
//	| length 24     | CM version 1  | byte order 1,2| ctrl version 4|
//	+---------------+---------------+---------------+---------------+
//	| op version 3  | port of the sender's listener | flow control  |   4..7
//	+---------------+---------------+---------------+---------------+
//	| endpoint      | eager limit                                   |   8..11
//	+---------------+-----------------------------------------------+
//	| (12)          | receives                                      |   12..15
//	+---------------+-----------------------------------------------+
//	| (16)          | connection id: index 4, process 4             |   16..24
//	+---------------+-----------------------------------------------+
//
// Behind the structure this package puts an extension that libfabric does not read:
//
//	+---------------+---------------+---------------+---------------+
//	| 'c'             'n'             'b'             1             |   0..3
//	+---------------------------------------------------------------+
//	| remote key of a byte that the peer may read, for confirmations|   4..7
//	+---------------------------------------------------------------+
//	| its address, 8 bytes                                          |   8..15
//	+---------------------------------------------------------------+
//
// Acceptance: length 16, connection id 8, receives 4, flow control 1, zero 3. Refusal: length 2, CM version 1, reason 1.
const (
	requestLen = 24 // without the byte of the length
	acceptLen  = 16
	rejectLen  = 2

	cmVersion   = 1
	ctrlVersion = 4 // of the packets that follow
	opVersion   = 3 // of the request; packets have 2

	littleEndian = 2
)

// Offsets in a request, the byte of the length included.
const (
	offCMLength   = 0
	offCMVersion  = 1
	offCMOrder    = 2
	offCMCtrl     = 3
	offCMOp       = 4
	offCMPort     = 5
	offCMFlow     = 7
	offCMEndpoint = 8
	offCMEager    = 9
	offCMReceives = 13
	offCMConnID   = 17
)

// Offsets in an acceptance.
const (
	offAcceptConnID   = 1
	offAcceptReceives = 9
	offAcceptFlow     = 13
)

// flowControl is the announcement of a side about credits (enum rxm_flow_ctrl).
type flowControl uint8

const (
	flowUnspecified flowControl = 0 // libfabric before 1.15; counts as on
	flowOn          flowControl = 1
	flowOff         flowControl = 2 // a shared receive queue: packets may leave without credits
)

// rejectReason is the reason of a refusal (enum rxm_cm_reject_reason).
type rejectReason uint8

const (
	rejectNone    rejectReason = 0 // the refusal has no data of rxm's
	rejectRefused rejectReason = 1 // this request is not acceptable
	rejectAlready rejectReason = 2 // there is a connection, or one is being made from the other side
)

func (r rejectReason) String() string {
	switch r {
	case rejectNone:
		return "no reason"
	case rejectRefused:
		return "refused"
	case rejectAlready:
		return "connected already"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// connID names one side of a connection: its index in the table of that side, which all packets to that side carry, and a number that
// stands for the process.
type connID struct {
	index   uint32
	process uint32
}

func (id connID) word() uint64 { return uint64(id.process)<<32 | uint64(id.index) }

func connIDOf(w uint64) connID { return connID{index: uint32(w), process: uint32(w >> 32)} }

// cmRequest is the private data of a connection request.
type cmRequest struct {
	port     uint16 // that the sender listens on, or is known by
	flow     flowControl
	eager    uint32 // the largest message that one packet carries, in bytes; both sides must have the same
	receives uint32 // posted by the sender; not used by any receiver
	id       connID
}

// extensionMark begins the extension of this package.
const extensionMark = "cnb\x01"

// extensionLen is the length of the extension in bytes.
const extensionLen = len(extensionMark) + 12

// appendExtension appends the extension with the byte that peers may read.
func appendExtension(b []byte, at verbs.RemoteAddr) []byte {
	b = append(b, extensionMark...)
	b = binary.LittleEndian.AppendUint32(b, at.RKey)
	return binary.LittleEndian.AppendUint64(b, at.Addr)
}

// parseExtension reads the extension behind a structure of n bytes in private data, which is hostile. It returns false if there is none,
// because the peer is a program in C.
func parseExtension(b []byte, n int) (verbs.RemoteAddr, bool) {
	if len(b) < 1+n+extensionLen || string(b[1+n:][:len(extensionMark)]) != extensionMark {
		return verbs.RemoteAddr{}, false
	}
	b = b[1+n+len(extensionMark):]
	return verbs.RemoteAddr{RKey: binary.LittleEndian.Uint32(b), Addr: binary.LittleEndian.Uint64(b[4:])}, true
}

// errOtherRXM is the cause for which a request is refused although its form is right.
var errOtherRXM = errors.New("the peer's libfabric speaks another variant of verbs;ofi_rxm")

// appendRequest appends r with its length.
func appendRequest(b []byte, r cmRequest) []byte {
	b = append(b, requestLen, cmVersion, littleEndian, ctrlVersion, opVersion)
	b = binary.LittleEndian.AppendUint16(b, r.port)
	b = append(b, byte(r.flow), 0)
	b = binary.LittleEndian.AppendUint32(b, r.eager)
	b = binary.LittleEndian.AppendUint32(b, r.receives)
	return binary.LittleEndian.AppendUint64(b, r.id.word())
}

// cmData returns the structure in private data, which is hostile: its length stands in its first byte, and zeros may follow.
func cmData(b []byte, n int) ([]byte, error) {
	if len(b) <= n || b[offCMLength] != byte(n) {
		first := 0
		if len(b) > 0 {
			first = int(b[offCMLength])
		}
		return nil, fmt.Errorf("%d bytes of private data that begin with %d; there are more than %d, and they begin with that number", len(b), first, n)
	}
	return b[:1+n], nil
}

// parseRequest reads the private data of a connection request, which is hostile. An error that wraps errOtherRXM names the difference to
// the variant of this package.
func parseRequest(b []byte) (cmRequest, error) {
	b, err := cmData(b, requestLen)
	if err != nil {
		return cmRequest{}, err
	}
	for _, f := range []struct {
		name string
		got  byte
		want byte
	}{
		{"CM version", b[offCMVersion], cmVersion},
		{"byte order", b[offCMOrder], littleEndian},
		{"packet version", b[offCMCtrl], ctrlVersion},
		{"operation version", b[offCMOp], opVersion},
		{"endpoint index", b[offCMEndpoint], 0},
	} {
		if f.got != f.want {
			return cmRequest{}, fmt.Errorf("%w: %s %d instead of %d", errOtherRXM, f.name, f.got, f.want)
		}
	}
	r := cmRequest{
		port: binary.LittleEndian.Uint16(b[offCMPort:]), flow: flowControl(b[offCMFlow]),
		eager: binary.LittleEndian.Uint32(b[offCMEager:]), receives: binary.LittleEndian.Uint32(b[offCMReceives:]),
		id: connIDOf(binary.LittleEndian.Uint64(b[offCMConnID:])),
	}
	switch {
	case r.flow > flowOff:
		return cmRequest{}, fmt.Errorf("%w: flow control %d", errOtherRXM, r.flow)
	case r.eager != eagerLimit:
		return cmRequest{}, fmt.Errorf("%w: messages of up to %d bytes in one packet instead of %d (FI_OFI_RXM_BUFFER_SIZE)", errOtherRXM, r.eager, eagerLimit)
	case r.port == 0:
		return cmRequest{}, errors.New("port 0, which can be no peer's")
	}
	return r, nil
}

// cmAccept is the private data of an accepted connection.
type cmAccept struct {
	id       connID
	receives uint32
	flow     flowControl
}

// appendAccept appends a with its length.
func appendAccept(b []byte, a cmAccept) []byte {
	b = append(b, acceptLen)
	b = binary.LittleEndian.AppendUint64(b, a.id.word())
	b = binary.LittleEndian.AppendUint32(b, a.receives)
	return append(b, byte(a.flow), 0, 0, 0)
}

// parseAccept reads the private data of an acceptance, which is hostile.
func parseAccept(b []byte) (cmAccept, error) {
	b, err := cmData(b, acceptLen)
	if err != nil {
		return cmAccept{}, err
	}
	a := cmAccept{
		id: connIDOf(binary.LittleEndian.Uint64(b[offAcceptConnID:])), receives: binary.LittleEndian.Uint32(b[offAcceptReceives:]),
		flow: flowControl(b[offAcceptFlow]),
	}
	if a.flow > flowOff {
		return cmAccept{}, fmt.Errorf("%w: flow control %d", errOtherRXM, a.flow)
	}
	return a, nil
}

// appendReject appends a refusal with its length.
func appendReject(b []byte, r rejectReason) []byte { return append(b, rejectLen, cmVersion, byte(r)) }

// parseReject reads the private data of a refusal, which is hostile. It returns rejectNone if the refusal is not one of rxm: that of a
// kernel for a request that the peer has withdrawn has no data.
func parseReject(b []byte) rejectReason {
	b, err := cmData(b, rejectLen)
	if err != nil || b[1] != cmVersion {
		return rejectNone
	}
	return rejectReason(b[2])
}
