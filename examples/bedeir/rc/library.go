package rc

import (
	"log/slog"
	"net/netip"
	"time"

	"cinnabar/verbs"
)

// defaultMaxConns bounds the connections of a server that sets no bound itself.
const defaultMaxConns = 64

// Config has the callbacks of a program for [Init]. The zero value is of no use but
// is allowed: it makes connections and does nothing with them.
type Config struct {
	// PreConnection is called before a connection request is accepted, or before
	// the client's is made. This is the place to register memory and to post the
	// first receives. If it fails at a server, the request is rejected.
	PreConnection func(c *Conn) error
	// Connection is called when the connection is established.
	Connection func(c *Conn) error
	// Completion is called for each work request that succeeded.
	Completion func(c *Conn, wc verbs.WC) error
	// Disconnect is called when the connection is over. Its error is nil after an
	// orderly end by either side. Where Disconnect is nil, a server's errors go to
	// the Logger.
	Disconnect func(c *Conn, err error)

	// Listening is called by ServerLoop once, with the address that it listens at;
	// nil: not.
	Listening func(addr netip.AddrPort)
	// Logger gets events that mean nothing here and errors that no callback takes;
	// nil discards them.
	Logger *slog.Logger
	// MaxConns bounds the connections that a ServerLoop serves at a time; 0 is 64.
	MaxConns int
	// Idle ends an established connection on which nothing has completed for so
	// long; 0 is never.
	Idle time.Duration
}

// Library is the initialised library: callbacks, and the one protection domain
// for all connections. All methods are safe for concurrent use, and any number of
// loops may run at the same time.
type Library struct {
	dev *verbs.Device
	pd  *verbs.PD
	cfg Config
}

// Init prepares the library for connections over dev (rc_init), which stays the
// caller's. The caller closes the library after its last loop has returned, and
// dev after that.
func Init(dev *verbs.Device, cfg Config) (*Library, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = defaultMaxConns
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	return &Library{dev: dev, pd: pd, cfg: cfg}, nil
}

// GetPD returns the protection domain of all connections (rc_get_pd). It belongs
// to the library.
func (l *Library) GetPD() *verbs.PD { return l.pd }

// Close releases the protection domain. It fails with [verbs.ErrBusy] while a
// loop runs or memory is registered. A second Close does nothing.
func (l *Library) Close() error { return l.pd.Close() }
