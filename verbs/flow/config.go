package flow

import (
	"fmt"
	"log/slog"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

const (
	leastBytes = 64
	mostBytes  = 1 << 30
	mostInline = 1 << 20

	// mostRecords keeps queues within the limit of devices, 32768 work requests: two for each record, and some.
	mostRecords = 16000

	defaultRecords = 128
	defaultBytes   = 1 << 20
	defaultInline  = 1 << 10
	defaultLinger  = 4 * time.Second
	leastAlive     = time.Millisecond
	maxClose       = 5 * time.Second
	minDisconnect  = time.Second

	// answerLimit bounds the time in which a peer must accept the answer to its request, unless Config.Param has a limit, because
	// other peers wait meanwhile. The limits of devices can be more than a minute if the peer has vanished.
	answerLimit = 10 * time.Second

	// firstLimit is how long a peer that has connected may take for its first message, which package flow sends at once.
	firstLimit = 10 * time.Second

	// stagingQuiet is the time without long records after which a sender frees the memory for their copies.
	stagingQuiet = 500 * time.Millisecond

	// quietTime is the time without records after which a connection gives the memory of its ring and of its receives back.
	quietTime = 500 * time.Millisecond

	// quietFrom is the number of bytes of that memory that must have been used since the last time.
	quietFrom = 32 << 10

	// controls is how many receives are kept for messages that are no records: two questions cannot be asked at once
	// without a record, two can be answered, and there is an end.
	controls = 5
)

// Config has the limits of one end of a connection. The zero value has good defaults.
type Config struct {
	// PD is the protection domain of the connection's memory and queue pair, so that records can be sent from the
	// program's own regions ([Conn.SendFrom]); nil: one of its own. Peers of all connections that share a domain reach each
	// other's rings, and all regions of the domain, if they know or guess the keys of 32 bits. PD must therefore be nil
	// for a Listener if its peers do not trust each other.
	PD *verbs.PD

	Records int // largest number of records from the peer that are not released; 0: 128; at most 16000
	Bytes   int // their largest number of bytes, and the size of the ring; 0: 1 MiB; from 64 to 1 GiB
	Inline  int // length of the longest record from the peer that does not lie in the ring, in bytes; 0: 1 KiB, or Bytes if that is less; negative: 0

	// Linger bounds the time for which Close waits until the device has sent all records, which depends on the peer's speed; 0: 4 s,
	// negative: no wait. Close takes a second more at most, or 5 s in all if that is longer.
	Linger time.Duration

	// KeepAlive bounds the time for which the peer's device may be silent. The connection then ends with [ErrSilent], within a
	// quarter of that time more. When nothing has come from the peer for a quarter of the time or two, the connection
	// requests an answer of the peer's device, in which its program has no part. Three quarters of the time must be enough for all
	// transfers that are queued before the answer. 0: for ever.
	KeepAlive time.Duration

	// MaxMemory bounds the bytes that all connections of a Listener together hold for their peers; one connection holds Bytes and
	// about 2 * Records * Inline. One host gets a share of MaxMemory. The Listener refuses and logs connection requests beyond
	// these limits. A connection counts until its Close. 0: half of the machine's memory. Dial ignores MaxMemory.
	MaxMemory int64

	Param  verbs.ConnParam // for the connection; its PrivateData is the package's
	Logger *slog.Logger    // nil: discard
}

// filled returns cfg with defaults for zeros. The error names the field that is out of range.
func (cfg Config) filled() (Config, error) {
	if cfg.Records == 0 {
		cfg.Records = defaultRecords
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = defaultBytes
	}
	if cfg.Inline == 0 {
		cfg.Inline = min(defaultInline, cfg.Bytes)
	}
	cfg.Inline = max(cfg.Inline, 0)
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	if cfg.MaxMemory == 0 {
		cfg.MaxMemory = hostquota.Machine().DefaultMemory()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Records < 1 || cfg.Records > mostRecords:
		return cfg, fmt.Errorf("flow: Config.Records is %d; from 1 to %d", cfg.Records, mostRecords)
	case cfg.Bytes < leastBytes || cfg.Bytes > mostBytes:
		return cfg, fmt.Errorf("flow: Config.Bytes is %d; from %d to %d", cfg.Bytes, leastBytes, mostBytes)
	case cfg.Inline > min(mostInline, cfg.Bytes):
		return cfg, fmt.Errorf("flow: Config.Inline is %d; at most %d, and no more than Bytes", cfg.Inline, mostInline)
	case cfg.KeepAlive < 0 || cfg.KeepAlive > 0 && cfg.KeepAlive < leastAlive:
		return cfg, fmt.Errorf("flow: Config.KeepAlive is %v; 0, or %v and more", cfg.KeepAlive, leastAlive)
	case cfg.Param.PrivateData != nil:
		return cfg, fmt.Errorf("flow: Config.Param has %d bytes of private data, which the protocol needs for itself", len(cfg.Param.PrivateData))
	}
	return cfg, nil
}
