package pool

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"

	"cinnabar/internal/rundown"
)

var (
	// ErrEmpty is the error of TryGet while all buffers are in use.
	ErrEmpty = errors.New("pool: all buffers are in use")
	// ErrReleased is the error of Release for a buffer that is not in use. Its user has released it before, Close has closed it, or it
	// is not from the pool; a view of a buffer is not.
	ErrReleased = errors.New("pool: the buffer is not in use: it was released before, or it is not from this pool; release each buffer that Get returned once")
	// ErrClosed is wrapped by the error of Get and TryGet after Close, and after the engine or device of the buffers has ended.
	ErrClosed = errors.New("pool: closed")
)

// errEnded is the error of Get after the end of the buffers' engine or device.
var errEnded = fmt.Errorf("%w, because the engine or device of its buffers has ended", ErrClosed)

// Buffer is the type of a pool's buffers. It may have two more methods, which a *cinnabar.Bulk has:
//
//   - Recycle() (B, error) is called by Release. It waits until no operation of this process uses the buffer, and returns the same memory
//     as a new B. The methods of the old B must fail afterwards, so that a user that keeps it cannot reach the data of the next user. If
//     Recycle returns an error, Release closes the old B. If B has no method Recycle, the next user gets the same B.
//   - Done() <-chan struct{} returns a channel that is closed when buffers of this kind cannot be used any more, because their engine or
//     device has ended. It is called once, for the first buffer of the pool. Get fails from then on.
type Buffer interface {
	comparable
	// Close releases the memory and its registration.
	Close() error
}

// recycler is a buffer with a method Recycle.
type recycler[B Buffer] interface{ Recycle() (B, error) }

// Pool lends a fixed number of buffers. All methods are safe for concurrent use.
type Pool[B Buffer] struct {
	make  func() (B, error)
	free  chan slot[B]    // the slots that no user has; its capacity is the number of all slots
	done  chan struct{}   // closed by Close
	ended <-chan struct{} // the channel of the buffers' Done; nil: they have none

	// making counts the calls of make and of Recycle. Close closes it, and waits for them.
	making rundown.Guard

	mu sync.Mutex
	// buffers holds the buffers of the slots, and true for those that are in use; nil after Close.
	// +checklocks:mu
	buffers map[B]bool

	close    sync.Once
	closeErr error
}

// slot is the right to one of the pool's buffers. Users and the channel of free slots pass it on:
//
//	free --Get--> in use --Release--> free
//
// A slot loses its buffer if Recycle fails. It is free all the same, and the next Get that takes it makes a buffer for it, so a waiting
// Get depends on nothing but a Release.
type slot[B Buffer] struct {
	b    B
	full bool // b is a buffer
}

// New makes a pool of n buffers, each by a call of make, which may block. If a buffer cannot be recycled, a later Get or TryGet calls make
// again to replace it. Neither make nor the methods of the buffers may call methods of the pool.
func New[B Buffer](n int, make func() (B, error)) (*Pool[B], error) {
	if n < 1 || make == nil {
		return nil, fmt.Errorf("pool: %d buffers, function to make them given: %v; want at least 1 buffer and the function", n, make != nil)
	}
	p := newPool(n, make)
	for i := range n {
		b, err := p.add()
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		if e, ok := any(b).(interface{ Done() <-chan struct{} }); ok && i == 0 {
			p.ended = e.Done()
		}
		p.setInUse(b, false)
		p.free <- slot[B]{b, true}
	}
	return p, nil
}

func newPool[B Buffer](n int, maker func() (B, error)) *Pool[B] {
	return &Pool[B]{make: maker, free: make(chan slot[B], n), done: make(chan struct{}), buffers: map[B]bool{}}
}

// Count returns the number of buffers, free or in use.
func (p *Pool[B]) Count() int { return cap(p.free) }

// Get returns a free buffer. It waits for one until ctx ends, the pool is closed, or the engine or device of the buffers ends. Callers
// that wait get buffers in the order in which they called. The caller is the only user of the buffer until Release. The buffer
// contains the bytes that its last user left.
func (p *Pool[B]) Get(ctx context.Context) (b B, err error) {
	if b, ok, err := p.tryGet(); ok || err != nil {
		return b, err
	}
	select {
	case s := <-p.free:
		return p.take(s)
	case <-p.done:
		return b, ErrClosed
	case <-p.ended:
		return b, errEnded
	case <-ctx.Done():
		return b, fmt.Errorf("pool: get buffer: %w", ctx.Err())
	}
}

// TryGet is Get, except that it does not wait for a buffer: if all buffers are in use, the error is [ErrEmpty].
func (p *Pool[B]) TryGet() (B, error) {
	b, ok, err := p.tryGet()
	if !ok && err == nil {
		err = ErrEmpty
	}
	return b, err
}

