package sm

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"cinnabar/internal/admission"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// Config configures an endpoint. The zero value of each field stands for its default.
type Config struct {
	// Address is "na+sm", "na+sm://", "na+sm://name", or the same with "sm" in place of "na+sm"; empty is "na+sm". Without
	// a name the endpoint is known by its process and a number, "na+sm://1234-0". C's Mercury finds only those.
	Address string
	// Listen makes the endpoint accept requests. It then creates a region of memory in ShmDir and a socket in SocketDir. Without
	// Listen it has neither, and no peer can connect to it.
	Listen bool
	// Handler handles the requests. Without Listen servers may still send requests to their client: Handler should refuse them, or may
	// be nil, and they are then dropped without a response.
	Handler na.Handler
	// Logger logs violations of the protocol by peers and, at Debug, connections. Nil discards the log.
	Logger *slog.Logger
	// Progress decides how long a goroutine looks for messages without result before it parks; nil: a policy of mode Balanced.
	Progress *progress.Policy
	// ConnectTimeout bounds the connecting to a peer that lives, but has no free place in its region or does not read its socket: 0
	// stands for 10 s.
	ConnectTimeout time.Duration
	// SendTimeout is the time after which messages fail for which a peer has left no room: 0 stands for 30 s, negative for no limit.
	SendTimeout time.Duration
	// Prefix begins the names of regions and sockets: empty stands for "na_sm" (NA_SM_SHM_PREFIX of C's build).
	Prefix string
	// ShmDir is the directory of regions: empty stands for /dev/shm, the only one in which C looks.
	ShmDir string
	// SocketDir is the directory of sockets: empty stands for /tmp (NA_SM_TMP_DIRECTORY of C's build).
	SocketDir string
	// Quota counts the resources of each remote host; nil: a Book without limits.
	Quota *hostquota.Book
	// Admit accepts or refuses the clients that connect; nil: it accepts all. With Admit the endpoint accepts a client only when its
	// datagram has come, because the kernel attaches the credentials to that. Clients in C that never sleep send none, so they are not served.
	Admit *admission.Gate
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail

	// hosts returns the host that a peer's resources are counted for; nil: hostOf does. Tests count clients of one process for several
	// hosts.
	hosts *hostRule
}

// hostRule returns the host that a peer's resources are counted for.
type hostRule struct {
	of func(ident identity, uid uint32) hostquota.Host
}

// Defaults of Config.
const (
	defaultConnect = 10 * time.Second
	defaultSend    = 30 * time.Second
	defaultPrefix  = "na_sm"
	defaultShm     = "/dev/shm"
	defaultSocket  = "/tmp"
)

// withDefaults returns cfg with the defaults in place of zeros.
func (cfg Config) withDefaults() (Config, error) {
	setDefault(&cfg.ConnectTimeout, defaultConnect)
	setDefault(&cfg.SendTimeout, defaultSend)
	setDefault(&cfg.Prefix, defaultPrefix)
	setDefault(&cfg.ShmDir, defaultShm)
	setDefault(&cfg.SocketDir, defaultSocket)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Progress == nil {
		cfg.Progress = progress.New(progress.Balanced)
	}
	if cfg.Quota == nil {
		cfg.Quota = hostquota.NewBook(hostquota.Limits{})
	}
	if cfg.Audit == nil {
		cfg.Audit = audit.New(cfg.Logger)
	}
	switch {
	case cfg.Listen && cfg.Handler == nil:
		return cfg, errors.New("Config.Listen needs a Config.Handler")
	case cfg.ConnectTimeout < 0:
		return cfg, errors.New("Config.ConnectTimeout must not be negative")
	case strings.ContainsAny(cfg.Prefix, "/\x00"):
		return cfg, fmt.Errorf("Config.Prefix %q is not the beginning of a file's name", cfg.Prefix)
	case !filepath.IsAbs(cfg.ShmDir) || !filepath.IsAbs(cfg.SocketDir):
		return cfg, fmt.Errorf("Config.ShmDir %q and Config.SocketDir %q must be absolute", cfg.ShmDir, cfg.SocketDir)
	}
	return cfg, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// parseInit returns the name in Address, "" if it has none.
func parseInit(s string) (name string, err error) {
	switch s {
	case "", "na+sm", "sm", "na+sm://", "sm://":
		return "", nil
	}
	name, err = cutScheme(s)
	if err != nil {
		return "", err
	}
	return name, checkName(name)
}
