package ofiverbs

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

// locals holds the registrations of this process's memory for the transfers that it starts. acquire chooses one by the first rule that applies:
//
//   - The sink of a read that needs the right RemoteWrite (verbs.DeviceAttr.ReadSink: on iWARP devices of package rdmacore) is registered for its transfer
//     alone. No peer has a right to any memory of the other rules.
//   - Memory of Alloc is registered once.
//   - A small piece is copied through a slot of the bounce buffer, because registering memory takes longer than copying it.
//   - A slice of Go's heap, unless it is larger than the cache, stays registered in the cache. The region pins the slice, so that no other slice
//     gets its address.
//   - Other memory is registered for its transfer alone. The program can unmap memory that it has mapped at any time, so no entry of the cache
//     may outlive the transfer.
type locals struct {
	ep     *Endpoint
	bounce bounce

	counters struct{ rdma, copied atomic.Uint64 } // bytes; see [Endpoint.Moved]

	mu invariants.Mutex // lock order: after those of connections
	// owned is the memory of Alloc, sorted by address.
	// +checklocks:mu
	owned []*ownedRegion
	// +checklocks:mu
	cache map[cacheKey]*list.Element // of *cachedRegion in recent
	// recent has the cached regions, the last used first.
	// +checklocks:mu
	recent list.List
	// cached is the number of bytes of all cached regions.
	// +checklocks:mu
	cached int64
	// +checklocks:mu
	closed bool
}

// ownedRegion is memory of Alloc.
type ownedRegion struct {
	mem []byte
	mr  *verbs.MR
}

// cacheKey is the range and the rights of a cached region.
type cacheKey struct {
	addr   uint64
	size   int
	access verbs.Access
}

// cachedRegion is a region in the cache.
type cachedRegion struct {
	key  cacheKey
	mr   *verbs.MR
	uses int // transfers that use it; guarded by locals.mu
}

// local is the registration of a fragment's memory for one transfer.
type local struct {
	ep     *Endpoint
	mr     *verbs.MR
	off    int           // offset of the fragment's memory in the region
	own    bool          // release closes the region
	cached *cachedRegion // the entry of the cache that has mr; nil: mr is not in the cache
	slot   int           // slot of the bounce buffer, from 1 on; 0: none

	pieces int  // number of pieces that the device is working on
	posted bool // all pieces of the fragment are posted
}

func (l *locals) init(e *Endpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ep, l.cache = e, make(map[cacheKey]*list.Element)
}

// acquire returns a registration of buf as the source of a put or the sink of a get. unused are regions that it has removed from the cache;
// the caller closes them by [local.release] after it has released its locks.
func (l *locals) acquire(buf []byte, put bool) (r *local, unused []*local, err error) {
	access := l.ep.sinkAccess(put)
	if access&verbs.RemoteWrite == 0 {
		if r := l.find(buf); r != nil {
			return r, nil, nil
		}
		if r, err := l.bounced(buf, put); r != nil || err != nil {
			return r, nil, err
		}
		if int64(len(buf)) <= l.ep.cfg.RegCacheBytes {
			key := cacheKey{hostmem.Addr(buf), len(buf), access}
			if c := l.hit(key); c != nil {
				return &local{ep: l.ep, mr: c.mr, cached: c}, nil, nil
			}
			if hostmem.InGoHeap(buf) { // after hit, because a slice of a cached region is in the heap
				return l.remember(key, buf)
			}
		}
	}
	mr, err := l.ep.region(buf, access)
	if err != nil {
		return nil, nil, err
	}
	return &local{ep: l.ep, mr: mr, own: true}, nil, nil
}

// release ends the transfer's use of the registration. The device must have stopped using it. The caller holds no lock.
func (r *local) release() {
	switch {
	case r == nil:
	case r.own:
		_ = r.ep.closeRegion(r.mr) // fails only if the device is gone
	case r.slot > 0:
		r.ep.locals.bounce.put(r.slot)
	case r.cached != nil:
		r.ep.locals.done(r.cached)
	}
}

// find returns a registration of buf if it is memory of Alloc.
func (l *locals) find(buf []byte) *local {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := hostmem.Addr(buf)
	i, exact := slices.BinarySearchFunc(l.owned, a, compareOwned)
	if !exact {
		i--
	}
	if i < 0 {
		return nil
	}
	o := l.owned[i]
	off := a - hostmem.Addr(o.mem)
	if off > uint64(len(o.mem)) || uint64(len(buf)) > uint64(len(o.mem))-off {
		return nil
	}
	return &local{ep: l.ep, mr: o.mr, off: int(off)}
}

