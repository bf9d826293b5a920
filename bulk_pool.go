package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/codes"
	"cinnabar/internal/invariants"
	"cinnabar/internal/rundown"
)

var (
	// ErrNoBuffer is what TryGet of a pool returns when all its buffers are in use.
	ErrNoBuffer = errors.New("cinnabar: no buffer is free")
	// ErrReleased is in the error of a second Release of the same buffer.
	ErrReleased = errors.New("cinnabar: the buffer has been released before")
)

// BulkPool is a fixed number of buffers of equal size, exposed once and used again and again: a server that pulls into
// them pays neither for memory nor for registration, and what all its requests together can take is bounded. It is C's
// margo_bulk_pool_t. All methods are safe for concurrent use.
//
// A buffer keeps its keys for the life of the pool, unless a call that carried its handle was abandoned ([Bulk.Close]). A peer
// that stores a handle can therefore use it after Release and access the data of the buffer's next user, so a program sends
// handles of a pool's buffers only to peers that it trusts to stop.
type BulkPool struct {
	size  int64
	slots []*slot
	free  chan *slot     // the free slots; its capacity is the number of all slots
	done  chan struct{}  // closed by Close
	life  *rundown.Guard // closed by Close
	slab  *memory        // maps the buffers' memory and exposes nothing; the pool has a reference, and each buffer that gets new keys
	e     *Engine
	mode  Mode
	made  atomic.Uintptr // the program counter of the call of AllocPool, 0 if not known

	close    sync.Once
	closeErr error
}

// slot is one buffer of a pool.
//
//	free --Get--> in use --Release--> free
//	               |                   ^
//	               +--Release----------+ with new keys, if an abandoned call carried the old ones
//
// The server of such a call reads a copy of the buffer, so that a server which never responds takes no buffer from other calls.
type slot struct {
	pool *BulkPool
	buf  []byte

	mu invariants.Mutex
	// +checklocks:mu
	mem *memory
	// +checklocks:mu
	user *Bulk // what Get returned, nil if free
	// +checklocks:mu
	closed bool
}

// bufferAlign is what each buffer of a pool begins at a multiple of: a cache line, so that two users never share one.
const bufferAlign = 64

// AllocPool makes a pool of count buffers of size bytes each, in memory as that of [Engine.Alloc].
func (e *Engine) AllocPool(mode Mode, count int, size int64) (*BulkPool, error) {
	p, err := e.allocPool(mode, count, size)
	if err != nil {
		return nil, err
	}
	made := watch(p, p.life, e.log, label(fmt.Sprintf("pool of %d buffers of %d bytes", count, size)))
	p.made.Store(made)
	for _, s := range p.slots {
		s.memory().made.Store(made)
	}
	return p, nil
}

func (e *Engine) allocPool(mode Mode, count int, size int64) (*BulkPool, error) {
	if count < 1 || size < 1 || size > (math.MaxInt64-bufferAlign)/int64(count)-bufferAlign {
		return nil, argumentError("make pool", "", "", "%d buffers of %d bytes: want at least 1 of at least 1 byte, and a total that fits into memory", count, size)
	}
	stride := (size + bufferAlign - 1) / bufferAlign * bufferAlign
	slab, free, err := e.mapMemory(stride * int64(count))
	if err != nil {
		return nil, err
	}
	p := &BulkPool{size: size, free: make(chan *slot, count), done: make(chan struct{}), life: new(rundown.Guard), slab: &memory{e: e, free: free}, e: e, mode: mode}
	p.slab.holds.Store(1)
	for i := range int64(count) {
		s := &slot{pool: p, buf: slab[i*stride:][:size:size]}
		if err := s.register(); err != nil {
			return nil, joined(err, p.Close())
		}
		p.slots = append(p.slots, s)
		p.free <- s
	}
	return p, nil
}

// Size is the number of bytes of each buffer.
func (p *BulkPool) Size() int64 { return p.size }

// Count is the number of buffers, free or in use.
func (p *BulkPool) Count() int { return len(p.slots) }

