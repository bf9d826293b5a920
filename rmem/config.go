package rmem

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"cinnabar"
	"cinnabar/internal/hostquota"
)

// Config is the configuration of a server: the memory that it lends, and the limits for its clients.
//
// A host may have any free part of Quota and MaxClients, but never the last part, which others need: a single host gets nine
// sixteenths at most, and each further one finds something. HostQuota replaces that rule for bytes by a fixed limit; with
// HostQuota equal to Quota one host may have everything.
type Config struct {
	Provider      uint16                // id of the provider that the server is
	Pool          *cinnabar.HandlerPool // its workers answer requests; nil: those outside pools
	Quota         int64                 // bytes lent in all, which bounds the server's memory; 0: 1 GiB, or half of the machine's memory if that is less
	HostQuota     int64                 // bytes lent to the clients of one host; 0: a share, see below
	ClientQuota   int64                 // bytes lent to one client; 0: as much as its host may have
	MaxRegionSize int64                 // bytes of one region; 0: ClientQuota, or Quota if that is 0
	MaxClients    int                   // at once; 0: 16384, or as many as there are descriptors for if that is less
	MaxLease      time.Duration         // longest lease, to which longer ones are cut; 0: 24 h

	// Grace is the time in which a client that has lost its connection must connect again before it counts as dead; 0: 5 s.
	Grace time.Duration

	// Silence is the time for which a client's host may be silent, over verbs, before the client counts as dead. Three quarters of it
	// must be enough for all transfers that a client has under way at a time. 0: 1 min; negative: for ever. Over an engine it has no
	// effect, because cinnabar.Config.KeepAlive and Grace bound that time.
	Silence time.Duration

	// Strict makes the server execute all reads and writes itself, by RPC: slower, but no process reaches memory that is not lent
	// to it, on every network. It is for na+sm, where the kernel lets processes of one user reach each other's memory.
	Strict bool

	// Wipe makes the server overwrite all memory with zeros when it comes back, after the last access of a peer has ended and
	// before it lends that memory again: as if every region were allocated so ([AllocOptions]).
	Wipe bool

	// CopyFrom reports whether a client may have regions of another server copied into its own: the server connects there and
	// reads. server is the other server's address, as Handle.Server has it. nil: no server may, because a client could
	// otherwise choose where this process connects.
	CopyFrom func(server string) bool

	Logger *slog.Logger // nil: discard
}

const (
	defaultQuota = 1 << 30
	defaultHold  = 24 * time.Hour
	mapped       = 1 << 20          // regions from this size on get pages of their own
	mostClients  = 1 << 14          // at once
	mostFetches  = 64               // copies from other servers, at once
	mostRegions  = 1 << 18          // at once: each costs the server more than its bytes, and quotas count only these
	copyStall    = 30 * time.Second // for which a copy from another server waits for each strictChunk
	defaultGrace = 5 * time.Second

	defaultSilence = time.Minute
)

// filled returns cfg with defaults for zeros, or the error for a value that makes no sense.
func (cfg Config) filled() (Config, error) {
	if cfg.Quota < 0 || cfg.ClientQuota < 0 || cfg.MaxRegionSize < 0 || cfg.MaxLease < 0 || cfg.Grace < 0 || cfg.HostQuota < 0 || cfg.MaxClients < 0 {
		return cfg, fmt.Errorf("rmem: a negative limit in the configuration, where 0 is the default: Quota %d, HostQuota %d, ClientQuota %d, MaxClients %d, MaxRegionSize %d, MaxLease %v, Grace %v", cfg.Quota, cfg.HostQuota, cfg.ClientQuota, cfg.MaxClients, cfg.MaxRegionSize, cfg.MaxLease, cfg.Grace)
	}
	machine := hostquota.Machine()
	defaultTo(&cfg.Quota, min(defaultQuota, machine.DefaultMemory()))
	defaultTo(&cfg.MaxClients, int(min(mostClients, machine.DefaultConnections(2))))
	defaultTo(&cfg.ClientQuota, cfg.Quota)
	defaultTo(&cfg.MaxRegionSize, cfg.ClientQuota)
	defaultTo(&cfg.MaxLease, defaultHold)
	defaultTo(&cfg.Grace, defaultGrace)
	defaultTo(&cfg.Silence, defaultSilence)
	cfg.MaxRegionSize = min(cfg.MaxRegionSize, math.MaxInt)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg, nil
}

func defaultTo[T int | int64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}
