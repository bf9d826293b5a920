package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cinnabar/regmem"
)

// Set holds a pool for each of several sizes of buffers, for requests of different sizes. All methods are safe for concurrent use.
type Set[B Buffer] struct {
	pools []*Pool[B]
	sizes []int64 // of the pools' buffers in bytes, growing
}

// NewSet makes a pool of n buffers for each of sizes, which are in bytes and in ascending order. make(size) returns a buffer with room for
// size bytes; the rules of [New] for make apply.
func NewSet[B Buffer](n int, sizes []int64, make func(size int64) (B, error)) (*Set[B], error) {
	if len(sizes) == 0 || sizes[0] < 1 || make == nil {
		return nil, fmt.Errorf("pool: sizes %v, function to make buffers given: %v; want at least 1 size of at least 1 byte, and the function", sizes, make != nil)
	}
	s := &Set[B]{sizes: slices.Clone(sizes)}
	for i, size := range s.sizes {
		if i > 0 && size <= s.sizes[i-1] {
			err := fmt.Errorf("pool: size %d follows size %d: sizes must grow", size, s.sizes[i-1])
			return nil, errors.Join(err, s.Close())
		}
		p, err := New(n, func() (B, error) { return make(size) })
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.pools = append(s.pools, p)
	}
	return s, nil
}

// MaxSize returns the size of the largest buffers in bytes.
func (s *Set[B]) MaxSize() int64 { return s.sizes[len(s.sizes)-1] }

// Get returns a buffer of the smallest size that has room for size bytes, and waits for one as [Pool.Get] does. If size is larger than
// [Set.MaxSize], the error is [regmem.ErrTooLarge].
func (s *Set[B]) Get(ctx context.Context, size int64) (none B, err error) {
	pools, err := s.fitting(size)
	if err != nil {
		return none, err
	}
	return pools[0].Get(ctx)
}

// TryGet is Get, except that it does not wait for a buffer. If all buffers of that size are in use and larger is true, it returns a free
// buffer of the next larger size that has one. Otherwise the error is [ErrEmpty].
func (s *Set[B]) TryGet(size int64, larger bool) (none B, err error) {
	pools, err := s.fitting(size)
	if err != nil {
		return none, err
	}
	if !larger {
		pools = pools[:1]
	}
	for _, p := range pools {
		if b, ok, err := p.tryGet(); ok || err != nil {
			return b, err
		}
	}
	return none, ErrEmpty
}

// fitting returns the pools with buffers of at least size bytes. There is at least one, or the error says why not.
func (s *Set[B]) fitting(size int64) ([]*Pool[B], error) {
	if size < 0 {
		return nil, fmt.Errorf("pool: get buffer of %d bytes: the size is negative", size)
	}
	i, _ := slices.BinarySearch(s.sizes, size)
	if i == len(s.pools) {
		return nil, fmt.Errorf("pool: get buffer of %d bytes: %w: the buffers of this set have up to %d", size, regmem.ErrTooLarge, s.MaxSize())
	}
	return s.pools[i:], nil
}

// Release gives a buffer back to its pool, as [Pool.Release] does.
func (s *Set[B]) Release(b B) error {
	for _, p := range s.pools {
		if err := p.Release(b); err != ErrReleased { //nolint:errorlint // the error of another buffer's Recycle may wrap it
			return err
		}
	}
	return ErrReleased
}

// Close closes all pools at the same time, as [Pool.Close] does.
func (s *Set[B]) Close() error { return closeAll(slices.Values(s.pools)) }
