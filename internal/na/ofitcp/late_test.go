package ofitcp

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
)

// lateCaller is an endpoint with a request to a raw peer that it has given up.
type lateCaller struct {
	e  *Endpoint
	r  *raw
	c  *rawConn
	to na.Addr
}

// giveUpWith sends a request to a raw peer, with the handles of mems, and gives it up.
func giveUpWith(t *testing.T, cfg Config, tag uint32, register func(e *Endpoint) []na.Memory) *lateCaller {
	t.Helper()
	l := &lateCaller{e: openEndpoint(t, cfg), r: newRaw(t)}
	l.r.tls = l.e.tls
	l.to = l.r.lookup(l.e)
	payload := []byte("handles: ")
	for _, m := range register(l.e) {
		payload = m.AppendHandle(payload)
	}
	recv := newCall()
	l.e.RecvExpected(&recv.op, l.to, tag, make([]byte, 100))
	send := l.r.send(l.e, tag, string(payload))
	l.c = l.r.accept(1)
	l.c.message()
	if err := send.park(t); err != nil {
		t.Fatal(err)
	}
	l.e.GiveUp(l.to, tag, payload, func() string { return "slow" })
	l.e.Cancel(&recv.op)
	wantKind(t, recv.park(t), na.Canceled)
	return l
}

// wantLates checks how many calls the endpoint remembers.
func (l *lateCaller) wantLates(t *testing.T, n int64) {
	t.Helper()
	until(t, fmt.Sprintf("%d late calls", n), func() bool { return l.e.late.calls.Len() == n })
}

func keyOf(m na.Memory) uint64 { return m.(*memory).key }

// TestLateWriteOfSeveralPieces has a peer write to memory that is kept and to memory that is open in one message: what is
// for the one is discarded, and the other gets its bytes, however the message is cut into pieces by the network.
func TestLateWriteOfSeveralPieces(t *testing.T) {
	for _, size := range []int{10, stageBytes / 2, 100_000} {
		closed, open := make([]byte, size), make([]byte, size)
		var mems []na.Memory
		l := giveUpWith(t, Config{}, 7, func(e *Endpoint) []na.Memory {
			for _, b := range [][]byte{closed, open} {
				m, err := e.Register(b, na.WriteOnly)
				if err != nil {
					t.Fatal(err)
				}
				mems = append(mems, m)
			}
			return mems
		})
		mems[0].(na.LateMemory).Withdraw(nil)
		mems[0].Close()
		n := uint64(size)
		for _, first := range []int{0, 1} {
			clear(open)
			vs := []iov{{len: n, key: keyOf(mems[first])}, {len: n, key: keyOf(mems[1-first])}, {key: keyOf(mems[first])}}
			l.c.write(appendWrite(nil, vs, 2*n))
			want := random(size, uint64(first))
			junk := bytes.Repeat([]byte{'#'}, size)
			parts := [][]byte{junk, want}
			if first == 1 {
				parts = [][]byte{want, junk}
			}
			for _, b := range parts {
				l.c.write(b)
			}
			if m, _ := l.c.message(); !m.ack {
				t.Fatalf("%+v is no acknowledgement", m)
			}
			if !bytes.Equal(open, want) {
				t.Errorf("%d bytes: the open memory has other bytes", size)
			}
			if bytes.Contains(closed, []byte{'#'}) {
				t.Errorf("%d bytes: the closed memory was written to", size)
			}
		}
		l.wantLates(t, 1)
		l.c.write(rawExpected(7, []byte("late answer")))
		l.wantLates(t, 0)
	}
}