// Get returns a free buffer, and waits for one until ctx ends or the pool is closed. The caller has it alone until
// [BulkPool.Release]. Its content is what the last user left.
func (p *BulkPool) Get(ctx context.Context) (*Bulk, error) {
	if b, err := p.TryGet(); !errors.Is(err, ErrNoBuffer) {
		return b, err
	}
	select {
	case s := <-p.free:
		return s.take()
	case <-p.done:
		return nil, errPoolClosed()
	case <-p.e.Done():
		return nil, errorFrom("get buffer", "", "", ErrClosed)
	case <-ctx.Done():
		return nil, errorFrom("get buffer", "", "", ctx.Err())
	}
}

// TryGet is Get that does not wait: if no buffer is free, the error is [ErrNoBuffer].
func (p *BulkPool) TryGet() (*Bulk, error) {
	select {
	case <-p.done:
		return nil, errPoolClosed()
	default:
	}
	select {
	case s := <-p.free:
		return s.take()
	default:
		return nil, ErrNoBuffer
	}
}

func errPoolClosed() error {
	return &Error{Op: "get buffer", Code: codes.InvalidArg, Err: errors.New("the pool is closed")}
}

// memory returns the registration of the buffer.
func (s *slot) memory() *memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mem
}

// register exposes the buffer under new keys, which no peer knows.
func (s *slot) register() error {
	p := s.pool
	m, err := p.e.expose(p.mode, [][]byte{s.buf}, nil)
	if err != nil {
		return err
	}
	m.made.Store(p.made.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem = m
	return nil
}

// renew revokes the keys of a buffer whose handle an abandoned call carried, and makes the buffer free under new keys. It returns
// false if the pool is closed.
func (s *slot) renew() bool {
	s.mu.Lock()
	s.user = nil
	m, closed := s.mem, s.closed
	var release func()
	if !closed {
		release = s.pool.slab.hold()
	}
	s.mu.Unlock()
	if closed {
		return false
	}
	defer release()
	_ = m.revoke()           // it cannot fail, because the memory stays the pool's
	if s.register() == nil { // register fails only when the engine ends
		s.putBack()
	}
	return true
}

// putBack makes the buffer free, unless the pool is closed.
func (s *slot) putBack() {
	s.mu.Lock()
	closed, m := s.closed, s.mem
	s.user = nil
	if !closed {
		s.pool.free <- s
	}
	s.mu.Unlock()
	if closed {
		_ = m.revoke() // end may have revoked the registration before this one
	}
}

// take makes the Bulk under which a user has the buffer. It is a new one each time, so that one that was released stays
// released.
func (s *slot) take() (*Bulk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errPoolClosed()
	}
	s.user = &Bulk{mem: s.mem, life: new(rundown.Guard), n: s.mem.size, slot: s}
	return s.user, nil
}

// Release returns a buffer to the pool. It waits for transfers that this process started on it; views of it are void afterwards. A
// buffer whose handle an abandoned call carried gets new keys, and the server of that call reads a copy ([Bulk.Close]). A second Release of the same buffer changes nothing and returns an error that is [ErrReleased].
func (p *BulkPool) Release(b *Bulk) error {
	if b == nil || b.slot == nil || b.slot.pool != p {
		return argumentError("release buffer", "", "", "it is not from this pool; give what Get returned, not a view of it")
	}
	if !b.slot.giveBack(b) {
		return &Error{Op: "release buffer", Code: codes.InvalidArg, Err: ErrReleased}
	}
	return nil
}

// giveBack ends the use of the buffer as b, and reports false if it had ended before.
func (s *slot) giveBack(b *Bulk) bool {
	first := b.life.Close()
	<-b.life.Idle()
	if !first {
		return false
	}
	if !s.memory().isLate() || !s.renew() {
		s.putBack()
	}
	return true
}

// Close ends the pool: Get fails from then on, buffers in use are released, and all memory is given back to the system, so
// that the program must not touch it any more. It waits as [Bulk.Close] does. Further calls return the same.
func (p *BulkPool) Close() error {
	p.close.Do(func() {
		p.life.Close()
		close(p.done)
		errs := make([]error, 0, len(p.slots)+1)
		for _, s := range p.slots { // all of them before any is waited for
			s.memory().revokeKeys()
		}
		for _, s := range p.slots {
			errs = append(errs, s.end())
		}
		p.closeErr = errors.Join(append(errs, p.slab.unhold())...)
	})
	return p.closeErr
}

