package cinnabar

import (
	"fmt"
	"strings"
)

// administrative begins the names of RPCs that look after an engine, as Margo's own do.
const administrative = "__"

// rpcPool returns the pool that RPCs are served in if nothing else is said, nil if that is outside pools. RPCs that
// look after the engine are served there always, so that an engine whose pool is stuck can be asked to end.
func (e *Engine) rpcPool(p *procedure) *HandlerPool {
	if e.cfg.RPCPool == "" || strings.HasPrefix(p.name, administrative) {
		return nil
	}
	return e.LookupPool(e.cfg.RPCPool) // which nobody may remove
}

// checkRPCPool refuses the name of a pool that is not there.
func (cfg *Config) checkRPCPool() error {
	if cfg.RPCPool == "" {
		return nil
	}
	var names []string
	pools := cfg.Pools
	if cfg.Parent != nil {
		pools = nil
		for _, p := range cfg.Parent.Pools() {
			pools = append(pools, p.Config())
		}
	}
	for _, p := range pools {
		if p.Name == cfg.RPCPool {
			return nil
		}
		names = append(names, p.Name)
	}
	return argumentError("open engine", "", "", "RPCPool is %q, and Pools has %s", cfg.RPCPool, fmt.Sprintf("%q", names))
}
