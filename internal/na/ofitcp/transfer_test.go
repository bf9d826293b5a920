package ofitcp

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// TestFragments has 1,024 fragments over several pieces of memory, in a random order, both ways.
func TestFragments(t *testing.T) {
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	for _, size := range []int{1, 7, 1000, 5000} {
		rng := rand.New(rand.NewPCG(uint64(size), 1))
		const regions, per = 8, 128
		var src, back [regions][]byte
		var from, into [regions]na.RemoteMemory
		for i := range regions {
			src[i], back[i] = random(per*size, uint64(i)), make([]byte, per*size)
			_, from[i] = expose(t, owner, user, src[i], na.ReadOnly)
			_, into[i] = expose(t, owner, user, back[i], na.WriteOnly)
		}
		local := make([]byte, regions*per*size)
		var gets, puts []na.Fragment
		for i := range regions * per {
			part := local[i*size : (i+1)*size]
			off := uint64(i % per * size)
			gets = append(gets, na.Fragment{Remote: from[i/per], Offset: off, Local: part})
			puts = append(puts, na.Fragment{Remote: into[i/per], Offset: off, Local: part})
		}
		if size == 7 { // neighbours are far apart: nothing can be joined
			rng.Shuffle(len(gets), func(i, j int) { gets[i], gets[j] = gets[j], gets[i] })
			rng.Shuffle(len(puts), func(i, j int) { puts[i], puts[j] = puts[j], puts[i] })
		}
		op := newCall()
		user.Get(&op.op, to, gets)
		if err := op.wait(t, user, to); err != nil || op.op.N != int64(len(local)) {
			t.Fatalf("get: %d, %v", op.op.N, err)
		}
		user.Put(&op.op, to, puts)
		if err := op.wait(t, user, to); err != nil || op.op.N != int64(len(local)) {
			t.Fatalf("put: %d, %v", op.op.N, err)
		}
		for i := range regions {
			if !bytes.Equal(src[i], local[i*per*size:(i+1)*per*size]) || !bytes.Equal(src[i], back[i]) {
				t.Fatalf("fragments of %d bytes: region %d differs", size, i)
			}
		}
	}
}

// TestEmptyFragments: fragments without bytes, among others and alone.
func TestEmptyFragments(t *testing.T) {
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	_, from := expose(t, owner, user, []byte("0123456789"), na.ReadOnly)
	dst := make([]byte, 4)
	op := newCall()
	user.Get(&op.op, to, []na.Fragment{{Remote: from}, {Remote: from, Offset: 2, Local: dst[:2]}, {Remote: from, Offset: 10}, {Remote: from, Offset: 8, Local: dst[2:]}, {Remote: from}})
	if err := op.wait(t, user, to); err != nil || string(dst) != "2389" {
		t.Errorf("%q, %v", dst, err)
	}
	for _, frags := range [][]na.Fragment{nil, {{Remote: from}}} {
		user.Get(&op.op, to, frags)
		if err := op.park(t); err != nil || op.op.N != 0 {
			t.Errorf("nothing: %d, %v", op.op.N, err)
		}
	}
}

// TestTransferArguments: ranges and rights are checked before anything is sent.
func TestTransferArguments(t *testing.T) {
	e := openEndpoint(t, Config{})
	to, err := e.Lookup("ofi+tcp://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	other := openEndpoint(t, Config{})
	ro, wo := &remote{size: 10, access: na.ReadOnly}, &remote{size: 10, access: na.WriteOnly}
	for _, tc := range []struct {
		put  bool
		to   na.Addr
		frag na.Fragment
		kind na.Kind
	}{
		{false, to, na.Fragment{Remote: wo, Local: make([]byte, 1)}, na.Denied},
		{true, to, na.Fragment{Remote: ro, Local: make([]byte, 1)}, na.Denied},
		{false, to, na.Fragment{Remote: ro, Local: make([]byte, 11)}, na.Denied},
		{false, to, na.Fragment{Remote: ro, Offset: 10, Local: make([]byte, 1)}, na.Denied},
		{false, to, na.Fragment{Remote: ro, Offset: math.MaxUint64, Local: make([]byte, 2)}, na.Denied},
		{false, to, na.Fragment{Local: make([]byte, 2)}, na.Invalid},
		{false, other.Addr(), na.Fragment{Remote: ro, Local: make([]byte, 1)}, na.Invalid},
	} {
		op := newCall()
		if tc.put {
			e.Put(&op.op, tc.to, []na.Fragment{tc.frag})
		} else {
			e.Get(&op.op, tc.to, []na.Fragment{tc.frag})
		}
		wantKind(t, op.park(t), tc.kind)
	}
	op := newCall()
	e.SendRequest(&op.op, to, 1, make([]byte, 3))
	wantKind(t, op.park(t), na.Invalid)
	e.SendRequest(&op.op, to, 1, make([]byte, 5000))
	wantKind(t, op.park(t), na.Truncated)
	e.RecvExpected(&op.op, to, 1, nil)
	again := newCall()
	e.RecvExpected(&again.op, to, 1, nil)
	wantKind(t, again.park(t), na.Invalid)
	e.Cancel(&op.op)
	wantKind(t, op.park(t), na.Canceled)
}

// TestManyTransfers: 64 at once on one piece of memory, and calls between them that do not wait for them.
func TestManyTransfers(t *testing.T) {
	owner, user := openEcho(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	const part = 300_000
	src := random(64*part, 4)
	_, from := expose(t, owner, user, src, na.ReadOnly)
	back := make([]byte, len(src))
	_, into := expose(t, owner, user, back, na.WriteOnly)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			local := make([]byte, part)
			op := newCall()
			off := uint64(i * part)
			user.Get(&op.op, to, []na.Fragment{{Remote: from, Offset: off, Local: local}})
			if err := op.wait(t, user, to); err != nil || !bytes.Equal(local, src[off:off+part]) {
				t.Errorf("get %d: %v", i, err)
			}
			user.Put(&op.op, to, []na.Fragment{{Remote: into, Offset: off, Local: local}})
			if err := op.wait(t, user, to); err != nil {
				t.Errorf("put %d: %v", i, err)
			}
		})
	}
	c := newClient(user, to, 0)
	for range 20 {
		c.must(t, []byte("between"))
	}
	wg.Wait()
	if !bytes.Equal(src, back) {
		t.Error("bytes differ")
	}
}

