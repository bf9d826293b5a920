package cinnabar

import "fmt"

// rpcPool returns the pool that RPCs are served in if nothing else is said, nil if that is outside pools. Margo's own
// are served there always, so that an engine whose pool is stuck can be told to end.
func (e *Engine) rpcPool(p *procedure) *Pool {
	if e.cfg.RPCPool == "" || p == identityRPC.proc || p == shutdownRPC.proc || p == queryRPC.proc {
		return nil
	}
	return e.Pool(e.cfg.RPCPool) // which nobody may remove
}

// checkRPCPool refuses the name of a pool that is not there.
func (cfg *Config) checkRPCPool() error {
	if cfg.RPCPool == "" {
		return nil
	}
	var names []string
	for _, p := range cfg.poolsInForce() {
		if p.Name == cfg.RPCPool {
			return nil
		}
		names = append(names, p.Name)
	}
	return argumentError("open engine", "", "", "RPCPool is %q, and Pools has %s", cfg.RPCPool, fmt.Sprintf("%q", names))
}
