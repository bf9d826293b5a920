package conf

import "fmt"

// primary adds the pool and the execution stream that every instance has, where the document leaves them out
// (__margo_abt_init_from_json), and refuses a document that has them otherwise than C allows.
func (p *parser) primary(r *reader) {
	pool, stream := p.Pool(Primary), p.Xstream(Primary)
	if stream < 0 {
		p.addPrimary()
		return
	}
	sub := &reader{path: "argobots", fault: r.fault}
	switch first := p.Xstreams[stream].Pools[0]; {
	case pool < 0:
		sub.failf("pools", "the xstream %s is given without the pool %s; give that too, or neither", Primary, Primary)
	case pool != first:
		sub.failf("xstreams", "the first pool of %s must be %s, not %q", Primary, Primary, p.Pools[first].Name)
	}
}

// addPrimary adds the primary pool, unless it is there, and the primary execution stream.
func (c *Config) addPrimary() {
	pool := c.Pool(Primary)
	if pool < 0 {
		pool = len(c.Pools)
		c.Pools = append(c.Pools, Pool{Kind: "fifo_wait", Name: Primary, Access: "mpmc"})
	}
	c.Xstreams = append(c.Xstreams, Xstream{Name: Primary, Scheduler: "basic_wait", Pools: []int{pool}})
	c.ProgressPool, c.RPCPool = pool, pool
}

// addPool adds a pool without a name of its own and returns its index.
func (c *Config) addPool() int {
	name := unusedName("__pool_%d__", len(c.Pools), c.Pool)
	c.Pools = append(c.Pools, Pool{Kind: "fifo_wait", Name: name, Access: "mpmc"})
	return len(c.Pools) - 1
}

// addXstreams adds n execution streams that serve a pool.
func (c *Config) addXstreams(n, pool int) {
	for range n {
		name := unusedName("__xstream_%d__", len(c.Xstreams), c.Xstream)
		c.Xstreams = append(c.Xstreams, Xstream{Name: name, Scheduler: "basic_wait", Pools: []int{pool}})
	}
}

// progressPool resolves progress_pool, or else use_progress_thread (margo_init_ext). given is how many pools the
// document has.
func (p *parser) progressPool(r *reader, given int) {
	var own bool
	r.boolean("use_progress_thread", &own)
	n, named := r.any("progress_pool")
	p.ProgressPool = p.Pool(Primary)
	switch {
	case named && n.kind == text && n.text == Primary:
	case named:
		p.ProgressPool = p.reference(r, "progress_pool", n, given)
	case own:
		p.ProgressPool = p.addPool()
		p.addXstreams(1, p.ProgressPool)
	}
}

// rpcPool resolves rpc_pool, or else rpc_thread_count.
func (p *parser) rpcPool(r *reader, given int) {
	var threads int64
	r.integer("rpc_thread_count", &threads, -maxCount, maxXstreams)
	n, named := r.any("rpc_pool")
	p.RPCPool = p.Pool(Primary)
	switch {
	case named && n.kind == text && n.text == Primary:
	case named:
		p.RPCPool = p.reference(r, "rpc_pool", n, given)
	case threads < 0:
		p.RPCPool = p.ProgressPool
	case threads > 0:
		p.RPCPool = p.addPool()
		p.addXstreams(int(threads), p.RPCPool)
	}
}

// SetPools replaces pools and execution streams: the primary ones, and for each of the others its own number of
// streams. Progress and RPCs keep their pools, by name, where those are still there, and otherwise have the primary one.
// The error is an [*Error] about more streams than a document may have; c is as it was then.
func (c *Config) SetPools(list []Pool, streams []int) error {
	most := maxXstreams - 1 // besides the primary one
	for i, n := range streams {
		if n > most {
			return &Error{Key: "argobots.xstreams", Reason: fmt.Sprintf("%d workers of %q are too many; at most %d in all pools", n, cut(list[i].Name), maxXstreams-1)}
		}
		most -= n
	}
	progress, rpc := c.Pools[c.ProgressPool].Name, c.Pools[c.RPCPool].Name
	c.Pools, c.Xstreams = nil, nil
	c.addPrimary()
	for i, p := range list {
		c.Pools = append(c.Pools, p)
		c.addXstreams(streams[i], len(c.Pools)-1)
	}
	c.ProgressPool, c.RPCPool = max(c.Pool(progress), 0), max(c.Pool(rpc), 0)
	return nil
}
