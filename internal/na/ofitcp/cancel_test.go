package ofitcp

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// TestCancelWaiting: operations that wait for a connection or a message are given up at once.
func TestCancelWaiting(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t) // which accepts nothing
	to := r.lookup(e)
	var ops []*call
	for i := range 4 {
		op := newCall()
		ops = append(ops, op)
		frags := []na.Fragment{{Remote: &remote{size: 10, access: na.ReadWrite}, Local: make([]byte, 10)}}
		switch i {
		case 0:
			e.RecvExpected(&op.op, to, 1, make([]byte, 10))
		case 1:
			e.SendRequest(&op.op, to, 1, make([]byte, e.Limits().RequestRoom))
		case 2:
			e.Get(&op.op, to, frags)
		case 3:
			e.Put(&op.op, to, frags)
		}
	}
	for _, op := range ops {
		e.Cancel(&op.op)
		wantKind(t, op.park(t), na.Canceled)
		e.Cancel(&op.op) // too late: nothing happens
	}
}

// TestCancelAsked: a get whose answer does not come, and then does, with the memory in other use.
func TestCancelAsked(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	dst := make([]byte, 3<<20)
	op, recv := newCall(), newCall()
	e.Get(&op.op, to, []na.Fragment{{Remote: &remote{size: 3 << 20, access: na.ReadOnly}, Local: dst}})
	e.RecvExpected(&recv.op, to, 5, make([]byte, 10))
	c := r.accept(1)
	for range 3 {
		c.message()
	}
	chunk := append(appendReadRsp(nil, 1<<20), bytes.Repeat([]byte{7}, 1<<20)...)
	c.write(chunk[:500_000]) // in the middle of an answer
	e.Cancel(&op.op)
	wantKind(t, op.park(t), na.Canceled)
	fill(dst, 0xee)
	c.write(chunk[500_000:])
	c.write(chunk)
	c.write(chunk)
	c.write(rawExpected(5, []byte("after")))
	if err := recv.park(t); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dst, bytes.Repeat([]byte{0xee}, len(dst))) {
		t.Error("memory was written after the cancelled operation had completed")
	}
}

func fill(b []byte, v byte) {
	for n := copy(b, []byte{v}); n > 0 && n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// TestCancelPut: a put to a peer that does not read; what was begun to be sent is sent as it was.
func TestCancelPut(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	src := random(32<<20, 9)
	want := bytes.Clone(src)
	op := newCall()
	e.Put(&op.op, to, []na.Fragment{{Remote: &remote{size: 32 << 20, access: na.WriteOnly}, Local: src}})
	c := r.accept(1)
	head := c.read(writeHeader) // it has begun
	e.Cancel(&op.op)
	wantKind(t, op.park(t), na.Canceled)
	fill(src, 0xee)
	marker := r.send(e, 3, "end")
	var at uint64
	for {
		var m message
		parseHeader(&m, head)
		if m.op == opMsg {
			break
		}
		if m.iov[0].addr != at {
			t.Fatalf("write at %d, want %d", m.iov[0].addr, at)
		}
		if got := c.read(int(m.payload)); !bytes.Equal(got, want[at:at+m.payload]) {
			t.Fatalf("the write at %d has bytes that were not there before the operation completed", at)
		}
		at += m.payload
		c.write(appendAck(nil)) // late: nobody waits, and it is in order
		head = c.read(baseLen)
		head = append(head, c.read(header(head).hdrSize()-baseLen)...)
	}
	if at == 0 || at >= 32<<20 {
		t.Errorf("%d bytes were sent", at)
	}
	if err := marker.park(t); err != nil {
		t.Error(err)
	}
}

// TestCancelAnywhere cancels transfers at random moments while others go on. Memory is poisoned as soon as its operation
// completes with an error; poison must not change, nor travel.
// parity: H86 D48
func TestCancelAnywhere(t *testing.T) {
	const size = 6 << 20
	rounds := 40
	if invariants.Race {
		rounds = 15
	}
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	src := random(size, 1)
	_, from := expose(t, owner, user, src, na.ReadOnly)
	sink := make([]byte, size)
	_, into := expose(t, owner, user, sink, na.WriteOnly)
	var canceled atomic.Int32
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 5))
			local := make([]byte, size)
			op := newCall()
			for range rounds {
				put := rng.IntN(2) == 0
				frags := []na.Fragment{{Remote: from, Local: local}}
				if put {
					copy(local, src)
					frags[0].Remote = into
					user.Put(&op.op, to, frags)
				} else {
					user.Get(&op.op, to, frags)
				}
				cut := time.NewTimer(time.Duration(rng.IntN(3000)) * time.Microsecond)
				wg.Go(func() { // cancels while the operation is driven, or when it is long over
					<-cut.C
					user.Cancel(&op.op)
				})
				err := op.wait(t, user, to)
				cut.Stop()
				cut.Reset(0)
				switch {
				case na.KindOf(err) == na.Canceled:
					canceled.Add(1)
					fill(local, 0xee)
				case err != nil:
					t.Errorf("transfer: %v", err)
				case !put && !bytes.Equal(local, src):
					t.Error("got other bytes than there are")
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d operations were cancelled", canceled.Load())
	check := newClientGet(t, user, to, from, size)
	if !bytes.Equal(check, src) {
		t.Error("the connection is out of order")
	}
	for i, b := range sink {
		if b != 0 && b != src[i] {
			t.Fatalf("byte %d of the target is %#x, which was never to be sent", i, b)
		}
	}
}

// newClientGet gets memory in whole.
func newClientGet(t *testing.T, e *Endpoint, to na.Addr, from na.RemoteMemory, size int) []byte {
	t.Helper()
	dst := make([]byte, size)
	op := newCall()
	e.Get(&op.op, to, []na.Fragment{{Remote: from, Local: dst}})
	if err := op.wait(t, e, to); err != nil {
		t.Fatal(err)
	}
	return dst
}

// TestCancelDirect: an expected message that is being read straight into its buffer.
func TestCancelDirect(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	r.send(e, 1, "")
	c := r.accept(1)
	c.message()
	buf := make([]byte, 1<<20)
	op, next := newCall(), newCall()
	e.RecvExpected(&op.op, to, 5, buf)
	e.RecvExpected(&next.op, to, 6, make([]byte, 10))
	big := rawExpected(5, bytes.Repeat([]byte{7}, 1<<20))
	c.write(big[:300_000])
	e.Cancel(&op.op)
	wantKind(t, op.park(t), na.Canceled)
	fill(buf, 0xee)
	c.write(big[300_000:])
	c.write(rawExpected(6, []byte("next")))
	if err := next.park(t); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf, bytes.Repeat([]byte{0xee}, len(buf))) {
		t.Error("memory was written after the cancelled operation had completed")
	}
}
