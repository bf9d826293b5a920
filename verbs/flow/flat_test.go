package flow

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/invariants"
	"cinnabar/regmem"
	"cinnabar/regmem/arena"
	"cinnabar/verbs"
)

// transfers is how many the tests of registrations make: fewer where each is slow.
var transfers = map[bool]int{false: 10_000, true: 2_000}[invariants.Race]

// TestRegistrationsFlat sends records from a few buffers of the program through a cache of registrations: neither the cache
// nor the device registers more than once for each.
// parity: S12
func TestRegistrationsFlat(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	registered := 0 // times
	cache, err := regmem.NewCache(regmem.CacheConfig[*verbs.MR]{
		Register: func(b []byte) (*verbs.MR, error) { registered++; return a.PD().RegMR(b, 0) },
		Release:  (*verbs.MR).Close,
	})
	must(t, err)
	buffers := make([][]byte, 4)
	for i := range buffers {
		buffers[i] = fill(make([]byte, 100), i)
	}
	before := regionsOf(t, a)
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := range transfers {
			l, err := cache.Acquire(buffers[i%len(buffers)])
			if err != nil {
				t.Error(err)
				return
			}
			err = a.SendFrom(t.Context(), []verbs.SGE{l.Region().SGE(l.Offset(), 100)})
			if err != nil || l.Release() != nil {
				t.Error(err)
				return
			}
		}
	})
	takeAll(t, p)
	sender.Wait()
	s := cache.Stats()
	if registered != len(buffers) || s.Registrations != 4 || s.Hits != uint64(transfers)-4 || s.Releases != 0 {
		t.Errorf("%d times registered: %+v", registered, s)
	}
	if after := regionsOf(t, a); after > before+4 {
		t.Errorf("the device has %d regions, and had %d", after, before)
	}
	must(t, cache.Close())
}

// TestPoolRegistersOnce sends records that are built in an arena: one registration serves all.
// parity: S12 S23
func TestPoolRegistersOnce(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	mr, err := a.PD().AllocMR(64<<10, 0)
	must(t, err)
	pool, err := arena.New(arena.Config[*verbs.MR]{}, mr)
	must(t, err)
	before := regionsOf(t, a)
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := range transfers {
			b, err := pool.AllocContext(t.Context(), 100)
			if err != nil {
				t.Error(err)
				return
			}
			fill(b.Bytes(), i%4)
			err = a.SendFrom(t.Context(), []verbs.SGE{b.Region().SGE(b.Offset(), b.Len())})
			if err != nil || b.Free() != nil {
				t.Error(err)
				return
			}
		}
	})
	takeAll(t, p)
	sender.Wait()
	if after := regionsOf(t, a); after != before {
		t.Errorf("the device has %d regions, and had %d", after, before)
	}
	if s := a.Stats(); s.Copied != 0 || s.Sent != uint64(transfers) {
		t.Errorf("%+v", s)
	}
	must(t, errors.Join(pool.Close(), mr.Close()))
}

// takeAll receives what the tests send, and looks at every record.
func takeAll(t *testing.T, p *Conn) {
	t.Helper()
	for i := range transfers {
		r := recv(t, p)
		if b := r.Bytes(); len(b) != 100 || b[0] != byte(i%4) || b[99] != byte(i%4+99*7%256) {
			t.Fatalf("record %d is % x", i, b)
		}
		must(t, r.Release())
	}
}

// regionsOf is how many regions are registered with the device of a connection.
func regionsOf(t *testing.T, c *Conn) uint64 {
	t.Helper()
	n, ok := c.PD().Device().Stats()["regions"]
	if !ok {
		t.Fatal("the device does not count its regions")
	}
	return n
}

// TestRecordsAllocateNothing sends, receives and releases records of every kind, without allocations on the Go heap once
// there has been one of the kind.
// parity: S17
func TestRecordsAllocateNothing(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates")
	}
	for _, n := range []int{64, 20_000} {
		a, p := pair(t, Config{}, Config{})
		mr, err := a.PD().AllocMR(n, 0)
		must(t, err)
		defer func() { must(t, mr.Close()) }()
		ctx := devicetest.Context(t)
		for name, send := range map[string]func() error{
			"Send":     func() error { return a.Send(ctx, mr.Bytes()) },
			"SendFrom": func() error { return a.SendFrom(ctx, []verbs.SGE{mr.SGE(0, n)}) },
		} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				one := func() {
					must(t, send())
					r, err := p.Recv(ctx)
					must(t, err)
					must(t, r.Release())
				}
				for range 200 { // all slots of queues and pools were used
					one()
				}
				if got := testing.AllocsPerRun(500, one); got != 0 {
					t.Errorf("%v allocations", got)
				}
			})
		}
	}
}
