package ofitcp

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"cinnabar/internal/na"
)

// lend lends three pieces with the bytes of whole, and returns the pieces and the key.
func lend(t *testing.T, e *Endpoint, whole []byte, sizes ...int) (m na.LentMemory, pieces [][]byte, key uint64) {
	t.Helper()
	rest := whole
	for _, n := range sizes {
		pieces = append(pieces, bytes.Clone(rest[:n]))
		rest = rest[n:]
	}
	if len(rest) > 0 {
		t.Fatalf("%d bytes are in no piece", len(rest))
	}
	m, err := e.Lend(pieces...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	h, err := e.ParseHandle(m.AppendHandle(nil))
	if err != nil || h.Len() != uint64(len(whole)) {
		t.Fatalf("%v, %v", h, err)
	}
	return m, pieces, h.(*remote).key
}

// TestLentRanges reads ranges of lent memory that begin and end at each place near the ends of pieces, before and after Keep.
func TestLentRanges(t *testing.T) {
	e := openEndpoint(t, Config{})
	whole := random(60, 1)
	m, pieces, key := lend(t, e, whole, 3, 50, 7)
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	all := func() {
		t.Helper()
		for from := range len(whole) + 1 {
			for _, to := range []int{from, from + 1, from + 2, 3, 52, 53, 54, len(whole)} {
				if to < from || to > len(whole) {
					continue
				}
				c.write(appendReadReq(nil, []iov{{addr: uint64(from), len: uint64(to - from), key: key}}))
				if h, b := c.message(); h.op != opReadRsp || !bytes.Equal(b, whole[from:to]) {
					t.Fatalf("bytes %d to %d: %+v, %x", from, to, h, b)
				}
			}
		}
		// Several accesses in one read, more vectors than the memory has pieces.
		c.write(appendReadReq(nil, []iov{{addr: 0, len: 60, key: key}, {addr: 2, len: 55, key: key}, {addr: 59, len: 1, key: key}, {addr: 0, len: 60, key: key}}))
		want := append(append(append(bytes.Clone(whole), whole[2:57]...), whole[59]), whole...)
		if _, b := c.message(); !bytes.Equal(b, want) {
			t.Fatalf("four ranges: %x", b)
		}
	}
	all()
	if kept := m.Keep(); !bytes.Equal(kept, whole) {
		t.Fatalf("the copy is %x", kept)
	}
	for _, p := range pieces {
		clear(p)
	}
	for _, p := range m.(*memory).lent.all {
		if p != nil {
			t.Error("the memory keeps a piece from the garbage collector")
		}
	}
	all()
	if kept := m.Keep(); !bytes.Equal(kept, whole) {
		t.Errorf("the second copy is %x", kept)
	}
}

// TestLentHostile ends the connection of a peer that writes to lent memory, or reads outside of it or after its end.
func TestLentHostile(t *testing.T) {
	e := openEndpoint(t, Config{})
	m, _, key := lend(t, e, make([]byte, 60), 3, 50, 7)
	for _, b := range [][]byte{
		appendReadReq(nil, []iov{{addr: 60, len: 1, key: key}}),
		appendReadReq(nil, []iov{{addr: 1, len: 60, key: key}}),
		appendReadReq(nil, []iov{{addr: 1, len: ^uint64(0), key: key}}),
		appendReadReq(nil, []iov{{addr: ^uint64(0), len: 2, key: key}}),
		append(appendWrite(nil, []iov{{len: 1, key: key}}, 1), 1),
	} {
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		c.write(b)
		if got := c.closed(); len(got) > 0 {
			t.Errorf("%x is answered by %x", b, got)
		}
	}
	m.Close()
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	c.write(appendReadReq(nil, []iov{{len: 1, key: key}}))
	if got := c.closed(); len(got) > 0 {
		t.Errorf("closed memory is answered by %x", got)
	}
}

// TestLendArguments checks the arguments of Lend.
func TestLendArguments(t *testing.T) {
	e := openEndpoint(t, Config{})
	one := []byte{1}
	for _, pieces := range [][][]byte{nil, {nil}, {one, {}}, {one, one, one, one}} {
		if _, err := e.Lend(pieces...); na.KindOf(err) != na.Invalid {
			t.Errorf("%d pieces: %v", len(pieces), err)
		}
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Lend(one); na.KindOf(err) != na.Closed {
		t.Error(err)
	}
}

// TestKeepDuringRead gives the pieces back while peers that do not read are in the middle of a read, with batches and replies that refer to them. The
// peers read the copy.
func TestKeepDuringRead(t *testing.T) {
	const size = 32 << 20
	e := openEndpoint(t, Config{})
	whole := random(size, 2)
	m, pieces, key := lend(t, e, whole, 1000, size-3000, 2000)
	var conns []*rawConn
	for range 3 {
		r := newRaw(t)
		c, _ := r.dial(e, 1)
		req := appendReadReq(nil, []iov{{len: size, key: key}})
		c.write(append(req, appendReadReq(nil, []iov{{addr: size / 2, len: size / 2, key: key}})...))
		conns = append(conns, c)
	}
	until(t, "reads that are stuck", func() bool {
		stuck := 0
		for _, c := range e.connections() {
			if c.blocked.Load() && c.usesMemory(m.(*memory)) {
				stuck++
			}
		}
		return stuck == len(conns)
	})
	if kept := m.Keep(); !bytes.Equal(kept, whole) {
		t.Fatal("the copy has other bytes")
	}
	for _, p := range pieces {
		clear(p)
	}
	for i, c := range conns {
		for _, want := range [][]byte{whole, whole[size/2:]} {
			if h, b := c.message(); h.op != opReadRsp || !bytes.Equal(b, want) {
				t.Fatalf("peer %d: %+v, %d bytes, %v", i, h, len(b), bytes.Equal(b, want))
			}
		}
	}
}

// TestKeepBesideReads gives pieces back at each time of reads that go on, and changes them at once. Peers get the bytes that were lent. The requests leave
// just before Keep, so some replies are in no batch yet, some are in one, and some are written in part.
func TestKeepBesideReads(t *testing.T) {
	e := openEndpoint(t, Config{})
	var conns []*rawConn
	for range 4 {
		c, _ := newRaw(t).dial(e, 1)
		conns = append(conns, c)
	}
	const rounds, each, reads = 30, 300_000, 6
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range rounds {
		whole := random(3*each, uint64(round))
		m, pieces, key := lend(t, e, whole, each, each, each)
		read := appendReadReq(nil, []iov{{addr: 5, len: 2*each + 1, key: key}, {addr: each, len: 10, key: key}})
		want := append(bytes.Clone(whole[5:2*each+6]), whole[each:each+10]...)
		for _, c := range conns {
			c.write(bytes.Repeat(read, reads))
		}
		for range rng.IntN(1 + round) {
			runtime.Gosched()
		}
		m.Keep()
		for _, p := range pieces {
			clear(p)
		}
		for _, c := range conns {
			c.write(read)
			for i := range reads + 1 {
				if h, b := c.message(); h.op != opReadRsp || !bytes.Equal(b, want) {
					t.Fatalf("round %d, read %d: %+v, other bytes", round, i, h)
				}
			}
		}
	}
}

// TestTransmitEndsForClaim checks that transmit stops for a goroutine that waits for the write role. A peer that reads as fast as transmit writes, and asks for
// more, would otherwise keep Keep from returning.
func TestTransmitEndsForClaim(t *testing.T) {
	e := openEndpoint(t, Config{})
	whole := random(100_000, 3)
	_, _, key := lend(t, e, whole, len(whole))
	peer, _ := newRaw(t).dial(e, 1)
	until(t, "the connection", func() bool { return len(e.connections()) == 1 })
	c := e.connections()[0]
	c.claims.Add(1)
	peer.write(appendReadReq(nil, []iov{{len: uint64(len(whole)), key: key}}))
	until(t, "a reply that waits", func() bool { return c.owes.Load() > 0 })
	c.wmu.Lock()
	c.transmit()
	if n := c.tx.written; n > 0 || !c.want.Load() {
		t.Errorf("%d bytes are written in spite of the claim, and more are due: %v", n, c.want.Load())
	}
	c.claims.Add(-1)
	c.wmu.Unlock()
	c.kick()
	if h, b := peer.message(); h.op != opReadRsp || !bytes.Equal(b, whole) {
		t.Errorf("%+v, %d bytes", h, len(b))
	}
}
