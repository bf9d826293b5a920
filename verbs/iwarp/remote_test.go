package iwarp_test

import (
	"encoding/binary"

	"cinnabar/verbs"
)

// remoteOut and remoteIn carry the place of a region in private data.
func remoteOut(r verbs.RemoteAddr) []byte {
	b := binary.BigEndian.AppendUint64(nil, r.Addr)
	return binary.BigEndian.AppendUint32(b, r.RKey)
}

func remoteIn(b []byte) (r verbs.RemoteAddr, ok bool) {
	if len(b) != 12 {
		return r, false
	}
	return verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:])}, true
}