// tryGet returns a buffer, or false if all are in use.
func (p *Pool[B]) tryGet() (b B, ok bool, err error) {
	switch {
	case rundown.IsClosed(p.done):
		return b, false, ErrClosed
	case p.ended != nil && rundown.IsClosed(p.ended):
		return b, false, errEnded
	}
	select {
	case s := <-p.free:
		b, err = p.take(s)
		return b, err == nil, err
	default:
		return b, false, nil
	}
}

// take returns the buffer of a slot that was free. A slot without a buffer gets one; if it cannot, the slot is free again.
func (p *Pool[B]) take(s slot[B]) (b B, err error) {
	if s.full {
		if !p.setInUse(s.b, true) {
			return b, ErrClosed
		}
		return s.b, nil
	}
	made := false
	defer func() { // also after a panic in make
		if !made {
			p.free <- slot[B]{}
		}
	}()
	b, err = p.add()
	made = err == nil
	return b, err
}

// setInUse records whether a user has the buffer b, and returns false after Close, which closes b.
func (p *Pool[B]) setInUse(b B, inUse bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.buffers == nil {
		return false
	}
	p.buffers[b] = inUse
	return true
}

// add makes a buffer, which is then in use.
func (p *Pool[B]) add() (none B, err error) {
	if !p.making.Acquire() {
		return none, ErrClosed
	}
	defer p.making.Release()
	b, err := p.make()
	if err != nil {
		return none, fmt.Errorf("pool: make buffer: %w", err)
	}
	closed, err := p.insert(b, true)
	switch {
	case closed:
		return none, errors.Join(ErrClosed, err)
	case err != nil:
		return none, fmt.Errorf("pool: make buffer: %w", err)
	}
	return b, nil
}

// insert adds b, which is new, to the buffers. After Close it closes b instead, and returns true and the error of that.
func (p *Pool[B]) insert(b B, inUse bool) (closed bool, err error) {
	p.mu.Lock()
	_, known := p.buffers[b]
	closed = p.buffers == nil
	if !closed && !known {
		p.buffers[b] = inUse
	}
	p.mu.Unlock()
	switch {
	case closed:
		return true, b.Close()
	case known:
		return false, errors.New("the new buffer is one that the pool has already")
	}
	return false, nil
}

// Release gives a buffer back to the pool. If the buffer has a method Recycle, Release calls it and waits for it; the methods of b fail
// afterwards.
//
// An error other than [ErrReleased] is that of Recycle, for example because the user has closed the buffer. The pool then closes the
// buffer, and a later Get makes another one in its place, so the number of buffers does not change.
func (p *Pool[B]) Release(b B) error {
	r, recycles := any(b).(recycler[B])
	p.mu.Lock()
	if !p.buffers[b] {
		p.mu.Unlock()
		return ErrReleased
	}
	if !recycles {
		p.buffers[b] = false
		p.mu.Unlock()
		p.free <- slot[B]{b, true}
		return nil
	}
	delete(p.buffers, b)
	p.making.Acquire() // Close has not closed the Guard, because it takes the buffers first, with the lock held
	p.mu.Unlock()
	defer p.making.Release()

	var s slot[B]
	defer func() { p.free <- s }() // without a buffer after an error, or a panic in Recycle
	next, err := r.Recycle()
	if err != nil {
		return fmt.Errorf("pool: release buffer, which a later Get replaces: %w", errors.Join(err, b.Close()))
	}
	closed, err := p.insert(next, false)
	if err != nil {
		return fmt.Errorf("pool: release buffer: %w", err)
	}
	s = slot[B]{next, !closed}
	return nil
}

// Close closes all buffers, including those in use. From then on Get fails, also in callers that are waiting, and Release returns
// [ErrReleased]. Close waits for calls of Recycle and make that have begun. It closes the buffers at the same time, each in a goroutine
// of its own, because the Close of a buffer may wait for a slow peer. Further calls wait for the first and return the same error.
func (p *Pool[B]) Close() error {
	p.close.Do(func() {
		p.mu.Lock()
		buffers := p.buffers
		p.buffers = nil
		p.making.Close()
		p.mu.Unlock()
		close(p.done)
		p.closeErr = closeAll(maps.Keys(buffers))
		<-p.making.Idle()
	})
	return p.closeErr
}

// closeAll closes all objects of list at the same time, each in a goroutine, and returns their errors when all are closed.
func closeAll[C interface{ Close() error }](list iter.Seq[C]) error {
	var errs []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range list {
		wg.Go(func() {
			if err := c.Close(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
