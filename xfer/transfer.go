package xfer

import (
	"io"
	"io/fs"
	"net/netip"
	"strconv"
	"time"
)

// Protocol is one of the two ways in which a file crosses.
type Protocol uint8

const (
	// Auto lets the two sides choose: Fast where both have it.
	Auto Protocol = iota
	// Basic is the paper's protocol of 13 steps: one buffer, one chunk at a time.
	Basic
	// Fast uses several buffers in turn and overlaps disks and network.
	Fast
)

// String returns the name that commands use.
func (p Protocol) String() string {
	switch p {
	case Auto:
		return "auto"
	case Basic:
		return "basic"
	case Fast:
		return "fast"
	}
	return "protocol " + strconv.Itoa(int(p))
}

// Digest is how the fast protocol compares whole files. Chunks carry a CRC32C
// besides in any case.
type Digest uint8

const (
	// SHA256 compares before the file gets its name.
	SHA256 Digest = iota
	// NoDigest leaves it at the checksums of the chunks.
	NoDigest
)

// String returns the name that commands use.
func (d Digest) String() string {
	switch d {
	case SHA256:
		return "sha256"
	case NoDigest:
		return "none"
	}
	return "digest " + strconv.Itoa(int(d))
}

// Meta is what a sender may say about its file besides name and size. Zero
// values mean that it says nothing. It crosses between two programs that use
// this package only; the paper's program sends none.
type Meta struct {
	Mode    fs.FileMode // permission bits
	ModTime time.Time   // of the years 1678 to 2261; others are not told
}

// Source is a file to be sent.
type Source struct {
	// Name is what the receiver shall call it: 1 to 255 bytes without NUL; a [Dir]
	// refuses more than that, see [CheckName].
	Name string
	// Data is read from several offsets in ascending order by one goroutine.
	Data io.ReaderAt
	// Size is the number of bytes to send. That Data ends there is checked.
	Size int64
	Meta Meta
}

// Result tells what a transfer did, as far as it came.
type Result struct {
	Name     string
	Peer     netip.AddrPort
	Size     int64 // bytes of the file that the receiver acknowledged, or stored
	Protocol Protocol
	// Immediate tells whether chunks were announced by immediate data, as in the
	// paper, or by a message behind the write.
	Immediate bool
	Buffers   int // of the receiver
	Chunk     int // size of each in bytes
	Chunks    int64
	Digest    Digest
	// Sum is the SHA-256 of the file, on which both sides agree if the transfer has
	// succeeded; zero unless Digest is SHA256 and the protocol Fast. A receiver that does
	// not trust the sender computes it from the file: see the package's section on the
	// fast protocol.
	Sum      [32]byte
	Duration time.Duration // from the connection to the receiver's last word
}

// Progress watches one transfer. Its methods are called by one goroutine at a
// time and must not block; Finish comes last, once, and only after Start.
type Progress interface {
	// Start tells what begins. Result has what is agreed; its Size is that of
	// the whole file, -1 if the sender did not tell.
	Start(Result)
	// Advance adds n bytes that the receiver has stored, as far as this side knows.
	Advance(n int64)
	// Finish tells how it went.
	Finish(Result, error)
}