// end takes the buffer from whoever has it and revokes its keys.
func (s *slot) end() error {
	s.mu.Lock()
	user, m := s.user, s.mem
	s.closed, s.user = true, nil
	s.mu.Unlock()
	if user != nil {
		user.life.Close()
		<-user.life.Idle()
	}
	return m.revoke()
}

// BulkPoolSet is pools of growing buffer sizes, for requests of different sizes: C's margo_bulk_poolset_t. All methods
// are safe for concurrent use.
type BulkPoolSet struct {
	pools []*BulkPool    // smallest buffers first
	life  *rundown.Guard // ended by Close
}

// AllocPoolSet makes a pool of count buffers for each of the sizes, which must grow.
func (e *Engine) AllocPoolSet(mode Mode, count int, sizes ...int64) (*BulkPoolSet, error) {
	if len(sizes) == 0 {
		return nil, argumentError("make pool set", "", "", "no sizes given")
	}
	s := &BulkPoolSet{life: new(rundown.Guard)}
	for i, size := range sizes {
		if i > 0 && size <= sizes[i-1] {
			return nil, joined(argumentError("make pool set", "", "", "size %d follows size %d: sizes must grow", size, sizes[i-1]), s.Close())
		}
		p, err := e.allocPool(mode, count, size)
		if err != nil {
			return nil, joined(err, s.Close())
		}
		s.pools = append(s.pools, p)
	}
	watch(s, s.life, e.log, label(fmt.Sprintf("set of pools of buffers of %v bytes", sizes)))
	return s, nil
}

// MaxSize is the size of the largest buffers.
func (s *BulkPoolSet) MaxSize() int64 { return s.pools[len(s.pools)-1].size }

// Get returns a buffer of the smallest size that has room for size bytes, and waits for one until ctx ends. More than
// [BulkPoolSet.MaxSize] bytes are refused.
func (s *BulkPoolSet) Get(ctx context.Context, size int64) (*Bulk, error) {
	pools, err := s.fitting(size)
	if err != nil {
		return nil, err
	}
	return pools[0].Get(ctx)
}

// TryGet is Get that does not wait: if there is no free buffer of that size the error is [ErrNoBuffer], unless larger is
// set, which takes one of the next larger size that has one.
func (s *BulkPoolSet) TryGet(size int64, larger bool) (*Bulk, error) {
	pools, err := s.fitting(size)
	if err != nil {
		return nil, err
	}
	if !larger {
		pools = pools[:1]
	}
	for _, p := range pools {
		b, err := p.TryGet()
		if !errors.Is(err, ErrNoBuffer) {
			return b, err
		}
	}
	return nil, ErrNoBuffer
}

// fitting returns the pools whose buffers have room for size bytes, at least one.
func (s *BulkPoolSet) fitting(size int64) ([]*BulkPool, error) {
	i := slices.IndexFunc(s.pools, func(p *BulkPool) bool { return p.size >= size })
	if i < 0 || size < 0 {
		return nil, argumentError("get buffer", "", "", "%d bytes: the buffers of this set have up to %d", size, s.MaxSize())
	}
	return s.pools[i:], nil
}

// Release gives a buffer back to its pool, as [BulkPool.Release] does.
func (s *BulkPoolSet) Release(b *Bulk) error {
	if b == nil || b.slot == nil || !slices.Contains(s.pools, b.slot.pool) {
		return argumentError("release buffer", "", "", "it is not from this set; give what Get returned, not a view of it")
	}
	return b.slot.pool.Release(b)
}

// Close closes all pools, as [BulkPool.Close] does.
func (s *BulkPoolSet) Close() error {
	s.life.Close()
	for _, p := range s.pools { // all of them before any is waited for
		for _, slot := range p.slots {
			slot.memory().revokeKeys()
		}
	}
	errs := make([]error, 0, len(s.pools))
	for _, p := range s.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
