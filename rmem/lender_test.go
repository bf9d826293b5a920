package rmem

import (
	"errors"
	"testing"
	"time"
)

// plainMemory is memory that no client reaches.
type plainMemory struct {
	b      []byte
	closed int
}

func (m *plainMemory) Bytes() []byte            { return m.b }
func (m *plainMemory) describe(*response) error { return nil }
func (m *plainMemory) Close() error             { m.closed++; return nil }

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
	session, ok := l.open(&response{}, "peer")
	if !ok {
		t.Fatal("no session")
	}
	return l, session, mem
}

// TestAllocForNobody has the client, or the server, end while memory is being made: it is given back before the request is
// answered, so that nothing of it is left when those who answer have ended.
func TestAllocForNobody(t *testing.T) {
	for name, end := range map[string]func(l *lender, session uint64){
		"client": func(l *lender, session uint64) { l.closeSession(session, "test") },
		"server": func(l *lender, _ uint64) { l.closeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			l, session, mem := plainLender(t, end)
			var r response
			l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100}, &r, "peer")
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
func TestExpireFreed(t *testing.T) {
	l, session, mem := plainLender(t, func(*lender, uint64) {})
	var r response
	l.serve(&request{Op: uint32(opAlloc), Session: session, Size: 100, Lease: int64(time.Hour)}, &r, "peer")
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