// TestGiveUpAfterTheAnswer gives up a request whose answer has come: there is nothing to remember.
func TestGiveUpAfterTheAnswer(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	m, err := e.Register(make([]byte, 10), na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	to := r.lookup(e)
	recv := newCall()
	e.RecvExpected(&recv.op, to, 1, make([]byte, 100))
	send := r.send(e, 1, "")
	c := r.accept(1)
	c.write(rawExpected(1, nil))
	if err := errors.Join(send.park(t), recv.park(t)); err != nil {
		t.Fatal(err)
	}
	e.GiveUp(to, 1, m.AppendHandle(nil), func() string { return "quick" })
	if n := e.late.calls.Len(); n != 0 {
		t.Errorf("%d calls are remembered", n)
	}
}

// TestLateCallsAreBounded gives up more calls than a connection remembers.
func TestLateCallsAreBounded(t *testing.T) {
	var mem na.Memory
	l := giveUpWith(t, Config{}, 0, func(e *Endpoint) []na.Memory {
		mem, _ = e.Register(make([]byte, 10), na.ReadOnly)
		return []na.Memory{mem}
	})
	recv := make([]*call, 3*peerbook.MaxGivenUp)
	for i := range recv {
		tag := uint32(i + 1)
		recv[i] = newCall()
		l.e.RecvExpected(&recv[i].op, l.to, tag, make([]byte, 10))
		l.e.GiveUp(l.to, tag, mem.AppendHandle(nil), func() string { return "many" })
	}
	if n := l.e.late.calls.Len(); n != peerbook.MaxGivenUp {
		t.Errorf("%d calls are remembered, want %d", n, peerbook.MaxGivenUp)
	}
	l.e.late.mu.Lock()
	if known := len(mem.(*memory).late.handles); known != peerbook.MaxGivenUp {
		t.Errorf("the memory knows %d calls, want %d", known, peerbook.MaxGivenUp)
	}
	l.e.late.mu.Unlock()
	_ = l.c.Close()
	for _, op := range recv {
		wantKind(t, op.park(t), na.Unreachable)
	}
	l.wantLates(t, 0)
}

// TestUnsentRequestsAreRepeated has a connection end by a late access while requests wait because the peer reads nothing:
// those that have not left arrive over the next connection, and the error of each other says that it may have been executed.
func TestUnsentRequestsAreRepeated(t *testing.T) {
	var mem na.Memory
	l := giveUpWith(t, Config{LateAccess: -1, MaxRequest: 1 << 20}, 1, func(e *Endpoint) []na.Memory {
		mem, _ = e.Register(make([]byte, 10), na.ReadOnly)
		return []na.Memory{mem}
	})
	mem.(na.LateMemory).Withdraw(nil)
	mem.Close()
	const requests = 64 // of a quarter of a MiB: more than sockets hold
	sends, recvs := make([]*call, requests), make([]*call, requests)
	for i := range requests {
		recvs[i] = newCall()
		l.e.RecvExpected(&recvs[i].op, l.to, uint32(i+2), make([]byte, 10))
		sends[i] = l.r.send(l.e, uint32(i+2), strings.Repeat("x", 256<<10))
	}
	own := l.to.(*peer).conn.Load()
	until(t, "a full socket", own.blocked.Load)
	l.c.write(appendReadReq(nil, []iov{{len: 1, key: keyOf(mem)}}))
	next := l.r.accept(1)
	m, _ := next.message()
	first := int(m.cqData) - 2 // of those that come again, in their order
	if first <= 0 || first >= requests {
		t.Fatalf("%d of %d requests came over the first connection", first, requests)
	}
	for i := range requests {
		if i < first {
			_ = sends[i].park(t)
			if err := recvs[i].park(t); err == nil || !strings.Contains(err.Error(), "exposed for the call slow") || !strings.Contains(err.Error(), "may have been executed") {
				t.Errorf("request %d: %v", i, err)
			}
			continue
		}
		if i > first {
			m, _ = next.message()
		}
		if int(m.cqData) != i+2 {
			t.Fatalf("request %d came, want %d", m.cqData-2, i)
		}
		next.write(rawExpected(uint64(i+2), nil))
		if err := errors.Join(sends[i].park(t), recvs[i].park(t)); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

// TestGiveUpWhileKeptMemoryEnds gives up a call whose request has a handle of kept memory, at the moment that the keeping ends:
// the memory is given back once, and the endpoint can be closed.
func TestGiveUpWhileKeptMemoryEnds(t *testing.T) {
	var mem na.Memory
	l := giveUpWith(t, Config{}, 1, func(e *Endpoint) []na.Memory {
		mem, _ = e.Register(make([]byte, 10), na.ReadOnly)
		return []na.Memory{mem}
	})
	handle := mem.AppendHandle(nil)
	var released atomic.Int32
	mem.(na.LateMemory).Withdraw(func() func() { return func() { released.Add(1) } })
	mem.Close()
	recv := newCall()
	l.e.RecvExpected(&recv.op, l.to, 2, make([]byte, 100))
	l.e.GiveUp(l.to, 2, handle, func() string {
		l.c.write(rawExpected(1, nil))
		l.wantLates(t, 0)
		until(t, "kept memory that is given back", func() bool { return released.Load() == 1 })
		return "late"
	})
	l.wantLates(t, 1)
	l.c.write(rawExpected(2, nil))
	if err := recv.park(t); err != nil {
		t.Fatal(err)
	}
	l.wantLates(t, 0)
	l.e.Close(t.Context())
	if n := released.Load(); n != 1 {
		t.Errorf("kept memory is given back %d times", n)
	}
}

// TestGiveUpWhileMemoryIsClosed gives up a call at the moment that its memory is closed: the call does not keep the memory from
// the collector.
func TestGiveUpWhileMemoryIsClosed(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	mem, err := e.Register(make([]byte, 10), na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	to := r.lookup(e)
	recv := newCall()
	e.RecvExpected(&recv.op, to, 1, make([]byte, 100))
	r.connect(e)
	e.GiveUp(to, 1, mem.AppendHandle(nil), func() string {
		mem.(na.LateMemory).Withdraw(nil)
		mem.Close()
		return "late"
	})
	e.late.mu.Lock()
	for call := range e.late.calls.Of(to.(*peer).conn.Load()) {
		for _, h := range call.mem {
			if h.m != nil {
				t.Error("the call refers to memory that is closed and not kept")
			}
		}
	}
	e.late.mu.Unlock()
	if mem.(na.LateMemory).Late() {
		t.Error("closed memory waits for a late access")
	}
	e.Cancel(&recv.op)
	wantKind(t, recv.park(t), na.Canceled)
}

// TestLateHandlesAreBounded gives up calls whose requests have many handles each.
func TestLateHandlesAreBounded(t *testing.T) {
	const each = 1024
	var mems []na.Memory
	var request []byte
	l := giveUpWith(t, Config{}, 0, func(e *Endpoint) []na.Memory {
		for range each {
			m, err := e.Register(make([]byte, 10), na.ReadOnly)
			if err != nil {
				t.Fatal(err)
			}
			mems = append(mems, m)
			request = m.AppendHandle(request)
		}
		return mems[:1]
	})
	recv := make([]*call, peerbook.MaxGivenUpHandles/each+8)
	for i := range recv {
		tag := uint32(i + 1)
		recv[i] = newCall()
		l.e.RecvExpected(&recv[i].op, l.to, tag, make([]byte, 10))
		l.e.GiveUp(l.to, tag, request, func() string { return "many" })
	}
	l.wantLates(t, peerbook.MaxGivenUpHandles/each)
	if n := mems[0].(*memory).late.n.Load(); n != peerbook.MaxGivenUpHandles/each {
		t.Errorf("the memory knows %d handles, want %d", n, peerbook.MaxGivenUpHandles/each)
	}
	_ = l.c.Close()
	for _, op := range recv {
		wantKind(t, op.park(t), na.Unreachable)
	}
	l.wantLates(t, 0)
}

// TestKeptMemoryEndsTogether has a call with many handles answered: one goroutine gives all the memory back, however long each
// piece takes.
func TestKeptMemoryEndsTogether(t *testing.T) {
	var mems []na.Memory
	l := giveUpWith(t, Config{}, 1, func(e *Endpoint) []na.Memory {
		for range 50 { // their handles fit into a request
			m, err := e.Register(make([]byte, 10), na.ReadOnly)
			if err != nil {
				t.Fatal(err)
			}
			mems = append(mems, m)
		}
		return mems
	})
	open, err := l.e.Register(make([]byte, 10), na.WriteOnly)
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Int32
	next := make(chan struct{})
	for _, m := range mems {
		m.(na.LateMemory).Withdraw(func() func() {
			return func() {
				<-next
				over.Add(1)
			}
		})
		m.Close()
	}
	before := runtime.NumGoroutine()
	l.c.write(rawExpected(1, nil))
	l.c.write(appendWrite(nil, []iov{{len: 1, key: keyOf(open)}}, 1))
	l.c.write([]byte{1})
	if m, _ := l.c.message(); !m.ack { // the answer before it has been dealt with
		t.Fatalf("%+v is no acknowledgement", m)
	}
	if n := runtime.NumGoroutine() - before; n >= len(mems)/2 {
		t.Errorf("%d goroutines give memory back at once", n)
	}
	close(next)
	until(t, "all memory given back", func() bool { return int(over.Load()) == len(mems) })
}

// TestGiveUpOfAQueuedRequest gives up a request that waits behind others because the peer reads nothing: no memory is kept for it.
func TestGiveUpOfAQueuedRequest(t *testing.T) {
	e, r := openEndpoint(t, Config{MaxRequest: 1 << 20}), newRaw(t)
	mem, err := e.Register(make([]byte, 10), na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	to := r.lookup(e)
	c := r.connect(e)
	const requests = 64 // of a quarter of a MiB: more than sockets hold
	sends := make([]*call, requests)
	for i := range sends {
		sends[i] = r.send(e, uint32(i+2), strings.Repeat("x", 256<<10))
	}
	until(t, "a full socket", to.(*peer).conn.Load().blocked.Load)
	const tag = 1000
	payload := mem.AppendHandle(nil)
	recv := newCall()
	e.RecvExpected(&recv.op, to, tag, make([]byte, 10))
	send := r.send(e, tag, string(payload))
	e.GiveUp(to, tag, payload, func() string { return "queued" })
	e.Cancel(&send.op)
	e.Cancel(&recv.op)
	wantKind(t, send.park(t), na.Canceled)
	wantKind(t, recv.park(t), na.Canceled)
	if n := e.late.calls.Len(); n != 0 {
		t.Errorf("%d calls are remembered", n)
	}
	_ = c.Close()
	for _, op := range sends {
		_ = op.park(t)
	}
}

// TestGiveUpBeforeTheConnection gives up a request that waits for a connection: it does not leave when that comes.
func TestGiveUpBeforeTheConnection(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	mem, err := e.Register(make([]byte, 10), na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	to := r.lookup(e)
	payload := mem.AppendHandle(nil)
	recv := newCall()
	e.RecvExpected(&recv.op, to, 1, make([]byte, 10))
	send, other := r.send(e, 1, string(payload)), r.send(e, 2, "")
	e.GiveUp(to, 1, payload, func() string { return "early" })
	c := r.accept(1)
	if m, _ := c.message(); m.cqData != 2 {
		t.Errorf("request %d has left", m.cqData)
	}
	wantKind(t, send.park(t), na.Canceled)
	if err := other.park(t); err != nil {
		t.Error(err)
	}
	e.Cancel(&recv.op)
	wantKind(t, recv.park(t), na.Canceled)
}
