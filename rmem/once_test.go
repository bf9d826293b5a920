package rmem

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/devicetest"
	"cinnabar/internal/hostquota"
)

// lending is a server with an owner of regions and another client, over some network.
type lending struct {
	owner, other *Client
	stats        func() Stats
	lent         func() []byte // the server's memory of the only region
	open         func(h Handle) (*Region, error)
}

// eachLending runs a test over the engine, with reads by the server's part and without, and over verbs.
func eachLending(t *testing.T, cfg Config, test func(t *testing.T, l lending)) {
	for name, strict := range map[string]bool{"one-sided": false, "strict": true} {
		t.Run(name, func(t *testing.T) {
			cfg.Strict = strict
			s, e := serve(t, cfg)
			a, _ := dial(t, e)
			b, far := dial(t, e)
			test(t, lending{a, b, s.Stats, s.onlyMemory, func(h Handle) (*Region, error) { return Open(devicetest.Context(t), far, h) }})
		})
	}
	if protocol() != "ofi+tcp" { // the network is that of engines only
		return
	}
	t.Run("verbs", func(t *testing.T) {
		s, l, dev := serveVerbs(t, cfg)
		a, b := dialVerbs(t, s, dev), dialVerbs(t, s, dev)
		test(t, lending{a, b, s.Stats, l.onlyMemory, func(h Handle) (*Region, error) { return b.Open(devicetest.Context(t), h) }})
	})
}

// onlyMemory is the memory of the only region that is lent.
func (l *lender) onlyMemory() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.t.regions {
		return e.mem.Bytes()
	}
	return nil
}

// TestOnce lends regions for one read: the first reader has it, and nobody else, not even the owner, anything afterwards.
// parity: Y10
func TestOnce(t *testing.T) {
	eachLending(t, Config{}, func(t *testing.T, l lending) {
		for _, size := range []int64{64, 300_000, 2 << 20} {
			ctx := devicetest.Context(t)
			r, err := l.owner.AllocWith(ctx, size, AllocOptions{Once: true, Lease: time.Hour})
			must(t, err)
			data, got := bytes.Repeat([]byte("burn me!"), int(size/8)), make([]byte, size)
			for range 2 { // its owner has it as any other
				if _, err := r.WriteAt(data, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
					t.Fatal(err)
				}
			}
			first, err := l.open(r.Handle())
			must(t, err)
			second, err := l.open(r.Handle())
			must(t, err)
			another, err := l.other.Alloc(ctx, 64)
			must(t, err)
			_, written := first.WriteAt(data, 0)
			_, added := first.FetchAdd(ctx, 0, 1)
			for what, err := range map[string]error{"write": written, "add": added, "copy": another.CopyFrom(ctx, 0, first, 0, 8), "copy to": first.CopyFrom(ctx, 0, another, 0, 8)} {
				wantError(t, what, err, ErrOnce)
			}
			wantError(t, "free", first.Free(ctx), ErrNotOwner)
			must(t, another.Free(ctx))
			clear(got)
			if n, err := first.ReadAt(got, 0); int64(n) != size || err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v", n, err)
			}
			_, again := first.ReadAt(got, 0)
			_, late := second.ReadAt(got, 0)
			_, opened := l.open(r.Handle())
			_, owner := r.FetchAdd(ctx, 0, 1)
			for what, err := range map[string]error{"again": again, "late": late, "open": opened, "owner": owner, "free": r.Free(ctx)} {
				wantError(t, what, err, ErrUsed)
			}
			if st := l.stats(); st.Used != 0 || len(st.Regions) != 0 {
				t.Errorf("%+v", st)
			}
		}
	})
}

// TestOnceRaced has many read at once: one gets it.
// parity: Y10
func TestOnceRaced(t *testing.T) {
	eachLending(t, Config{}, func(t *testing.T, l lending) {
		r, err := l.owner.AllocWith(devicetest.Context(t), 64, AllocOptions{Once: true})
		must(t, err)
		var parts []*Region
		for range 8 {
			r, err := l.open(r.Handle())
			must(t, err)
			parts = append(parts, r)
		}
		errs := make(chan error)
		for _, r := range parts {
			go func() {
				_, err := r.ReadAt(make([]byte, 64), 0)
				errs <- err
			}()
		}
		won := 0
		for range parts {
			if err := <-errs; err == nil {
				won++
			} else {
				wantError(t, "lost", err, ErrUsed)
			}
		}
		if won != 1 {
			t.Errorf("%d have read it", won)
		}
	})
}

