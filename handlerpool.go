package cinnabar

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
	"cinnabar/internal/sched"
	"cinnabar/stats"
)

// PoolKind is the order in which the requests of a pool get their workers, if they have to wait for one. A handler that
// has begun and waits for a call or transfer goes on as soon as that has ended, in pools of every kind. Its text is the word that
// Margo's configuration has for the kind.
type PoolKind string

// The kinds of pools. An empty PoolKind stands for PoolFIFO.
const (
	// PoolFIFO lets the peers take turns; the requests of one peer come in their order (Argobots' fifo and fifo_wait).
	PoolFIFO PoolKind = "fifo_wait"
	// PoolPriority prefers requests of RPCs that are registered with a higher [WithPriority]; among equals it is as
	// PoolFIFO. So that others do not starve, each eighth turn is that of the priority that has waited longest for one. Margo's
	// prio_wait, which prefers handlers that have begun, has no priorities beyond that.
	PoolPriority PoolKind = "prio_wait"
	// PoolEarliestFirst is the order in which requests arrive, without regard to the peer: peers do not take turns. A full
	// queue refuses the newest (Margo's earliest_first).
	PoolEarliestFirst PoolKind = "earliest_first"
)

// poolKinds are the kinds as the pools themselves have them.
var poolKinds = map[PoolKind]sched.Kind{PoolFIFO: sched.FIFO, PoolPriority: sched.Priority, PoolEarliestFirst: sched.EarliestFirst}

// PoolConfig describes a pool: a group of workers for handlers that should neither delay nor be delayed by others.
type PoolConfig struct {
	Name    string
	Workers int      // handlers of the pool that run at once, not counting those that wait for a call or transfer; 0: 1
	Queue   int      // requests that wait for a worker; those beyond it are answered codes.Again; 0: as Config.MaxQueued, negative: none wait
	Kind    PoolKind // the order in which they get one; empty: PoolFIFO
}

// fill puts defaults in the place of zeros; queue is that of Queue.
func (p *PoolConfig) fill(queue int) {
	defaultTo(&p.Workers, 1)
	defaultTo(&p.Queue, queue)
	p.Kind = cmp.Or(p.Kind, PoolFIFO)
}

// check returns an error of op that names the first field that is out of range.
func (p *PoolConfig) check(op string) error {
	switch {
	case p.Name == "":
		return argumentError(op, "", "", "a pool has no name")
	case p.Workers < 0:
		return argumentError(op, "", "", "pool %q has %d workers; it is a count, or 0 for 1", p.Name, p.Workers)
	}
	if _, known := poolKinds[cmp.Or(p.Kind, PoolFIFO)]; !known {
		return argumentError(op, "", "", "pool %q is of kind %q; the kinds are %q, %q and %q", p.Name, p.Kind, PoolFIFO, PoolPriority, PoolEarliestFirst)
	}
	return nil
}

// HandlerPool is a group of workers for handlers, made by [Config].Pools or [Engine.AddPool] and found by [Engine.LookupPool]. It is
// safe for concurrent use.
type HandlerPool struct {
	owner *pools
	cfg   PoolConfig
	pool  *sched.Pool

	removed func() // gives back the memory that is reserved for the queue
}

// Config returns the configuration of the pool, with defaults in the place of zeros.
func (p *HandlerPool) Config() PoolConfig { return p.cfg }

// stats returns a snapshot of the counters of the pool. The counts begin with the pool.
func (p *HandlerPool) stats() stats.Pool { return stats.Pool(p.pool.Stats()) }

// pools are the pools of an engine, and of those that have it as Config.Parent. They have no goroutines of their own, so
// the engines may end in any order.
type pools struct {
	alive int         // PoolConfig.Alive of all of them
	other *sched.Pool // runs the handlers that are in no named pool

	mu invariants.Mutex
	// +checklocks:mu
	named []*HandlerPool // in the order in which they were made
	// +checklocks:mu
	users []*Engine
	// +checklocks:mu
	warnAfter time.Duration // see Config.HandlerWarning
}

// newPools makes the pools of a configuration, which has been checked.
func newPools(cfg *Config) *pools {
	ps := &pools{alive: cfg.MaxHandlers, other: sched.NewPool(sched.PoolConfig{
		Workers: cfg.MaxHandlers, Alive: cfg.MaxHandlers, Queue: cfg.MaxQueued,
	})}
	for _, p := range cfg.Pools {
		ps.add(p, func() {}) // its queue is in Config.reserved
	}
	ps.warn(cfg.HandlerWarning)
	return ps
}

