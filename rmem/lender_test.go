package rmem

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostquota"
)

// plainMemory is memory that no client reaches.
type plainMemory struct {
	b       []byte
	closed  int
	onClose func() // Close calls it; nil: nothing
}

func (m *plainMemory) Bytes() []byte                     { return m.b }
func (m *plainMemory) describe(*response, *caller) error { return nil }
func (m *plainMemory) Close() error {
	if m.onClose != nil {
		m.onClose()
	}
	m.closed++
	return nil
}

// plainLender is a lender with a client, that calls made when memory has been made.
func plainLender(t *testing.T, made func(l *lender, session uint64)) (l *lender, session uint64, mem *plainMemory) {
	t.Helper()
	cfg, err := Config{}.filled()
	must(t, err)
	mem = &plainMemory{}
	l = new(lender)
	*l = newLender(cfg, func(size int64, _ bool) (memory, error) {
		mem.b = heapMemory(size)
		made(l, session)
		return mem, nil
	})
	session, ok := l.open(&response{}, l.callerOf("peer", hostquota.Host{}))
	if !ok {
		t.Fatal("no session")
	}
	return l, session, mem
}

// TestAllocForNobody has the client, or the server, end while memory is being made: it is given back before the request is
// answered, so that nothing of it is left when those who answer have ended.
// parity: S22
func TestAllocForNobody(t *testing.T) {
	for name, end := range map[string]func(l *lender, session uint64){
		"client": func(l *lender, session uint64) { l.closeSession(session, "test") },
		"server": func(l *lender, _ uint64) { l.closeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			l, session, mem := plainLender(t, end)
			by := l.callerOf("peer", hostquota.Host{})
			mem.onClose = func() {
				if st := l.stats(); st.Used != 100 || len(st.Regions) != 1 || by.account.Used(hostquota.Memory) != 100 {
					t.Errorf("while the memory is being closed: %+v, %d bytes of the host", st, by.account.Used(hostquota.Memory))
				}
			}
			var r response
			l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100}, &r, by)
			if err := r.meaning(); !errors.Is(err, ErrSession) {
				t.Errorf("allocation: %v", err)
			}
			if st := l.stats(); mem.closed != 1 || st.Used != 0 || len(st.Regions) != 0 || by.account.Used(hostquota.Memory) != 0 {
				t.Errorf("closed %d times, %+v, %d bytes of the host", mem.closed, st, by.account.Used(hostquota.Memory))
			}
		})
	}
}

// TestExpireFreed has a lease end in the moment in which the region is renewed and freed: no timer keeps its memory.
// parity: Y10
func TestExpireFreed(t *testing.T) {
	l, session, mem := plainLender(t, func(*lender, uint64) {})
	var r response
	l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100, Lease: int64(time.Hour)}, &r, l.callerOf("peer", hostquota.Host{}))
	must(t, r.meaning())
	l.mu.Lock()
	e := l.t.regions[r.ID]
	l.mu.Unlock()
	if !l.revoke(r.ID) || mem.closed != 1 {
		t.Fatal("not revoked")
	}
	l.expire(e) // as the timer's function that waited for the lock
	if e.timer.Stop() {
		t.Error("a timer runs for a region that is gone")
	}
}

// TestEndingRegionCounts ends a region in each way. Stats lists the region and counts its bytes until its memory is closed, because clients may
// reach the memory until then, and an owner looks at Stats to learn when none can.
func TestEndingRegionCounts(t *testing.T) {
	for name, end := range map[string]func(l *lender, session uint64, e *entry){
		"free": func(l *lender, _ uint64, e *entry) {
			l.serve(&request{Op: uint32(opFree), ID: e.id, Secret: e.secret}, &response{}, l.callerOf("peer", hostquota.Host{}))
		},
		"revoke":  func(l *lender, _ uint64, e *entry) { l.revoke(e.id) },
		"session": func(l *lender, session uint64, _ *entry) { l.closeSession(session, "test") },
		"lease":   func(l *lender, _ uint64, e *entry) { l.expire(e) }, // as its timer does
		"server":  func(l *lender, _ uint64, _ *entry) { l.closeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			l, session, mem := plainLender(t, func(*lender, uint64) {})
			by := l.callerOf("peer", hostquota.Host{})
			var r response
			l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100}, &r, by)
			must(t, r.meaning())
			l.mu.Lock()
			e := l.t.regions[r.ID]
			l.mu.Unlock()
			mem.onClose = func() {
				if st := l.stats(); st.Used != 100 || len(st.Regions) != 1 || by.account.Used(hostquota.Memory) != 100 {
					t.Errorf("while the memory is being closed: %+v, %d bytes of the host", st, by.account.Used(hostquota.Memory))
				}
				var r response
				l.serve(&request{Op: uint32(opStat), ID: e.id}, &r, by)
				if r.meaning() == nil {
					t.Error("opStat finds a region that is ending")
				}
			}
			end(l, session, e)
			if st := l.stats(); mem.closed != 1 || st.Used != 0 || len(st.Regions) != 0 || by.account.Used(hostquota.Memory) != 0 {
				t.Errorf("closed %d times, %+v, %d bytes of the host", mem.closed, st, by.account.Used(hostquota.Memory))
			}
			var after response
			l.usage(&after)
			if after.Left != l.cfg.Quota {
				t.Errorf("%d bytes are left of %d", after.Left, l.cfg.Quota)
			}
		})
	}
}

// TestCloseWaitsForEnds closes the server while another goroutine closes the memory of a region: the server's end waits for it.
func TestCloseWaitsForEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, session, mem := plainLender(t, func(*lender, uint64) {})
		var r response
		l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100}, &r, l.callerOf("peer", hostquota.Host{}))
		must(t, r.meaning())
		goOn := make(chan struct{})
		mem.onClose = func() { <-goOn }
		go l.revoke(r.ID)
		synctest.Wait()
		closed := make(chan struct{}, 2)
		for range cap(closed) {
			go func() {
				l.closeAll()
				closed <- struct{}{}
			}()
		}
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("the server has ended before the memory was closed")
		}
		close(goOn)
		<-closed
		<-closed
		if mem.closed != 1 {
			t.Errorf("the memory was closed %d times", mem.closed)
		}
	})
}

// TestCopyInPieces copies more than a piece between regions, and between parts of one that overlap, in both directions.
func TestCopyInPieces(t *testing.T) {
	const size, n = 3*strictChunk + 100, 2*strictChunk + 7
	region := func(id uint64) *entry {
		mem := heapMemory(size)
		fillRandom(mem)
		return &entry{id: id, size: size, mem: &plainMemory{b: mem}}
	}
	for name, c := range map[string]struct {
		to, from    uint64
		off, srcOff int64
	}{
		"forward": {1, 1, 0, 100}, "backward": {1, 1, 100, 0}, "onto itself": {1, 1, 5, 5},
		"from the smaller": {2, 1, 8, 0}, "to the smaller": {1, 2, 0, 8},
	} {
		from := region(c.from)
		to := from
		if c.to != c.from {
			to = region(c.to)
		}
		want := bytes.Clone(to.mem.Bytes())
		copy(want[c.off:c.off+n], from.mem.Bytes()[c.srcOff:])
		var r response
		copyWithin(&r, to, from, &request{Offset: c.off, SourceOffset: c.srcOff, Size: n})
		if r.Status != 0 || !bytes.Equal(to.mem.Bytes(), want) {
			t.Errorf("%s: status %d, or another content than that of one copy", name, r.Status)
		}
	}
}
