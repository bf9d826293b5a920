package regmem

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"sync"

	"cinnabar/internal/hostmem"
)

// CacheConfig is how a Cache registers and how much it keeps.
type CacheConfig[R Region] struct {
	// Register registers memory of the program's, which must stay alive and in place until Release, as PD.RegMR does by
	// pinning it. It is called without locks.
	Register func([]byte) (R, error)
	Release  func(R) error

	MaxBytes   int64 // kept registered without being in use; 0: 256 MiB
	MaxRegions int   // the same, counted; 0: 1024
}

// Cache keeps registrations of programs' own memory, so that a buffer which is used again and again is registered once.
// The memory of a kept registration is pinned: the garbage collector cannot reuse it, so that a kept
// registration always stands for the bytes that it was made for. Memory that the program maps itself is another matter: call
// Flush before it is unmapped. All methods are safe for concurrent use.
type Cache[R Region] struct {
	cfg CacheConfig[R]

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	entries []*cached[R] // by their first address
	// +checklocks:mu
	longest uint64 // no entry has more bytes
	// +checklocks:mu
	idle list.List // of *cached, the one used last in front
	// +checklocks:mu
	idleBytes int64
	// +checklocks:mu
	stat CacheStats
}

// CacheStats counts the work of a Cache.
type CacheStats struct {
	Hits          uint64 // uses of a registration that was there
	Registrations uint64 // made
	Releases      uint64 // given up
	Regions       int    // registered now
	InUse         int    // of these, in use
	Bytes         int64  // registered now
}

// cached is a registration that is kept.
type cached[R Region] struct {
	region    R
	addr, end uint64
	uses      int
	idle      *list.Element // nil while in use
}

func (e *cached[R]) size() int64 { return int64(e.end - e.addr) }

// Lease is the use of a registration. It is released once.
type Lease[R Region] struct {
	cache  *Cache[R]
	entry  *cached[R] // nil once released; guarded by the cache's lock
	region R
	offset int
}

const (
	defaultCacheBytes   = 256 << 20
	defaultCacheRegions = 1024
)

// NewCache returns an empty cache.
func NewCache[R Region](cfg CacheConfig[R]) (*Cache[R], error) {
	if cfg.Register == nil || cfg.Release == nil {
		return nil, errors.New("regmem: a cache needs CacheConfig.Register and CacheConfig.Release")
	}
	if cfg.MaxBytes < 0 || cfg.MaxRegions < 0 {
		return nil, fmt.Errorf("regmem: a negative limit of a cache: MaxBytes %d, MaxRegions %d", cfg.MaxBytes, cfg.MaxRegions)
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultCacheBytes
	}
	if cfg.MaxRegions == 0 {
		cfg.MaxRegions = defaultCacheRegions
	}
	return &Cache[R]{cfg: cfg}, nil
}

// Acquire returns a registration that covers buf: one that is there, or a new one.
func (c *Cache[R]) Acquire(buf []byte) (*Lease[R], error) {
	if len(buf) == 0 {
		return nil, errors.New("regmem: no bytes to register")
	}
	addr := hostmem.Addr(buf)
	end := addr + uint64(len(buf))
	c.mu.Lock()
	if e := c.findLocked(addr, end); e != nil || c.closed {
		defer c.mu.Unlock()
		if c.closed {
			return nil, fmt.Errorf("regmem: cache: %w", ErrClosed)
		}
		c.stat.Hits++
		return c.useLocked(e, addr), nil
	}
	c.mu.Unlock()
	region, err := c.cfg.Register(buf)
	if err != nil {
		return nil, fmt.Errorf("regmem: register %d bytes: %w", len(buf), err)
	}
	return c.enter(&cached[R]{region: region, addr: addr, end: end})
}

// enter adds a registration that is in use. Another goroutine may have registered the same memory meanwhile; then there
// are two.
func (c *Cache[R]) enter(e *cached[R]) (*Lease[R], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stat.Registrations++
	if c.closed {
		c.stat.Releases++
		return nil, errors.Join(fmt.Errorf("regmem: cache: %w", ErrClosed), c.cfg.Release(e.region))
	}
	i, _ := slices.BinarySearchFunc(c.entries, e.addr, byAddress)
	c.entries = slices.Insert(c.entries, i, e)
	c.longest = max(c.longest, e.end-e.addr)
	c.stat.Bytes += e.size()
	return c.useLocked(e, e.addr), nil
}

