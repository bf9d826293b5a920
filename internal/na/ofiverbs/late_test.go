package ofiverbs

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// late is a client that has given up a call with a handle of its memory in the request, and the server of that call. A second call, innocent,
// is under way on the same connection.
type late struct {
	client, server *Endpoint
	to             na.Addr
	caller         na.Addr // as the server sees the client
	innocent       *call
	mem            []byte
	m              na.LateMemory
	remote         na.RemoteMemory
	book           *hostquota.Book
	held           atomic.Int32 // number of calls of hold minus that of the functions it returned
}

const (
	lateTag     = 7
	innocentTag = 8
)

func newLate(t *testing.T, access na.Access, wait time.Duration) *late {
	t.Helper()
	return newLateOf(t, noise(5000), access, wait)
}

// newLateOf is newLate for the memory mem.
func newLateOf(t *testing.T, mem []byte, access na.Access, wait time.Duration) *late {
	t.Helper()
	l := &late{innocent: newCall(), mem: mem, book: hostquota.NewBook(hostquota.Limits{})}
	from := make(chan na.Addr, 2)
	l.server = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from <- m.From
		return nil
	})})
	l.client = openEndpoint(t, Config{LateAccess: wait, Quota: l.book})
	l.to = lookup(t, l.client, l.server)
	m, err := l.client.Register(l.mem, access)
	if err != nil {
		t.Fatal(err)
	}
	l.m = m.(na.LateMemory)
	handle := m.AppendHandle([]byte("arguments before the handle"))
	if l.remote, err = l.server.ParseHandle(m.AppendHandle(nil)); err != nil {
		t.Fatal(err)
	}
	l.client.RecvExpected(&l.innocent.op, l.to, innocentTag, make([]byte, 10))
	given := newCall()
	l.client.RecvExpected(&given.op, l.to, lateTag, make([]byte, 10))
	for tag, payload := range map[uint32][]byte{innocentTag: nil, lateTag: handle} {
		sent := newCall()
		l.client.SendRequest(&sent.op, l.to, tag, request(l.client, payload))
		sent.want(t, 0)
		l.caller = <-from
	}
	l.client.GiveUp(l.to, lateTag, handle, func() string { return "slow" })
	l.client.Cancel(&given.op)
	given.want(t, na.Canceled)
	if !l.m.Late() {
		t.Fatal("Late is false for memory with a handle in the request of a given-up call")
	}
	return l
}

// hold is the argument of Withdraw for memory of the engine.
func (l *late) hold() func() {
	l.held.Add(1)
	return func() { l.held.Add(-1) }
}

// reach starts a write (put) or a read of the memory at the server, and returns the operation.
func (l *late) reach(put bool) *call {
	c := newCall()
	f := []na.Fragment{{Remote: l.remote, Local: make([]byte, len(l.mem))}}
	if put {
		l.server.Put(&c.op, l.caller, f)
	} else {
		l.server.Get(&c.op, l.caller, f)
	}
	return c
}

// answer sends the server's responses to both calls.
func (l *late) answer(t *testing.T) {
	t.Helper()
	for _, tag := range []uint32{lateTag, innocentTag} {
		sent := newCall()
		l.server.SendExpected(&sent.op, l.caller, tag, []byte("ok"))
		sent.want(t, 0)
	}
	l.innocent.want(t, 0)
}

// wantNothingKept waits until the endpoint has released the memory.
func (l *late) wantNothingKept(t *testing.T) {
	t.Helper()
	eventually(t, "the release of the memory", func() bool {
		return l.held.Load() == 0 && l.book.Used(hostquota.Memory) == 0
	})
}

// TestLateAccess checks that a server can access memory of a given-up call after the owner has closed the memory. The other call on the
// connection goes on, and the memory is released when the response of the given-up call has come.
func TestLateAccess(t *testing.T) {
	for name, tc := range map[string]struct{ put, held bool }{"read": {}, "read of the engine's": {held: true}, "write to the engine's": {put: true, held: true}} {
		t.Run(name, func(t *testing.T) {
			access := na.ReadOnly
			if tc.put {
				access = na.ReadWrite
			}
			l := newLate(t, access, 0)
			if tc.held {
				l.m.Withdraw(l.hold)
			} else {
				l.m.Withdraw(nil)
			}
			l.m.Close()
			if l.book.Used(hostquota.Memory) != int64(len(l.mem)) {
				t.Error("the kept memory is not counted")
			}
			l.reach(tc.put).want(t, 0)
			l.answer(t)
			l.wantNothingKept(t)
		})
	}
}

// TestLateAccessRefused checks that a server loses its connection when it accesses closed memory of a given-up call that is not kept, and that
// the error of the other call names the memory and the reason why it was not kept.
func TestLateAccessRefused(t *testing.T) {
	for text, tc := range map[string]struct {
		access na.Access
		wait   time.Duration
	}{
		"LateAccess is negative": {na.ReadOnly, -1}, "may write is not kept": {na.WriteOnly, 0}, "kept for 1ms": {na.ReadOnly, time.Millisecond},
	} {
		t.Run(text, func(t *testing.T) {
			l := newLate(t, tc.access, tc.wait)
			l.m.Withdraw(nil)
			l.m.Close()
			l.wantNothingKept(t)
			l.wantRefused(t, tc.access == na.WriteOnly, text)
		})
	}
}

// wantRefused has the server access the memory, and checks that its connection ends with an error that says text.
func (l *late) wantRefused(t *testing.T, put bool, text string) {
	t.Helper()
	if c := l.reach(put); c.park(t) == nil {
		t.Error("the server has accessed memory that is closed")
	}
	l.innocent.want(t, na.Unreachable)
	for _, want := range []string{"5000 bytes", "the call slow", text, "may have been executed"} {
		if err := l.innocent.op.Err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// TestLateAccessOfMapped has the program unmap memory that it has closed. The server cannot read it, nor the memory that has its address then.
func TestLateAccessOfMapped(t *testing.T) {
	mem, err := hostmem.Map(5000)
	if err != nil {
		t.Fatal(err)
	}
	if hostmem.InGoHeap(mem) {
		t.Skip("with the race detector hostmem.Map returns memory of Go's heap, and this test is about mapped memory")
	}
	l := newLateOf(t, mem, na.ReadOnly, 0)
	l.m.Withdraw(nil)
	l.m.Close()
	l.wantNothingKept(t)
	if err := hostmem.Unmap(mem); err != nil {
		t.Fatal(err)
	}
	l.wantRefused(t, false, "memory outside Go's heap is not kept")
}

// TestLateAccessEnds checks that kept memory is released when the endpoint of either side is closed.
func TestLateAccessEnds(t *testing.T) {
	for _, server := range []bool{false, true} {
		l := newLate(t, na.ReadOnly, 0)
		l.m.Withdraw(l.hold)
		if server {
			closeEndpoint(t, l.server)
		} else {
			closeEndpoint(t, l.client)
		}
		l.wantNothingKept(t)
		_ = l.innocent.park(t) // the other call fails, whichever side is closed
	}
}