// TestLarge moves more than 4 GiB in one operation, from and to the same few bytes of memory.
func TestLarge(t *testing.T) {
	if testing.Short() || invariants.Race {
		t.Skip("moves 9 GiB, which is more than the race detector gets anything out of")
	}
	const size = 64 << 20
	owner, user := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := addrOf(t, user, owner)
	src := random(size, 6)
	_, from := expose(t, owner, user, src, na.ReadOnly)
	dst := make([]byte, size)
	_, into := expose(t, owner, user, src, na.WriteOnly)
	var gets, puts []na.Fragment
	for range (4<<30)/size + 1 {
		gets = append(gets, na.Fragment{Remote: from, Local: dst})
		puts = append(puts, na.Fragment{Remote: into, Local: dst})
	}
	want := int64(len(gets)) * size
	op := newCall()
	user.Get(&op.op, to, gets)
	if err := op.wait(t, user, to); err != nil || op.op.N != want || !bytes.Equal(src, dst) {
		t.Errorf("get: %d, %v", op.op.N, err)
	}
	user.Put(&op.op, to, puts)
	if err := op.wait(t, user, to); err != nil || op.op.N != want || !bytes.Equal(src, dst) {
		t.Errorf("put: %d, %v", op.op.N, err)
	}
}

// TestLargeOnWire: one read of more than 4 GiB, as peers send it that do not cut their transfers. The memory is only
// read, so that no page of it is ever allocated.
func TestLargeOnWire(t *testing.T) {
	if testing.Short() || invariants.Race {
		t.Skip("moves 5 GiB, which is more than the race detector gets anything out of")
	}
	const size = 5 << 30
	mem, err := hostmem.Map(size)
	if err != nil {
		t.Skipf("5 GiB of address space: %v", err)
	}
	defer func() { _ = hostmem.Unmap(mem) }()
	e, r := openEndpoint(t, Config{}), newRaw(t)
	m, h := expose(t, e, e, mem, na.ReadOnly)
	defer m.Close()
	c, _ := r.dial(e, 1)
	c.write(appendReadReq(nil, []iov{{len: size, key: h.(*remote).key}}))
	var msg message
	if n := parseHeader(&msg, c.read(baseLen)); n != baseLen || msg.payload != size {
		t.Fatalf("%d, %+v", n, msg)
	}
	buf := make([]byte, 4<<20)
	for left := size; left > 0; left -= len(buf) {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf[:min(left, len(buf))]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChunks: however fragments lie, the chunks of a transfer cover them once, in order, within all limits.
func TestChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := transfer{put: rapid.Bool().Draw(t, "put")}
		mem := make([]byte, 3<<20)
		for i := range rapid.IntRange(1, 80).Draw(t, "fragments") {
			n := rapid.SampledFrom([]int{0, 1, 10, 5000, chunkBytes - 1, chunkBytes, 2*chunkBytes + 3}).Draw(t, "length")
			tr.frags = append(tr.frags, na.Fragment{Remote: &remote{key: uint64(rapid.IntRange(1, 2).Draw(t, "key"))}, Offset: uint64(i) << 30, Local: mem[:n]})
			if i > 0 && rapid.Bool().Draw(t, "adjoins") {
				last := tr.frags[i-1]
				tr.frags[i].Remote, tr.frags[i].Offset = last.Remote, last.Offset+uint64(len(last.Local))
			}
			tr.total += uint64(n)
		}
		tr.start()
		frag, off := tr.frag, tr.off
		for tr.issued < tr.total {
			c := tr.next()
			if err := checkChunk(&tr, c, frag, off); err != nil {
				t.Fatal(err)
			}
			frag, off = tr.advance(frag, off, c.n)
			frag, off = tr.settle(frag, off)
		}
		if tr.frag != len(tr.frags) || tr.issued != tr.total {
			t.Fatalf("ends in fragment %d of %d, with %d of %d bytes", tr.frag, len(tr.frags), tr.issued, tr.total)
		}
	})
}

