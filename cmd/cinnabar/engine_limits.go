package main

import (
	"math"

	"github.com/spf13/pflag"

	"cinnabar"
)

// engineLimits bound the memory and the connections that peers may make a server's engine hold.
type engineLimits struct {
	memoryText  string
	connections int
}

// register adds the options to a command.
func (l *engineLimits) register(f *pflag.FlagSet) {
	f.StringVar(&l.memoryText, "max-memory", "", "memory that all peers together may make the server hold (default half of the machine's, see cinnabar info)")
	f.IntVar(&l.connections, "max-connections", 0, "connections of all peers together, of which one host gets a part (default see cinnabar info)")
}

// config returns the configuration of the engine. The engine refuses limits that are too small.
func (l *engineLimits) config() (*cinnabar.Config, error) {
	cfg := &cinnabar.Config{MaxConnections: l.connections}
	if l.connections < 0 {
		return nil, usagef("invalid --max-connections %d: it is positive, or 0 for the default", l.connections)
	}
	if l.memoryText != "" {
		n, err := parseSize("--max-memory", l.memoryText, 1, math.MaxInt64/2)
		if err != nil {
			return nil, err
		}
		cfg.MaxMemory = n
	}
	return cfg, nil
}
