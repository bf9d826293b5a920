//go:build linux

package uverbs

import "encoding/binary"

func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// entries returns the list of a request, and false if it is not within sges or longer than limit.
func entries(sges []SGE, first, num, limit int) ([]SGE, bool) {
	if first < 0 || num < 0 || num > limit || first > len(sges)-num {
		return nil, false
	}
	return sges[first : first+num], true
}

// sgeSize is struct ibv_sge's; SGE is laid out alike.
const sgeSize = 16

// totalLength adds up the lengths of entries, in bytes.
func totalLength(list []SGE) (n uint64) {
	for i := range list {
		n += uint64(list[i].Length)
	}
	return n
}

// gatherInline copies what entries describe to b, which has room for it.
func gatherInline(b []byte, list []SGE) {
	for _, e := range list {
		if e.Length > 0 {
			b = b[copy(b, memory(e.Addr, e.Length)):]
		}
	}
}
