package cinnabar

import (
	"fmt"
	"math"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hostquota"
)

// Limits of an engine that its configuration leaves 0, on a machine with enough memory.
const (
	defaultHandlers      = 4096
	defaultQueued        = 65536
	defaultUnsent        = 65536 // responses that wait for the network
	defaultPulls         = 16384 // arguments that are being fetched
	defaultHandshakes    = 4096  // connections before the peer has identified itself
	defaultTransferStall = 30 * time.Second
	leastMemory          = 32 << 20
)

// Memory of the things that are counted, in bytes. A part of MaxMemory is reserved for as many of each as there may be, and
// the rest is the limit of everything that is counted in bytes.
const (
	requestOverhead = 2 << 10   // beside its two messages
	handlerOverhead = 8 << 10   // the stack of its goroutine
	connectionBase  = 64 << 10  // beside a request that has come in part
	deviceBuffers   = 512 << 10 // the most that the buffers of a connection over an RDMA device have
	handshakeBytes  = 4 << 10
	standardMessage = 4096
)

// Parts of MaxMemory, one in so many, for limits that a configuration leaves 0.
const (
	queuedPart      = 4
	unsentPart      = 8
	connectionsPart = 8
	pullsPart       = 32
	handlersPart    = 32
	handshakesPart  = 64
	bytesPart       = 4 // at least this part must be left for resources that are counted in bytes
)

// requestBytes is the number of bytes that a request holds while it waits, is served, or is answered.
func (cfg *Config) requestBytes() int64 {
	size := int64(requestOverhead)
	for _, n := range []int{cfg.MaxRequest, cfg.MaxResponse} {
		if n <= 0 {
			n = standardMessage
		}
		size += int64(n)
	}
	return size
}

// connectionBytes is the memory of a connection, in bytes. It includes the largest request, because a peer may leave one unfinished on each.
func (cfg *Config) connectionBytes() int64 {
	n := connectionBase + int64(max(cfg.MaxRequest, 0))
	if cfg.onDevice {
		n += deviceBuffers
	}
	return n
}

// fillLimits puts defaults, which depend on the machine, in the place of limits that are 0.
func (cfg *Config) fillLimits() {
	if cfg.MaxMemory == 0 {
		cfg.MaxMemory = defaultMemory()
	}
	each := cfg.requestBytes()
	part := func(most, part, each int64) int { return int(max(1, min(most, cfg.MaxMemory/part/each))) }
	if cfg.Parent == nil {
		defaultTo(&cfg.MaxHandlers, part(defaultHandlers, handlersPart, each+handlerOverhead))
		queues := int64(len(cfg.Pools) + 1)
		defaultTo(&cfg.MaxQueued, part(defaultQueued, queuedPart*queues, each))
		for i := range cfg.Pools {
			cfg.Pools[i].fill(part(defaultQueued, queuedPart*queues, each))
		}
	}
	defaultTo(&cfg.MaxConnections, part(hostquota.Machine().DefaultConnections(2), connectionsPart, cfg.connectionBytes()))
	defaultTo(&cfg.TransferStall, defaultTransferStall)
	if free := cfg.MaxMemory - cfg.reserved(); free > 0 {
		if cfg.OverflowBudget == 0 {
			cfg.OverflowBudget = min(hg.DefaultOverflowBudget, free)
		}
		if cfg.MaxOverflow == 0 {
			cfg.MaxOverflow = min(hg.DefaultMaxOverflow, free/2) // because one host gets little more, see hostquota.MostOf
		}
	}
}

// defaultMemory is the MaxMemory of this machine.
func defaultMemory() int64 { return max(leastMemory, hostquota.Machine().DefaultMemory()) }

// unsent and pulls are limits that have no field.
func (cfg *Config) unsent() int64 {
	return max(1, min(defaultUnsent, cfg.MaxMemory/unsentPart/cfg.requestBytes()))
}

func (cfg *Config) pulls() int64 {
	return max(1, min(defaultPulls, cfg.MaxMemory/pullsPart/cfg.requestBytes()))
}

// handshakes is at most an eighth of the open files, because each has a descriptor.
func (cfg *Config) handshakes() int64 {
	return max(1, min(defaultHandshakes, cfg.MaxMemory/handshakesPart/handshakeBytes, hostquota.Machine().Files/8))
}

// reserved is the part of MaxMemory for resources that are counted by number, once the limits are filled in.
func (cfg *Config) reserved() int64 {
	each := cfg.requestBytes()
	sum := times(cfg.unsent()+cfg.pulls(), each)
	if cfg.Parent == nil {
		sum = plus(sum, times(int64(cfg.MaxHandlers), each+handlerOverhead), times(int64(max(cfg.MaxQueued, 0)), each))
		for _, p := range cfg.Pools {
			sum = plus(sum, times(int64(max(p.Queue, 0)), each))
		}
	}
	return plus(sum, times(int64(cfg.MaxConnections), cfg.connectionBytes()), cfg.handshakes()*handshakeBytes)
}

