package cinnabar

import (
	"strconv"

	"cinnabar/internal/na"
)

// Mode says what peers may do with exposed memory. A transfer needs the right on both sides: a pull reads the remote
// memory and writes the local one, so the remote Bulk must be readable and the local one writable; a push the other way
// round. The side that starts a transfer checks both before anything is sent; the owner of the memory checks again.
type Mode uint8

// The modes. Their values travel in handles.
const (
	ReadOnly  Mode = 1 // peers may read: HG_BULK_READ_ONLY
	WriteOnly Mode = 2 // peers may write: HG_BULK_WRITE_ONLY
	ReadWrite Mode = 3 // peers may do both: HG_BULK_READWRITE
)

// String returns "read-only", "write-only" or "read-write"; "no access" for what a peer's handle without rights says.
func (m Mode) String() string {
	switch m {
	case 0:
		return "no access"
	case ReadOnly:
		return "read-only"
	case WriteOnly:
		return "write-only"
	case ReadWrite:
		return "read-write"
	}
	return "mode " + strconv.Itoa(int(m))
}

// valid reports whether memory can be exposed with m.
func (m Mode) valid() bool { return m >= ReadOnly && m <= ReadWrite }

// allows reports whether all rights of want are in m.
func (m Mode) allows(want Mode) bool { return m&want == want }

// access is m as the network layer calls it; the values are the same.
func (m Mode) access() na.Access { return na.Access(m) }