// join makes e one of the engines that use the pools. Its RPCPool, which was there when the configuration was checked, may
// be a parent's and removed since.
func (ps *pools) join(e *Engine) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if name := e.cfg.RPCPool; name != "" && ps.findLocked(name) == nil {
		return argumentError("open engine", "", "", "RPCPool is %q, which the parent has removed", name)
	}
	ps.users = append(ps.users, e)
	return nil
}

// leave undoes join. It ends the watch of slow handlers with the last engine.
func (ps *pools) leave(e *Engine) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.users = slices.DeleteFunc(ps.users, func(u *Engine) bool { return u == e })
	if len(ps.users) == 0 {
		ps.watchLocked(0)
	}
}

// warn sets after how long handlers are reported; 0: never.
func (ps *pools) warn(after time.Duration) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.warnAfter = after
	ps.watchLocked(after)
}

// watchLocked makes the watch of each pool report handlers of this age; 0 ends the watches.
// +checklocks:ps.mu
func (ps *pools) watchLocked(after time.Duration) {
	ps.other.Watch(after, warnSlow)
	for _, p := range ps.named {
		p.pool.Watch(after, warnSlow)
	}
}

// warning returns the time that warn has set last.
func (ps *pools) warning() time.Duration {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.warnAfter
}

// add makes another pool; nil if the name is taken.
func (ps *pools) add(cfg PoolConfig, removed func()) *HandlerPool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.findLocked(cfg.Name) != nil {
		return nil
	}
	p := &HandlerPool{owner: ps, cfg: cfg, removed: removed, pool: sched.NewPool(sched.PoolConfig{
		Name: cfg.Name, Workers: cfg.Workers, Alive: ps.alive, Queue: cfg.Queue, Kind: poolKinds[cfg.Kind],
	})}
	p.pool.Watch(ps.warnAfter, warnSlow)
	ps.named = append(ps.named, p)
	return p
}

func (ps *pools) find(name string) *HandlerPool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.findLocked(name)
}

// +checklocks:ps.mu
func (ps *pools) findLocked(name string) *HandlerPool {
	i := slices.IndexFunc(ps.named, func(p *HandlerPool) bool { return p.cfg.Name == name })
	if i < 0 {
		return nil
	}
	return ps.named[i]
}

func (ps *pools) all() []*HandlerPool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Clone(ps.named)
}

// cores returns the pools themselves, first that of handlers in no pool with a name.
func (ps *pools) cores() []*sched.Pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	list := []*sched.Pool{ps.other}
	for _, p := range ps.named {
		list = append(list, p.pool)
	}
	return list
}

// bind calls f, which binds something to p, unless p has been removed. p is nil if f binds to no pool with a name.
func (ps *pools) bind(p *HandlerPool, f func() error) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p != nil && !slices.Contains(ps.named, p) {
		return errNotMyPool
	}
	return f()
}

// errNotMyPool is the error for a pool of another engine, or one that has been removed.
var errNotMyPool = fmt.Errorf("%w: the pool is not, or no longer, one of this engine's; Config.Pools and Engine.AddPool make them, Engine.LookupPool finds them", codes.InvalidArg)

// remove removes a pool that nothing uses.
func (ps *pools) remove(name string) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.findLocked(name)
	if p == nil {
		return &Error{Op: "remove pool", Code: codes.NoEntry, Err: fmt.Errorf("there is no pool %q", name)}
	}
	if user := ps.userLocked(p); user != "" {
		return &Error{Op: "remove pool", Code: codes.Busy, Err: fmt.Errorf("pool %q is used by %s", name, user)}
	}
	p.pool.Watch(0, nil)
	p.removed()
	ps.named = slices.DeleteFunc(ps.named, func(q *HandlerPool) bool { return q == p })
	return nil
}

// userLocked names a user of p and the remedy; it returns "" if p has no user.
//
// +checklocks:ps.mu
func (ps *pools) userLocked(p *HandlerPool) string {
	for _, e := range ps.users {
		if e.cfg.RPCPool == p.cfg.Name {
			return "an engine as its Config.RPCPool; close that first" // which may not have an address yet
		}
		for _, entry := range e.handlers.table.Entries() {
			if entry.Value.pool == p.pool {
				return fmt.Sprintf("RPC %q of %v; remove that first", entry.Value.label(), e.Addr())
			}
		}
		if e.timers.use(p.pool) {
			return fmt.Sprintf("a timer of %v that is started; cancel that first", e.Addr())
		}
	}
	if s := p.stats(); s.Running+s.Waiting+s.Queued > 0 {
		return fmt.Sprintf("%d handlers and requests; wait until they are done", s.Running+s.Waiting+s.Queued)
	}
	return ""
}