// times and plus stop at the largest number.
func times(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

func plus(list ...int64) (sum int64) {
	for _, n := range list {
		if n > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += n
	}
	return sum
}

// checkLimits refuses limits that cannot be meant, or that do not fit into MaxMemory.
func (cfg *Config) checkLimits() error {
	const op = "open engine"
	switch {
	case cfg.MaxHandlers < 0:
		return argumentError(op, "", "", "MaxHandlers is %d; it is a count, or 0 for %d", cfg.MaxHandlers, defaultHandlers)
	case cfg.MaxConnections < 0:
		return argumentError(op, "", "", "MaxConnections is %d; it is a count, or 0 for as many as the machine allows", cfg.MaxConnections)
	case min(cfg.MaxOverflow, cfg.OverflowBudget) < 0:
		return argumentError(op, "", "", "MaxOverflow or OverflowBudget is %d; it is a count of bytes, or 0 for the default", min(cfg.MaxOverflow, cfg.OverflowBudget))
	case cfg.MaxMemory < leastMemory:
		return argumentError(op, "", "", "MaxMemory is %d; it is at least %d bytes, or 0 for half of the machine's memory", cfg.MaxMemory, leastMemory)
	}
	most := cfg.MaxMemory - cfg.MaxMemory/bytesPart
	if need := cfg.reserved(); need > most {
		field, n, bytes := cfg.largestLimit()
		return argumentError(op, "", "", "the limits on counts need %d bytes, and at most %d of MaxMemory, which is %d, are for them; most is for %s, which is %d and needs %d bytes: lower it, or raise MaxMemory",
			need, most, cfg.MaxMemory, field, n, bytes)
	}
	free := cfg.MaxMemory - cfg.reserved()
	switch most := hostquota.Most(free, 0); {
	case cfg.OverflowBudget > free:
		return argumentError(op, "", "", "OverflowBudget is %d; at most %d bytes of MaxMemory, which is %d, are left for it: lower it, or raise MaxMemory", cfg.OverflowBudget, free, cfg.MaxMemory)
	case cfg.MaxOverflow > most:
		return argumentError(op, "", "", "MaxOverflow is %d; at most %d bytes of MaxMemory, which is %d, are left for one host: lower it, or raise MaxMemory", cfg.MaxOverflow, most, cfg.MaxMemory)
	}
	return nil
}

// smPlaces is the number of connections for which C's region of shared memory has room.
const smPlaces = 255

// roomForQueue returns how long the queue of a pool is that is added while the engine runs.
func (e *Engine) roomForQueue() int {
	free := e.cfg.quota.Limit(hostquota.Memory) - e.cfg.quota.Used(hostquota.Memory)
	return int(max(1, min(defaultQueued, free/queuedPart/e.cfg.requestBytes())))
}

// reserveQueue counts the queue of a pool as memory until giveBack is called.
func (e *Engine) reserveQueue(p PoolConfig) (giveBack func(), err error) {
	own, need := e.cfg.quota.Account(hostquota.Host{}), times(int64(max(p.Queue, 0)), e.cfg.requestBytes())
	if free := e.cfg.quota.Limit(hostquota.Memory) - e.cfg.quota.Used(hostquota.Memory); need > free/2 {
		return nil, &Error{Op: "add pool", Code: codes.NoMem, Err: fmt.Errorf("the Queue of pool %q is %d and needs %d bytes, and at most %d of Config.MaxMemory are left for it: lower it, or raise MaxMemory",
			p.Name, p.Queue, need, free/2)}
	}
	if need == 0 {
		return func() {}, nil
	}
	if err := own.Take(hostquota.Memory, need); err != nil {
		return nil, &Error{Op: "add pool", Code: codes.NoMem, Err: err}
	}
	return func() { own.Give(hostquota.Memory, need) }, nil
}

// onSharedMemory returns cfg, which may be nil, with the limits of na+sm.
func (cfg *Config) onSharedMemory() (*Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	switch {
	case c.MaxConnections > smPlaces:
		return nil, argumentError("open engine", "", "", "MaxConnections is %d; over na+sm there are at most %d, so lower it, or leave it 0", c.MaxConnections, smPlaces)
	case c.MaxConnections == 0:
		c.MaxConnections = min(smPlaces, c.filled().MaxConnections)
	}
	return &c, nil
}

// largestLimit names the limit on a count that needs most memory.
func (cfg *Config) largestLimit() (field string, n, bytes int64) {
	each := cfg.requestBytes()
	consider := func(name string, count int, each int64) {
		if need := times(int64(count), each); need > bytes {
			field, n, bytes = name, int64(count), need
		}
	}
	consider("MaxConnections", cfg.MaxConnections, cfg.connectionBytes())
	if cfg.Parent == nil {
		consider("MaxHandlers", cfg.MaxHandlers, each+handlerOverhead)
		consider("MaxQueued", cfg.MaxQueued, each)
		for _, p := range cfg.Pools {
			consider("Queue of pool "+p.Name, p.Queue, each)
		}
	}
	return field, n, bytes
}

// limits returns the limits of the engine's Book. Handlers and queued requests are counted by each pool itself.
func (cfg *Config) limits() (l hostquota.Limits) {
	l[hostquota.Connections] = int64(cfg.MaxConnections)
	l[hostquota.Handshakes] = cfg.handshakes()
	l[hostquota.Unsent] = cfg.unsent()
	l[hostquota.Pulls] = cfg.pulls()
	l[hostquota.Memory] = cfg.MaxMemory - cfg.reserved()
	return l
}

// WithDefaults returns a copy of cfg, which may be nil, that has the values which an engine on this machine would have in
// place of zeros.
func (cfg *Config) WithDefaults() *Config {
	c := cfg.filled()
	return &c
}
