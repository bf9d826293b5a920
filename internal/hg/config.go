package hg

import (
	"log/slog"
	"math"

	"cinnabar/internal/audit"
)

// ChecksumMode says which of Mercury's two header layouts a Class speaks. They are a choice at compile time in C
// (MERCURY_USE_CHECKSUMS), and nothing on the wire negotiates it.
type ChecksumMode uint8

const (
	// NoChecksums is C's default build: 12-byte headers. Requests that are marked as those of the other build are
	// answered with ProtoNoSupport.
	NoChecksums ChecksumMode = iota
	// Checksums is the other build: 16-byte headers. Checksums of headers and payloads are always written, which
	// satisfies each checksum level of C, and verified where the peer has written any. Bulk data has no checksum. Releases
	// before 2.4.1 do not mark their requests and write no checksums at level "none"; zeros in both places are read so.
	Checksums
	// Detect speaks both: the first call to a peer is preceded by a harmless request from whose answer the build is
	// told, requests are read according to their own mark (bit 0x80, which C sets since 2.4.1).
	Detect
)

// Default limits, in bytes.
const (
	DefaultMaxOverflow    = 1 << 30
	DefaultOverflowBudget = 4 << 30
)

// Config are the choices of a [Class]. The zero value is C's default.
type Config struct {
	Logger    *slog.Logger // nil: silent
	Dispatch  Dispatcher   // nil: requests are answered NoEntry
	Checksums ChecksumMode

	NoEager    bool // do not embed the data of small read-only memory in its descriptor (no_bulk_eager)
	NoOverflow bool // refuse payloads that do not fit into a message with Overflow instead of having them pulled (no_overflow)
	NoLoopback bool // refuse calls to the own address (no_loopback)

	// MaxOverflow limits the payload of one request or response that a peer asks this process to pull, in bytes;
	// 0 means DefaultMaxOverflow.
	MaxOverflow int64
	// OverflowBudget limits the memory of all pulled payloads together, which grows with what comes and counts until the
	// Request or Call is freed; 0 means DefaultOverflowBudget. A request beyond it is answered with Again. While the
	// memory of a large payload grows, what has come is there twice for a moment; that does not count.
	OverflowBudget int64

	Clock Clock // measures the ages in errors; nil: errors have no ages

	// Audit counts and logs what peers are refused; nil: a Trail of its own, on Logger.
	Audit *audit.Trail
}

// withDefaults fills in what is zero.
func (cfg Config) withDefaults() Config {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Audit == nil {
		cfg.Audit = audit.New(cfg.Logger)
	}
	if cfg.MaxOverflow <= 0 {
		cfg.MaxOverflow = DefaultMaxOverflow
	}
	cfg.MaxOverflow = min(cfg.MaxOverflow, math.MaxInt)
	if cfg.OverflowBudget <= 0 {
		cfg.OverflowBudget = DefaultOverflowBudget
	}
	return cfg
}
