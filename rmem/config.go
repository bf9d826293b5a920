package rmem

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"cinnabar"
)

// Config is what a server lends, and to whom.
type Config struct {
	Provider    uint16         // id of the provider that the server is
	Pool        *cinnabar.Pool // whose workers answer requests; nil: those outside pools
	Quota       int64          // bytes lent in all; 0: 1 GiB
	ClientQuota int64          // bytes lent to one client; 0: Quota
	Largest     int64          // bytes of one region; 0: ClientQuota
	LongestHold time.Duration  // longest lease, to which longer ones are cut; 0: 24 h

	// Grace is how long a client whose connection is lost has to connect again before it counts as dead; 0: 5 s.
	Grace time.Duration

	// Strict has the server make all reads and writes itself, by RPC: slower, but nobody reaches memory that is not lent to
	// them, whatever the network. It is for na+sm, where the kernel lets processes of one user reach each other's memory.
	Strict bool

	Logger *slog.Logger // nil: discard
}

const (
	defaultQuota = 1 << 30
	defaultHold  = 24 * time.Hour
	mapped       = 1 << 20 // regions from this size on get pages of their own
	mostClients  = 1 << 14 // at once
	defaultGrace = 5 * time.Second
)

// filled returns cfg with defaults for zeros, or says what is wrong with it.
func (cfg Config) filled() (Config, error) {
	if cfg.Quota < 0 || cfg.ClientQuota < 0 || cfg.Largest < 0 || cfg.LongestHold < 0 || cfg.Grace < 0 {
		return cfg, fmt.Errorf("rmem: a negative limit in the configuration: Quota %d, ClientQuota %d, Largest %d, LongestHold %v, Grace %v", cfg.Quota, cfg.ClientQuota, cfg.Largest, cfg.LongestHold, cfg.Grace)
	}
	defaultTo(&cfg.Quota, defaultQuota)
	defaultTo(&cfg.ClientQuota, cfg.Quota)
	defaultTo(&cfg.Largest, cfg.ClientQuota)
	defaultTo(&cfg.LongestHold, defaultHold)
	defaultTo(&cfg.Grace, defaultGrace)
	cfg.Largest = min(cfg.Largest, math.MaxInt)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, nil
}

func defaultTo[T int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}
