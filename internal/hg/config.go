package hg

import (
	"log/slog"
	"math"

	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
)

// Default limits, in bytes.
const (
	DefaultMaxOverflow    = 1 << 30
	DefaultOverflowBudget = 4 << 30
)

// Config are the choices of a [Class]. The zero value is C's default.
type Config struct {
	Logger    *slog.Logger      // nil: silent
	Dispatch  Dispatcher        // nil: requests are answered NoEntry
	Checksums wire.ChecksumMode // the layouts of headers that the Class speaks

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