// LookupPool returns the engine's pool of that name, nil if there is none (margo_find_pool_by_name).
func (e *Engine) LookupPool(name string) *HandlerPool { return e.handlers.pools.find(name) }

// AddPool makes another pool while the engine runs (margo_add_pool_from_json). The error names the invalid field of cfg, or
// says that the name is taken (codes.Exist).
func (e *Engine) AddPool(cfg PoolConfig) (*HandlerPool, error) {
	cfg.fill(e.roomForQueue())
	if err := cfg.check("add pool"); err != nil {
		return nil, err
	}
	if err := e.begin(); err != nil {
		return nil, errorFrom("add pool", "", "", err)
	}
	defer e.end()
	giveBack, err := e.reserveQueue(cfg)
	if err != nil {
		return nil, err
	}
	p := e.handlers.pools.add(cfg, giveBack)
	if p == nil {
		giveBack()
		return nil, &Error{Op: "add pool", Code: codes.Exist, Err: fmt.Errorf("there is a pool %q already; use another name, or RemovePool first", cfg.Name)}
	}
	return p, nil
}

// RemovePool removes a pool, whether AddPool or Config.Pools made it (margo_remove_pool_by_name). It is refused with codes.Busy while it is
// the Config.RPCPool of an engine, an RPC is registered for it, a function of AfterFunc waits in it, or a request is in it.
func (e *Engine) RemovePool(name string) error { return e.handlers.pools.remove(name) }

// SetHandlerWarning changes Config.HandlerWarning of the running engine, and of the engines that share its pools; 0: no warnings.
func (e *Engine) SetHandlerWarning(d time.Duration) error {
	const op = "set handler warning"
	if d < 0 {
		return argumentError(op, "", "", "HandlerWarning is %v; it is a duration, or 0 for no warnings", d)
	}
	if err := e.begin(); err != nil {
		return errorFrom(op, "", "", err)
	}
	defer e.end()
	e.handlers.pools.warn(d)
	return nil
}

// WithPool makes the workers of p run the handlers of the RPC, or the function of AfterFunc. The pool must be the same engine's or its parent's.
func WithPool(p *HandlerPool) HandleOption {
	return handleOption(func(s *service) error {
		if p == nil || p.owner != s.e.handlers.pools {
			return argumentError("register", s.label(), "", "%w", errNotMyPool)
		}
		s.named, s.pool = p, p.pool
		return nil
	})
}

// WithPriority sets the urgency of the RPC's requests that wait for a worker of a pool of kind PoolPriority, from -32768
// to 32767; higher is earlier, and 0 is that of RPCs without this option. It means nothing in other pools.
func WithPriority(n int) HandleOption {
	return handleOption(func(s *service) error {
		if n != int(int16(n)) {
			return argumentError("register", s.label(), "", "priority %d; priorities go from %d to %d", n, math.MinInt16, math.MaxInt16)
		}
		s.priority = int16(n)
		return nil
	})
}

// described is the description of a request or function in a pool, for logs and for [Engine.State].
type described interface {
	// describe may be called at any time, also after the work is done.
	describe() (e *Engine, label, peer string)
}

// describe implements [described].
func (s *scope) describe() (e *Engine, label, peer string) {
	return s.svc.e, s.svc.label(), s.from.String()
}

// warnSlow reports a handler that takes long: see Config.HandlerWarning.
func warnSlow(s sched.JobInfo) {
	d, ok := s.About.(described)
	if !ok {
		return
	}
	e, label, peer := d.describe()
	e.log.Warn("handler takes long", logRPC, label, logPeer, peer, logAge, s.Run, logState, s.State.String())
}

// administrative begins the names of RPCs that look after an engine, as Margo's own do.
const administrative = "__"

// rpcPool returns the pool that RPCs are served in if nothing else is said, nil if that is outside pools. RPCs that
// look after the engine are served there always, so that peers can shut down an engine even if a pool is stuck.
func (e *Engine) rpcPool(p *procedure) *HandlerPool {
	if e.cfg.RPCPool == "" || strings.HasPrefix(p.name, administrative) {
		return nil
	}
	return e.LookupPool(e.cfg.RPCPool) // never nil, because RemovePool refuses this pool
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
		for _, p := range cfg.Parent.handlers.pools.all() {
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