func compareOwned(o *ownedRegion, a uint64) int { return cmp.Compare(hostmem.Addr(o.mem), a) }

// remember registers buf, and returns its registration in the cache under key.
func (l *locals) remember(key cacheKey, buf []byte) (r *local, unused []*local, err error) {
	mr, err := l.ep.region(buf, key.access)
	if err != nil {
		return nil, nil, err
	}
	c := &cachedRegion{key: key, mr: mr, uses: 1}
	unused, added := l.add(c)
	if !added {
		return &local{ep: l.ep, mr: mr, own: true}, unused, nil
	}
	return &local{ep: l.ep, mr: mr, cached: c}, unused, nil
}

// hit returns the cached region for a key, and counts a use of it. It returns nil if there is none.
func (l *locals) hit(key cacheKey) *cachedRegion {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.cache[key]
	if e == nil {
		return nil
	}
	l.recent.MoveToFront(e)
	c, _ := e.Value.(*cachedRegion)
	c.uses++
	return c
}

// add puts c into the cache, and removes as many unused regions as c needs room. added is false if the regions in use leave too little room, or
// if another goroutine has added a region with the same key.
func (l *locals) add(c *cachedRegion) (unused []*local, added bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.cache[c.key] != nil {
		return nil, false
	}
	unused = l.evictLocked(int64(c.key.size))
	if l.cached+int64(c.key.size) > l.ep.cfg.RegCacheBytes {
		return unused, false
	}
	l.cache[c.key] = l.recent.PushFront(c)
	l.cached += int64(c.key.size)
	return unused, true
}

// giveUp ends the registrations of all unused regions, and reports whether there were any. The caller may hold the lock of a connection,
// because the device does not work on these regions.
func (l *locals) giveUp() bool {
	l.mu.Lock()
	unused := l.evictLocked(l.ep.cfg.RegCacheBytes + 1) // more than there can be
	l.mu.Unlock()
	for _, u := range unused {
		u.release()
	}
	return len(unused) > 0
}

// evictLocked removes unused regions, the least recently used ones first, until n bytes have room.
//
// +checklocks:l.mu
func (l *locals) evictLocked(n int64) (unused []*local) {
	for e := l.recent.Back(); e != nil && l.cached+n > l.ep.cfg.RegCacheBytes; {
		before := e.Prev()
		if c, _ := e.Value.(*cachedRegion); c.uses == 0 {
			l.recent.Remove(e)
			delete(l.cache, c.key)
			l.cached -= int64(c.key.size)
			unused = append(unused, &local{ep: l.ep, mr: c.mr, own: true})
		}
		e = before
	}
	return unused
}

// done ends a use of a cached region.
func (l *locals) done(c *cachedRegion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.uses--
}

// close closes all regions. No transfer may use one any more.
func (l *locals) close() error {
	l.mu.Lock()
	l.closed = true
	owned := l.owned
	l.owned = nil
	l.mu.Unlock()
	l.giveUp()
	var errs []error
	for _, o := range owned {
		errs = append(errs, l.ep.closeRegion(o.mr))
	}
	return errors.Join(append(errs, l.bounce.close())...)
}

// Alloc returns size bytes of zeroed memory outside Go's heap, which is registered with the device once for all transfers of this process.
// The caller calls free when no transfer uses the memory any more.
func (e *Endpoint) Alloc(size int) (mem []byte, free func() error, err error) {
	if mem, err = hostmem.Map(size); err != nil {
		return nil, nil, err
	}
	mr, err := e.region(mem, verbs.LocalWrite)
	if err != nil {
		return nil, nil, errors.Join(err, hostmem.Unmap(mem))
	}
	o := &ownedRegion{mem, mr}
	if !e.locals.own(o) {
		return nil, nil, errors.Join(verbs.Errorf("allocate memory", verbs.ErrClosed, "the endpoint is closed"), e.closeRegion(mr), hostmem.Unmap(mem))
	}
	return mem, func() error {
		if !e.locals.disown(o) {
			return hostmem.Unmap(mem) // because close has closed the region
		}
		return errors.Join(e.closeRegion(mr), hostmem.Unmap(mem))
	}, nil
}

// own enters memory of Alloc. It returns false if the endpoint is closed.
func (l *locals) own(o *ownedRegion) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	i, _ := slices.BinarySearchFunc(l.owned, hostmem.Addr(o.mem), compareOwned)
	l.owned = slices.Insert(l.owned, i, o)
	return true
}

// disown removes memory of Alloc. It returns false if close has removed the memory before.
func (l *locals) disown(o *ownedRegion) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.owned, o)
	if i < 0 {
		return false
	}
	l.owned = slices.Delete(l.owned, i, i+1)
	return true
}