func byAddress[R Region](e *cached[R], addr uint64) int {
	switch {
	case e.addr < addr:
		return -1
	case e.addr > addr:
		return 1
	}
	return 0
}

// findLocked returns a registration that covers [addr, end), or nil.
//
// +checklocks:c.mu
func (c *Cache[R]) findLocked(addr, end uint64) *cached[R] {
	i, _ := slices.BinarySearchFunc(c.entries, addr+1, byAddress) // the first that begins behind addr
	for i--; i >= 0 && addr-c.entries[i].addr < c.longest; i-- {
		if c.entries[i].end >= end {
			return c.entries[i]
		}
	}
	return nil
}

// +checklocks:c.mu
func (c *Cache[R]) useLocked(e *cached[R], addr uint64) *Lease[R] {
	if e.idle != nil {
		c.idle.Remove(e.idle)
		e.idle = nil
		c.idleBytes -= e.size()
	}
	e.uses++
	return &Lease[R]{cache: c, entry: e, region: e.region, offset: int(addr - e.addr)}
}

// Region returns the registration.
func (l *Lease[R]) Region() R { return l.region }

// Offset returns where in the registration the memory begins that Acquire was given, in bytes.
func (l *Lease[R]) Offset() int { return l.offset }

// Release ends the use. The registration is kept for the next one, unless there are too many: then those that have not
// been used for longest are released. It returns the errors of these releases, and ErrDoubleFree if l was released before.
func (l *Lease[R]) Release() error {
	c := l.cache
	c.mu.Lock()
	e := l.entry
	l.entry = nil
	if e == nil {
		c.mu.Unlock()
		return fmt.Errorf("regmem: lease: %w", ErrDoubleFree)
	}
	if e.uses--; e.uses == 0 {
		e.idle = c.idle.PushFront(e)
		c.idleBytes += e.size()
	}
	keepBytes, keepRegions := c.cfg.MaxBytes, c.cfg.MaxRegions
	if c.closed {
		keepBytes, keepRegions = 0, 0
	}
	victims := c.evictLocked(keepBytes, keepRegions)
	c.mu.Unlock()
	return c.release(victims)
}

// evictLocked takes out idle registrations until at most keepBytes and keepRegions of them are left.
//
// +checklocks:c.mu
func (c *Cache[R]) evictLocked(keepBytes int64, keepRegions int) (victims []*cached[R]) {
	for c.idle.Len() > 0 && (c.idleBytes > keepBytes || c.idle.Len() > keepRegions) {
		e := c.idle.Remove(c.idle.Back()).(*cached[R])
		c.idleBytes -= e.size()
		c.stat.Bytes -= e.size()
		c.stat.Releases++
		c.entries = slices.DeleteFunc(c.entries, func(other *cached[R]) bool { return other == e })
		victims = append(victims, e)
	}
	return victims
}

func (c *Cache[R]) release(victims []*cached[R]) (err error) {
	for _, e := range victims {
		err = errors.Join(err, c.cfg.Release(e.region))
	}
	return err
}

// Flush releases all registrations that are not in use.
func (c *Cache[R]) Flush() error {
	c.mu.Lock()
	victims := c.evictLocked(0, 0)
	c.mu.Unlock()
	return c.release(victims)
}

// Close ends the cache and releases all registrations that are not in use. Those in use are an error of class ErrInUse; each
// is given up when its use ends.
func (c *Cache[R]) Close() error {
	c.mu.Lock()
	c.closed = true // from here on nothing is kept
	victims := c.evictLocked(0, 0)
	n := len(c.entries)
	c.mu.Unlock()
	err := c.release(victims)
	if n > 0 {
		err = errors.Join(err, fmt.Errorf("regmem: close a cache: %w: %d registrations", ErrInUse, n))
	}
	return err
}

// Stats returns the counters.
func (c *Cache[R]) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stat
	s.Regions = len(c.entries)
	s.InUse = s.Regions - c.idle.Len()
	return s
}
