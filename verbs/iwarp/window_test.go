package iwarp_test

import (
	"errors"
	"sync"
	"testing"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// window allocates a window of the side's domain.
func (s *side) window(t testing.TB) verbs.MemoryWindow {
	t.Helper()
	w, err := s.pd.AllocMW(verbs.MWType2)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, w.Close)
	return w
}

// bindable registers fresh memory that peers can use by windows only.
func (s *side) bindable(t testing.TB, size int) *verbs.MR {
	t.Helper()
	return s.regionWith(t, size, verbs.LocalWrite|verbs.MWBind)
}

// bind binds a window to n bytes at off of a region, for reads and writes, and returns its key.
func (s *side) bind(t testing.TB, w verbs.MemoryWindow, mr *verbs.MR, off, n int) uint32 {
	t.Helper()
	s.send(t, verbs.SendWR{ID: 70, Op: verbs.OpBindMW, Flags: verbs.Signaled, MW: w, MWAccess: verbs.RemoteRead | verbs.RemoteWrite, SGL: []verbs.SGE{mr.SGE(off, n)}})
	key := w.RKey()
	s.want(t, 70, verbs.WCBindMW, verbs.StatusSuccess)
	return key
}

// TestWindowEndsWithConnection ends the connection on which a window is bound: the region can be closed, the window can be bound on another connection,
// and the peer of that one cannot use the old key.
// parity: V09
func TestWindowEndsWithConnection(t *testing.T) {
	a, b := newPair(t, iwarp.Config{ConfirmWrites: true}, iwarp.Config{})
	w, mr := b.window(t), b.bindable(t, 256)
	old := b.bind(t, w, mr, 0, 64)
	if err := mr.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close of the region while the window is bound: %v, want ErrBusy", err)
	}
	if err := a.conn.Disconnect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	<-b.conn.Done()
	if err := mr.Close(); err != nil {
		t.Errorf("Close of the region after the end of the connection: %v", err)
	}

	c, d := newSide(t, iwarp.Config{ConfirmWrites: true}, nil), b.another(t)
	connect(t, c, d, verbs.ConnParam{}, verbs.ConnParam{})
	second := b.bindable(t, 256)
	src := c.region(t, 64)
	key := d.bind(t, w, second, 64, 64)
	c.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}, Remote: second.RemoteAt(64).WithKey(key)})
	c.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
	c.send(t, verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, 64)}, Remote: second.RemoteAt(64).WithKey(old)})
	c.want(t, 2, 0, verbs.StatusRemAccessErr)
}

// TestForeignWindowIsRefused has a peer read by, and invalidate, the key of a window that is bound on another connection of the same domain. The device
// refuses both, and the key goes on serving its connection.
// parity: V09
func TestForeignWindowIsRefused(t *testing.T) {
	for name, attack := range map[string]func(p *peer, mr *verbs.MR, key uint32){
		"read": func(p *peer, mr *verbs.MR, key uint32) {
			p.send(p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{Size: 8, SourceSTag: key, SourceTO: mr.Remote().Addr}))
		},
		"invalidate": func(p *peer, _ *verbs.MR, key uint32) {
			h := p.untagged(rdmap.OpSendInvalidate)
			h.Rsvd = key
			p.send(h, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := opened(t, iwarp.Config{})
			a, server := newSide(t, iwarp.Config{ConfirmWrites: true}, nil), s.another(t)
			connect(t, a, server, verbs.ConnParam{}, verbs.ConnParam{})
			mr := s.bindable(t, 64)
			w := s.window(t) // is closed before the region
			key := server.bind(t, w, mr, 0, 64)
			s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s.region(t, 64).SGE(0, 64)}})
			attack(p, mr, key)
			if wc := s.wait(t); wc.Status == verbs.StatusSuccess || wc.HasInv {
				t.Errorf("the completion is %+v, want a failure that names no key", wc)
			}
			<-s.conn.Done()
			if n := s.dev.Stats()["audit_denied"]; n != 1 {
				t.Errorf("%d refused accesses are counted, want 1", n)
			}
			dst := a.region(t, 64)
			a.send(t, verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, 64)}, Remote: mr.Remote().WithKey(key)})
			a.want(t, 3, verbs.WCRead, verbs.StatusSuccess)
		})
	}
}

// TestWindowInTraffic unbinds a window in each way while the peer writes and reads through it. Then the region is unmapped, so that a device that still touched it
// would crash.
// parity: V09
func TestWindowInTraffic(t *testing.T) {
	const size, depth = 1 << 20, 8
	unbind := map[string]func(t *testing.T, b *side, w verbs.MemoryWindow){
		"local invalidate": func(t *testing.T, b *side, w verbs.MemoryWindow) {
			// The connection can end first, because the peer's next request fails.
			if _, err := b.qp.PostSend([]verbs.SendWR{{ID: 71, Op: verbs.OpLocalInv, Flags: verbs.Signaled, InvKey: w.RKey()}}); err == nil {
				b.wait(t)
			}
		},
		"close of the window": func(t *testing.T, _ *side, w verbs.MemoryWindow) {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		},
		"end of the connection": func(_ *testing.T, b *side, _ verbs.MemoryWindow) {
			if err := b.qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err == nil {
				<-b.conn.Done()
			}
		},
	}
	for name, f := range unbind {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			t.Run(name+"/"+op.String(), func(t *testing.T) {
				a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
				w, mr, own := b.window(t), b.bindable(t, size), a.region(t, size)
				key := b.bind(t, w, mr, 0, size)
				for id := range uint64(depth) {
					a.send(t, verbs.SendWR{ID: id, Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{own.SGE(0, size)}, Remote: mr.Remote().WithKey(key)})
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					for range depth {
						a.wait(t)
					}
				})
				f(t, b, w)
				if err := mr.Close(); err != nil {
					t.Error(err)
				}
				wg.Wait()
			})
		}
	}
}
