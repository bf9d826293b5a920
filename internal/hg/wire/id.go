package wire

import (
	"encoding/binary"
)

// DefaultProvider is the provider id of an RPC that is registered for none (MARGO_DEFAULT_PROVIDER_ID).
const DefaultProvider = 0xffff

// providerBits is how many bits of an id are the provider's (MARGO_PROVIDER_ID_MASK in margo-id.h).
const providerBits = 16

// ID returns the id of an RPC as Margo 0.14 and later form it: the hash of its name in the upper half, the provider id
// in the lowest 16 bits.
func ID(name string, provider uint16) uint64 { return uint64(Jenkins(name))<<32 | uint64(provider) }

// Provider returns the provider id in an id.
func Provider(id uint64) uint16 { return uint16(id) }

// WithProvider returns id for another provider (margo_provider_forward).
func WithProvider(id uint64, provider uint16) uint64 {
	return id>>providerBits<<providerBits | uint64(provider)
}

// nativeMark is in the ids of RPCs of package native. The bits are 0 in the ids that C programs form, so a native RPC and an RPC of Margo have
// different ids for the same name and provider.
const nativeMark = 0x6e76 << providerBits // "nv"

// NativeID returns the id of an RPC of package native.
func NativeID(name string, provider uint16) uint64 { return ID(name, provider) | nativeMark }

// Sibling returns the id of the RPC of Margo with the name and provider of a native RPC, and the reverse.
func Sibling(id uint64) uint64 { return id ^ nativeMark }

// Djb2 returns the id that Mercury's HG_Register_name gives a name (hg_hash_string).
func Djb2(name string) uint64 {
	h := uint32(5381)
	for i := range len(name) {
		h = h*33 + uint32(name[i])
	}
	return uint64(h)
}

// Seeds of the hash: the golden ratio, and the initial value of uthash's HASH_JEN.
const (
	jenkinsRatio = 0x9e3779b9
	jenkinsSeed  = 0xfeedbeef
)

// Jenkins returns the hash of a name that Margo uses: Bob Jenkins' lookup2 of 1997, as uthash has it (HASH_JEN).
func Jenkins(name string) uint32 {
	m := mixer{a: jenkinsRatio, b: jenkinsRatio, c: jenkinsSeed}
	rest := []byte(name)
	for ; len(rest) >= 12; rest = rest[12:] {
		m.a += binary.LittleEndian.Uint32(rest)
		m.b += binary.LittleEndian.Uint32(rest[4:])
		m.c += binary.LittleEndian.Uint32(rest[8:])
		m.mix()
	}
	// The lowest byte of c is the length's, so a tail of 9 to 11 bytes starts at c's second.
	var tail [12]byte
	copy(tail[:8], rest)
	if len(rest) > 8 {
		copy(tail[9:], rest[8:])
	}
	m.a += binary.LittleEndian.Uint32(tail[:])
	m.b += binary.LittleEndian.Uint32(tail[4:])
	m.c += binary.LittleEndian.Uint32(tail[8:]) + uint32(len(name))
	m.mix()
	return m.c
}

// mixer is the hash's state.
type mixer struct{ a, b, c uint32 }

// mix is lookup2's reversible mixing of 96 bits.
func (m *mixer) mix() {
	for _, shift := range [...][3]int{{-13, 8, -13}, {-12, 16, -5}, {-3, 10, -15}} {
		m.a = (m.a - m.b - m.c) ^ shifted(m.c, shift[0])
		m.b = (m.b - m.c - m.a) ^ shifted(m.a, shift[1])
		m.c = (m.c - m.a - m.b) ^ shifted(m.b, shift[2])
	}
}

// shifted shifts x to the left by n bits, to the right if n is negative.
func shifted(x uint32, n int) uint32 {
	if n < 0 {
		return x >> -n
	}
	return x << n
}
