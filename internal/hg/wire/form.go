package wire

// Form is one of the two layouts of Mercury's headers. C chooses it at compile time (MERCURY_USE_CHECKSUMS), and no message negotiates
// it.
type Form uint8

const (
	FormShort Form = iota // built without checksums: 12 bytes + 4
	FormLong              // built with checksums: 16 bytes + 4
)

// Sizes in bytes.
const (
	coreShort = 12
	coreLong  = 16
	hgHeader  = 4 // header of the HG layer, after the core header: CRC32C of the payload, or nothing
)

// CoreSize returns the size of the core header in bytes.
func (f Form) CoreSize() int {
	if f == FormLong {
		return coreLong
	}
	return coreShort
}

// Size returns the size of the core header and the header of the HG layer together, in bytes. The payload begins there.
func (f Form) Size() int { return f.CoreSize() + hgHeader }

// ErrorSize returns the size of a response that carries an error, in bytes. C sends twice the size of its core header, so the size
// shows the form of the sender.
func (f Form) ErrorSize() int { return 2 * f.CoreSize() }

// mark returns the flag that a header of this form has.
func (f Form) mark() uint8 {
	if f == FormLong {
		return FlagHasChecksums
	}
	return 0
}

func (f Form) String() string {
	if f == FormLong {
		return "built with checksums"
	}
	return "built without checksums"
}

// ChecksumMode states which forms a process speaks.
type ChecksumMode uint8

const (
	// NoChecksums is C's default build: only FormShort. Requests that are marked as FormLong are answered HG_PROTONOSUPPORT.
	NoChecksums ChecksumMode = iota
	// Checksums is the other build: only FormLong. Checksums of headers and payloads are always written, which satisfies each
	// checksum level of C, and verified where the peer has written any. Bulk data has no checksum. Releases before 2.4.1 do not mark
	// their requests and write no checksums at level "none"; zeros in both places are read so.
	Checksums
	// Detect speaks both: a probe ([PutProbe]) precedes the first call to a peer, and the answer to it shows the form of the peer.
	// Requests are read according to their own mark (bit 0x80, which C sets since 2.4.1).
	Detect
)

// Flags of the core headers of requests and responses.
const (
	FlagMoreData     = 0x01 // HG_CORE_MORE_DATA: the payload is a bulk descriptor of the payload
	FlagNoResponse   = 0x02 // HG_CORE_NO_RESPONSE: a one-way RPC
	FlagHasChecksums = 0x80 // HG_CORE_HAS_CHECKSUMS: built with checksums, since 2.4.1
)

// AckSize is the size in bytes of the message that acknowledges an overflow: its receiver has pulled the payload. Its content has no
// meaning.
const AckSize = 1