// TestOnceLeft has a reader claim a region and vanish: it comes back by itself, and the lease is no longer than the region's.
// parity: Y10
func TestOnceLeft(t *testing.T) {
	eachLending(t, Config{}, func(t *testing.T, l lending) {
		ctx := devicetest.Context(t)
		r, err := l.owner.AllocWith(ctx, 64, AllocOptions{Once: true, Lease: time.Hour})
		must(t, err)
		if a, err := r.ask(ctx, "claim", &request{Op: uint32(opClaim)}); err != nil || leaseOf(a) > claimTime || a.ID == r.id || a.Secret == r.secret {
			t.Errorf("%+v, %v", a, err)
		}
		if st := l.stats(); st.Used != 64 || len(st.Regions) != 1 || st.Regions[0].Lease > claimTime {
			t.Errorf("%+v", st)
		}
		brief, err := l.owner.AllocWith(ctx, 64, AllocOptions{Once: true, Lease: time.Millisecond})
		must(t, err)
		_, _ = brief.ask(ctx, "claim", &request{Op: uint32(opClaim)}) // it may be too late already
		eventually(t, "the claim ends", func() bool { return len(l.stats().Regions) == 1 })
		plain, err := l.owner.Alloc(ctx, 64)
		must(t, err)
		_, err = plain.ask(ctx, "claim", &request{Op: uint32(opClaim)})
		wantError(t, "what is lent for any use", err, ErrNotOwner)
	})
}

// TestOnceNotRenewed lets who has claimed a region not keep it for longer, at the cost of its owner's quota.
// parity: Y10
func TestOnceNotRenewed(t *testing.T) {
	eachLending(t, Config{}, func(t *testing.T, l lending) {
		ctx := devicetest.Context(t)
		r, err := l.owner.AllocWith(ctx, 64, AllocOptions{Once: true, Lease: time.Hour})
		must(t, err)
		a, err := r.ask(ctx, "claim", &request{Op: uint32(opClaim)})
		must(t, err)
		own, err := newRegion(l.other.srv, a)
		must(t, err)
		_, err = own.Renew(ctx, time.Hour)
		wantError(t, "renewed claim", err, ErrNoLease)
		must(t, own.Free(ctx))
	})
}

// TestRegionLimit bounds how many regions there are, since quotas of bytes do not bound the cost of small ones: a host that takes
// all that it gets leaves some to the next one.
// parity: S22
func TestRegionLimit(t *testing.T) {
	l, _, _ := plainLender(t, nil)
	greedy, late := l.callerOf("greedy", hostquota.ProcessHost(0, 1)), l.callerOf("late", hostquota.ProcessHost(0, 2))
	sessions := map[*caller]*session{}
	for _, by := range []*caller{greedy, late} {
		id, ok := l.open(&response{}, by)
		if !ok {
			t.Fatal("no session")
		}
		l.mu.Lock()
		sessions[by] = l.t.sessions[id]
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	table := &l.t
	var r response
	for n := 0; table.admit(&r, sessions[greedy], 1); n++ {
		if n >= mostRegions {
			t.Fatal("no limit")
		}
	}
	if !errors.Is(r.meaning(), ErrQuota) || !strings.Contains(r.meaning().Error(), "262144 regions") {
		t.Errorf("%+v, %v", r, r.meaning())
	}
	if r = (response{}); !table.admit(&r, sessions[late], 1) {
		t.Error(r.meaning())
	}
	for range 8 {
		discharge(greedy.account, 1)
	}
	if r = (response{}); !table.admit(&r, sessions[greedy], 1) {
		t.Error(r.meaning())
	}
}

// TestWipe finds nothing of a region in the memory that it lay in, however it ended.
// parity: Y10
func TestWipe(t *testing.T) {
	for name, c := range map[string]struct {
		cfg Config
		on  AllocOptions
	}{"region": {Config{}, AllocOptions{Wipe: true}}, "server": {Config{Wipe: true}, AllocOptions{}}, "once": {Config{Wipe: true}, AllocOptions{Once: true}}} {
		t.Run(name, func(t *testing.T) {
			eachLending(t, c.cfg, func(t *testing.T, l lending) {
				for _, size := range []int64{100, 2 << 20} {
					r, err := l.owner.AllocWith(devicetest.Context(t), size, c.on)
					must(t, err)
					if _, err := r.WriteAt(bytes.Repeat([]byte{7}, int(size)), 0); err != nil {
						t.Fatal(err)
					}
					mem := l.lent()
					if bytes.Count(mem, []byte{7}) != int(size) {
						t.Fatal("not written")
					}
					end(t, l, r, c.on.Once)
					if n := bytes.Count(mem, []byte{0}); n != int(size) {
						t.Errorf("%d of %d bytes are zero", n, size)
					}
				}
			})
		})
	}
}

// end frees a region, or has it read.
func end(t *testing.T, l lending, r *Region, once bool) {
	t.Helper()
	if !once {
		must(t, r.Free(devicetest.Context(t)))
		return
	}
	reader, err := l.open(r.Handle())
	must(t, err)
	if _, err := reader.ReadAt(make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
}

// TestOpenElsewhere refuses handles of other servers.
// parity: S21
func TestOpenElsewhere(t *testing.T) {
	s, _, dev := serveVerbs(t, Config{})
	c := dialVerbs(t, s, dev)
	h := alloc(t, c, 100).Handle()
	r, err := c.Open(context.Background(), h)
	must(t, err)
	wantError(t, "free", r.Free(devicetest.Context(t)), ErrNotOwner)
	h.Provider++
	_, err = c.Open(context.Background(), h)
	wantError(t, "another provider", err, ErrUnknown)
}