// Moved returns the number of bytes of transfers that the device has moved, and the number of those among them that were copied between the
// program's memory and the bounce buffer. It implements [na.Mover].
func (e *Endpoint) Moved() (rdma, copied uint64) {
	return e.locals.counters.rdma.Load(), e.locals.counters.copied.Load()
}

// bounce is registered memory for small pieces of transfers.
type bounce struct {
	most int // largest number of bytes of a piece; 0: none, because registering takes less time than any copying

	mu invariants.Mutex // lock order: after that of locals
	// +checklocks:mu
	mr *verbs.MR // nil before the first use
	// +checklocks:mu
	free []int // slots, from 1 on
}

const (
	bounceSlots = 64
	bounceSlot  = 16 << 10 // bytes
	// copyRate is the number of bytes that a processor copies per nanosecond from and to memory that is in no cache.
	copyRate = 4
	// registerings is the number of registrations in measure, which takes the shortest time of them.
	registerings = 4
)

// measure sets most to the number of bytes that can be copied in the time in which the device registers a region and closes it.
func (b *bounce) measure(pd *verbs.PD) error {
	mem := make([]byte, bounceSlot)
	least := time.Duration(bounceSlot) / copyRate * time.Nanosecond
	for range registerings {
		begin := time.Now()
		mr, err := pd.RegMR(mem, verbs.LocalWrite)
		if err != nil {
			return err
		}
		if err := mr.Close(); err != nil {
			return err
		}
		least = min(least, time.Since(begin))
	}
	b.most = int(least) * copyRate
	return nil
}

// bounced returns a slot for buf. If put is true, it copies buf into the slot. It returns nil if buf is too long, or no slot is free.
func (l *locals) bounced(buf []byte, put bool) (*local, error) {
	b := &l.bounce
	if len(buf) > b.most || uint64(len(buf)) > l.ep.shape.chunk { // a slot is for a piece that is not cut
		return nil, nil //nolint:nilnil // there is no slot, and no error
	}
	slot, mr := b.take(l.ep)
	if slot == 0 {
		return nil, nil //nolint:nilnil // there is no slot, and no error
	}
	r := &local{ep: l.ep, mr: mr, off: (slot - 1) * bounceSlot, slot: slot}
	if !put {
		return r, nil
	}
	n, err := hostmem.Copy(mr.Bytes()[r.off:], buf)
	l.counters.copied.Add(uint64(n))
	if err != nil {
		b.put(slot)
		return nil, err
	}
	return r, nil
}

// arrived copies the bytes of a get from the slot of r to buf. It does nothing if r has no slot, because the device has written buf itself.
func (r *local) arrived(buf []byte) error {
	if r.slot == 0 {
		return nil
	}
	n, err := hostmem.Copy(buf, r.mr.Bytes()[r.off:])
	r.ep.locals.counters.copied.Add(uint64(n))
	return err
}

// take returns a free slot and the region of all slots. The slot is 0 if none is free, or the device has no room for that region.
func (b *bounce) take(e *Endpoint) (slot int, mr *verbs.MR) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mr == nil {
		all, err := e.pd.RegMR(make([]byte, bounceSlots*bounceSlot), verbs.LocalWrite)
		if err != nil {
			return 0, nil
		}
		b.mr = all
		for i := range bounceSlots {
			b.free = append(b.free, i+1)
		}
	}
	if len(b.free) == 0 {
		return 0, nil
	}
	slot = b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	return slot, b.mr
}

func (b *bounce) put(slot int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = append(b.free, slot)
}

func (b *bounce) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mr == nil {
		return nil
	}
	return b.mr.Close()
}

// errRegions is the cause of the error of a registration that the device refuses because it has its largest number of regions.
var errRegions = errors.New("the device has no room for another memory region")

// connRegions is the number of regions of a connection's buffers.
const connRegions = 2

// explain adds the limit on the number of regions to the error of a registration, if that limit was reached. The regions of other endpoints and
// programs on the device count too, and explain does not know their number. So it also adds the limit if the device has no room and this
// endpoint alone has a fourth of the limit.
func (e *Endpoint) explain(err error) error {
	n, limit := e.registered.Load()+int64(connRegions*len(e.connections())), int64(e.attr.MaxMR)
	if limit == 0 || n < limit-connRegions && (!errors.Is(err, syscall.ENOMEM) || n < limit/4) {
		return err
	}
	return fmt.Errorf("%w: this endpoint has %d, and for all programs device %s has room for %d (DeviceAttr.MaxMR); close memory, or expose it in fewer segments: %w", errRegions, n, e.attr.Name, limit, err)
}
