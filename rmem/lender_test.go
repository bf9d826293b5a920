package rmem

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
)

// plainMemory is memory that no client reaches.
type plainMemory struct {
	b      []byte
	closed int
}

func (m *plainMemory) Bytes() []byte                     { return m.b }
func (m *plainMemory) describe(*response, *caller) error { return nil }
func (m *plainMemory) Close() error                      { m.closed++; return nil }

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
			var r response
			l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100}, &r, l.callerOf("peer", hostquota.Host{}))
			if err := r.meaning(); !errors.Is(err, ErrSession) {
				t.Errorf("allocation: %v", err)
			}
			if st := l.stats(); mem.closed != 1 || st.Used != 0 || len(st.Regions) != 0 {
				t.Errorf("closed %d times, %+v", mem.closed, st)
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
