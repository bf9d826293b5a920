package main

import (
	"encoding/binary"
	"fmt"

	"cinnabar/verbs"
)

const (
	controlLen   = 48         // bytes
	controlMagic = 0x4d495845 // "MIXE"
)

// Kinds of control messages.
const (
	kindHello = 1 + iota
	kindReady
	kindDone
	kindBye
)

// control is a control message, of which each kind uses a part; see doc.go.
type control struct {
	kind, bad uint32
	number    uint64
	remote    verbs.RemoteAddr
	seed      uint64
}

// putControl writes c to b, which has controlLen bytes.
func putControl(b []byte, c control) {
	clear(b)
	binary.BigEndian.PutUint32(b[0:], controlMagic)
	binary.BigEndian.PutUint32(b[4:], c.kind)
	binary.BigEndian.PutUint32(b[8:], c.bad)
	binary.BigEndian.PutUint32(b[12:], c.remote.RKey)
	binary.BigEndian.PutUint64(b[16:], c.number)
	binary.BigEndian.PutUint64(b[24:], c.remote.Addr)
	binary.BigEndian.PutUint64(b[32:], c.seed)
}

// parseControl reads a control message.
func parseControl(b []byte) (control, error) {
	if len(b) != controlLen {
		return control{}, fmt.Errorf("%d bytes instead of a control message of %d", len(b), controlLen)
	}
	if m := binary.BigEndian.Uint32(b); m != controlMagic {
		return control{}, fmt.Errorf("a control message begins with %#x", m)
	}
	return control{
		kind: binary.BigEndian.Uint32(b[4:]), bad: binary.BigEndian.Uint32(b[8:]), number: binary.BigEndian.Uint64(b[16:]),
		remote: verbs.RemoteAddr{RKey: binary.BigEndian.Uint32(b[12:]), Addr: binary.BigEndian.Uint64(b[24:])},
		seed:   binary.BigEndian.Uint64(b[32:]),
	}, nil
}