// checkChunk compares a chunk with what should come next.
func checkChunk(tr *transfer, c chunk, frag int, off uint64) error {
	if c.frag != frag || c.off != off || c.n == 0 || c.n > chunkBytes || c.niov < 1 || c.niov > maxIOV {
		return fmt.Errorf("chunk %+v at %d in fragment %d", c, off, frag)
	}
	pieces := tr.local(nil, c.frag, c.off, c.n, 1<<20)
	if tr.put && len(pieces) > maxPieces {
		return fmt.Errorf("%d pieces", len(pieces))
	}
	i, left := 0, c.iovs[0]
	for _, p := range pieces {
		for len(tr.frags[frag].Local) == int(off) {
			frag, off = frag+1, 0
		}
		want := iov{addr: tr.frags[frag].Offset + off, len: uint64(len(p)), key: tr.frags[frag].Remote.(*remote).key}
		if left.len == 0 {
			i++
			left = c.iovs[i]
		}
		if left.addr != want.addr || left.key != want.key || left.len < want.len {
			return fmt.Errorf("piece %+v, and %+v is left of the remote one", want, left)
		}
		left.addr, left.len = left.addr+want.len, left.len-want.len
		off += want.len
	}
	if left.len != 0 || i != c.niov-1 {
		return fmt.Errorf("remote pieces are longer than local ones")
	}
	return nil
}

// TestManyReads: transfers without number that go both ways come to an end. Each side bounds what it asks for at a time,
// since the other side stops reading when it owes too much; two that have stopped would wait for each other.
func TestManyReads(t *testing.T) {
	const count, size = 3 * maxReplies / 2, 8 << 10
	a, b := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	var wg sync.WaitGroup
	for _, side := range [][2]*Endpoint{{a, b}, {b, a}} {
		user, owner := side[0], side[1]
		to, src := addrOf(t, user, owner), random(size, 5)
		_, from := expose(t, owner, user, src, na.ReadOnly)
		local := make([]byte, size)
		wg.Go(func() {
			ops := make([]*call, count)
			for i := range ops {
				ops[i] = newCall()
				user.Get(&ops[i].op, to, []na.Fragment{{Remote: from, Local: local}})
			}
			for _, op := range ops {
				if err := op.park(t); err != nil {
					t.Error(err)
					return
				}
			}
			if !bytes.Equal(local, src) {
				t.Error("bytes differ")
			}
		})
	}
	wg.Wait()
}

// TestStalledTransfers: no more is asked for than a peer may owe; what waits for that is cancelled, goes on, or fails.
func TestStalledTransfers(t *testing.T) {
	const extra = 50
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	ops := make([]*call, maxExpects+extra)
	for i := range ops {
		ops[i] = newCall()
		e.Get(&ops[i].op, to, []na.Fragment{{Remote: &remote{size: 1, access: na.ReadOnly}, Local: make([]byte, 1)}})
	}
	c := r.accept(1)
	for range maxExpects {
		if m, _ := c.message(); m.op != opReadReq {
			t.Fatalf("%+v, want a read", m)
		}
	}
	marker := r.send(e, 3, "not stalled")
	if m, _ := c.message(); m.op != opMsg {
		t.Fatalf("%+v, want the request: %d reads are unanswered", m, maxExpects)
	}
	if err := marker.park(t); err != nil {
		t.Fatal(err)
	}
	for _, op := range ops[maxExpects : maxExpects+10] {
		e.Cancel(&op.op)
		wantKind(t, op.park(t), na.Canceled)
	}
	c.write(bytes.Repeat(append(appendReadRsp(nil, 1), 7), 20))
	for _, op := range ops[:20] {
		if err := op.park(t); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		c.message()
	}
	_ = c.Close()
	for _, op := range append(ops[20:maxExpects], ops[maxExpects+10:]...) {
		wantKind(t, op.park(t), na.Unreachable)
	}
}
