package sm

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// Config says how an endpoint is opened. The zero value of each field is its default.
type Config struct {
	// Address is "na+sm", "na+sm://", "na+sm://name", or the same with "sm" in place of "na+sm"; empty is "na+sm". Without
	// a name the endpoint is known by its process and a number, "na+sm://1234-0". C's Mercury finds only those.
	Address string
	// Listen has requests taken, for which the endpoint puts a region of memory into ShmDir and a socket into SocketDir.
	// Without it the endpoint has neither, and no peer can reach it first.
	Listen bool
	// Handler takes the requests. Without Listen it is to refuse those that servers send to their client, or may be nil:
	// then they are dropped unanswered.
	Handler na.Handler
	// Logger is told of peers that break the protocol and, at Debug, of connections. Nil discards.
	Logger *slog.Logger
	// Spin is for how long a goroutine looks for messages without result before it parks: 0 stands for 50 µs, or 40 µs
	// where there are two processors, or no time where there is one; negative for no time. Spinning that does not pay is given up.
	Spin time.Duration
	// ConnectTimeout bounds an attempt to connect to a peer that lives but has no place left, or that does not empty its
	// socket: 0 stands for 10 s.
	ConnectTimeout time.Duration
	// SendTimeout is for how long a peer may leave no room for messages before they fail: 0 stands for 30 s, negative
	// for ever.
	SendTimeout time.Duration
	// Prefix begins the names of regions and sockets: empty stands for "na_sm" (NA_SM_SHM_PREFIX of C's build).
	Prefix string
	// ShmDir is where regions are: empty stands for /dev/shm, which is the only place where C looks.
	ShmDir string
	// SocketDir is where sockets are: empty stands for /tmp (NA_SM_TMP_DIRECTORY of C's build).
	SocketDir string
	// Quota counts what each remote host holds; nil: a Book without limits.
	Quota *hostquota.Book
	// Audit counts and logs connections and refusals; nil: a Trail of its own, on Logger.
	Audit *audit.Trail

	// hosts says which host a peer's resources are counted for; nil: hostOf does. Tests have clients of one process count
	// for several.
	hosts *hostRule
}

// hostRule returns the host that a peer's resources are counted for.
type hostRule struct {
	of func(who identity, uid uint32) hostquota.Host
}

// Defaults of Config.
const (
	defaultSpin    = 50 * time.Microsecond
	defaultSpinTwo = 40 * time.Microsecond // with two processors
	defaultConnect = 10 * time.Second
	defaultSend    = 30 * time.Second
	defaultPrefix  = "na_sm"
	defaultShm     = "/dev/shm"
	defaultSocket  = "/tmp"
)

// withDefaults returns cfg with what is in force in place of zeros. procs is how many processors there are.
func (cfg Config) withDefaults(procs int) (Config, error) {
	switch {
	case cfg.Spin != 0:
	case procs == 1:
		cfg.Spin = -1
	case procs == 2:
		cfg.Spin = defaultSpinTwo
	}
	setDefault(&cfg.Spin, defaultSpin)
	setDefault(&cfg.ConnectTimeout, defaultConnect)
	setDefault(&cfg.SendTimeout, defaultSend)
	setDefault(&cfg.Prefix, defaultPrefix)
	setDefault(&cfg.ShmDir, defaultShm)
	setDefault(&cfg.SocketDir, defaultSocket)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
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

// parseInit returns the name that Address asks for, "" if none.
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
