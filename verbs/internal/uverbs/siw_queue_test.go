//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"cinnabar/internal/hostmem"
)

// aligned makes n bytes of memory as a mapping has it.
func aligned(n int) []byte {
	return hostmem.Bytes(make([]uint64, (n+7)/8))[:n]
}

// fixed returns the address of b, which stays in place until the end of the test.
func fixed(t *testing.T, b []byte) uint64 {
	t.Helper()
	var pin runtime.Pinner
	pin.Pin(&b[0])
	t.Cleanup(pin.Unpin)
	return hostmem.Addr(b)
}

// image builds what the kernel shall see, field by field, in the machine's byte order.
type image []byte

func (b image) u16(v uint16) image { return binary.NativeEndian.AppendUint16(b, v) }
func (b image) u32(v uint32) image { return binary.NativeEndian.AppendUint32(b, v) }
func (b image) u64(v uint64) image { return binary.NativeEndian.AppendUint64(b, v) }

func (b image) sge(s ...SGE) image {
	for _, e := range s {
		b = b.u64(e.Addr).u32(e.Length).u32(e.LKey)
	}
	return b
}

func (b image) pad(n int) image { return append(b, make([]byte, n-len(b))...) }

// siwTestSQ makes a send queue of n elements on plain memory. The doorbell counts.
func siwTestSQ(t *testing.T, n uint32) (q *siwSQ, mem []byte, rung *[]uint64) {
	t.Helper()
	mem, rung = aligned(int(n)*siwSQELen), new([]uint64)
	ring, err := siwRing[siwSQE](mem, n)
	if err != nil {
		t.Fatal(err)
	}
	return &siwSQ{ring: ring, bell: func(payload uint64) error { *rung = append(*rung, payload); return nil }}, mem, rung
}

func TestSiwSendLayout(t *testing.T) {
	data := []byte("inline data of three parts")
	addr := fixed(t, data)
	at := func(i int, n uint32) SGE { return SGE{Addr: addr + uint64(i), Length: n} }
	sges := []SGE{{0x1122334455667788, 0x99aabbcc, 0xddeeff01}, {}, {2, 3, 4}, at(0, 7), {}, at(7, 5), at(12, 14)}
	for _, c := range []struct {
		name    string
		wr      SendWR
		all     bool
		payload uint64
		want    image
	}{
		{"send without the empty entry", SendWR{ID: 0x0102030405060708, Op: opSend, Flags: sendSolicited, Num: 3}, false, 0x99aabbcc + 3,
			image{}.u64(0x0102030405060708).u16(1|8).pad(10).append(2, 3).u32(0).u64(0).sge(sges[0], sges[2])},
		{"write", SendWR{ID: 1, Op: opWrite, Flags: sendSignaled | sendFence, RKey: 0xa0b0c0d0, Remote: 0x1020304050607080, Num: 1}, false, 0x99aabbcc,
			image{}.u64(1).u16(1|4|16).append(1, 0).u32(0xa0b0c0d0).u64(0x1020304050607080).sge(sges[0])},
		{"write of nothing", SendWR{ID: 1, Op: opWrite, Flags: sendSignaled | sendFence}, false, 0, image{}.u64(1).u16(1|4|16).append(0, 0)},
		{"read, whose fence is left out", SendWR{ID: 2, Op: opRead, Flags: sendFence, RKey: 5, Remote: 6, First: 2, Num: 1}, false, 0,
			image{}.u64(2).u16(1).append(1, 1).u32(5).u64(6).sge(sges[2])},
		{"read of nothing", SendWR{ID: 2, Op: opRead, RKey: 5, Remote: 6}, true, 0, image{}.u64(2).u16(1|4).append(1, 1).u32(5).u64(6)},
		{"send with invalidate", SendWR{ID: 3, Op: opSendInv, Imm: 0xfeed, RKey: 9, First: 2, Num: 1}, true, 3,
			image{}.u64(3).u16(1|4).append(1, 5).u32(0xfeed).u64(0).sge(sges[2])},
		{"inline", SendWR{ID: 4, Op: opSend, Flags: sendInline, First: 3, Num: 4}, false, 26,
			append(image{}.u64(4).u16(1|2).append(1, 3).u32(0).u64(0).sge(SGE{Length: 26}), data...)},
		{"inline of nothing", SendWR{ID: 4, Op: opWrite, Flags: sendInline, First: 4, Num: 1}, false, 0, image{}.u64(4).u16(1|2).append(1, 0)},
	} {
		q, mem, rung := siwTestSQ(t, 2)
		q.signalAll = c.all
		if n, err := q.postSend([]SendWR{c.wr}, sges); n != 1 || err != nil {
			t.Errorf("%s: %d taken, %v", c.name, n, err)
		}
		same(t, c.name, mem, c.want.pad(2*siwSQELen))
		if !slices.Equal(*rung, []uint64{c.payload}) {
			t.Errorf("%s: the doorbell rang with %v, want %d bytes", c.name, *rung, c.payload)
		}
	}
}

func (b image) append(v ...byte) image { return append(b, v...) }

func TestSiwSendRefused(t *testing.T) {
	whole := SGE{Addr: fixed(t, make([]byte, siwMaxInline+1)), Length: siwMaxInline + 1}
	part := SGE{Addr: whole.Addr, Length: siwMaxInline}
	sges := []SGE{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, whole, part, {whole.Addr, 1, 0}, {whole.Addr, 1<<32 - 1, 0}}
	for _, c := range []struct {
		name string
		wr   SendWR
	}{
		{"opcode 1", SendWR{Op: opWriteImm}},
		{"opcode 3", SendWR{Op: opSendImm}},
		{"opcode 5", SendWR{Op: 5, Num: 1}},
		{"opcode 7", SendWR{Op: 7}},
		{"opcode 8", SendWR{Op: 8}},
		{"unknown opcode", SendWR{Op: 1<<32 - 1}},
		{"7 entries", SendWR{Op: opSend, Num: 7}},
		{"read into 2 entries", SendWR{Op: opRead, Num: 2}},
		{"inline read", SendWR{Op: opRead, Flags: sendInline}},
		{"inline send with invalidate", SendWR{Op: opSendInv, Flags: sendInline}},
		{"81 bytes inline", SendWR{Op: opSend, Flags: sendInline, First: 7, Num: 1}},
		{"80 + 1 bytes inline", SendWR{Op: opSend, Flags: sendInline, First: 8, Num: 2}},
		{"1 + 4 GiB - 1 bytes inline", SendWR{Op: opSend, Flags: sendInline, First: 9, Num: 2}},
	} {
		q, _, rung := siwTestSQ(t, 4)
		good := SendWR{ID: 7, Op: opSend, Num: 1}
		if n, err := q.postSend([]SendWR{good, c.wr, good}, sges); n != 1 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %d taken, %v, want one and EINVAL", c.name, n, err)
		}
		if q.ring[1].head.Load() != 0 || len(*rung) != 1 {
			t.Errorf("%s: head %#x, rung %d times", c.name, q.ring[1].head.Load(), len(*rung))
		}
		if n, err := q.postSend([]SendWR{c.wr}, sges); n != 0 || !errors.Is(err, syscall.EINVAL) || len(*rung) != 1 {
			t.Errorf("%s alone: %d taken, %v, rung %d times", c.name, n, err, len(*rung))
		}
	}
	q, _, _ := siwTestSQ(t, 4)
	if n, err := q.postSend([]SendWR{{Op: opSend, Flags: sendInline, First: 8, Num: 1}, {Op: opSend, Num: 6}}, sges); n != 2 || err != nil {
		t.Errorf("80 bytes inline and 6 entries: %d taken, %v", n, err)
	}
}

// TestSiwDoorbell posts while the kernel works on the queue and while it does not.
func TestSiwDoorbell(t *testing.T) {
	q, _, rung := siwTestSQ(t, 4)
	one := []SendWR{{Op: opSend}}
	post := func(n, wantTaken, wantRung int, wantErr error) {
		t.Helper()
		*rung = nil
		taken, err := q.postSend(slices.Repeat(one, n), nil)
		if taken != wantTaken || len(*rung) != wantRung || !errors.Is(err, wantErr) {
			t.Fatalf("%d taken, %v, rung %d times; want %d, %v, %d times", taken, err, len(*rung), wantTaken, wantErr, wantRung)
		}
	}
	post(2, 2, 1, nil)
	post(1, 1, 0, nil) // the kernel is at work on the one before
	take(&q.ring[0].head)
	take(&q.ring[1].head)
	take(&q.ring[2].head)
	post(1, 1, 1, nil)
	post(4, 3, 0, syscall.ENOMEM)
	post(1, 0, 0, syscall.ENOMEM)
	for i := range 4 {
		take(&q.ring[i].head)
	}
	post(5, 4, 1, syscall.ENOMEM) // the whole queue, so that the one before is of the same post
	if post(0, 0, 0, nil); q.put != 11 {
		t.Errorf("the position is %d", q.put)
	}
	q.put = 1<<32 - 1 // the position starts over
	for i := range 4 {
		take(&q.ring[i].head)
	}
	post(3, 3, 1, nil)
	if q.put != 2 || siwFlags(q.ring[3].head.Load())&siwValid == 0 || siwFlags(q.ring[1].head.Load())&siwValid == 0 {
		t.Errorf("the position is %d", q.put)
	}
}

// TestSiwDoorbellFails lets the kernel refuse to look at the queue, after it has taken some of it.
func TestSiwDoorbellFails(t *testing.T) {
	for taken := range 4 {
		q, _, _ := siwTestSQ(t, 4)
		q.put = 3
		q.bell = func(uint64) error {
			for i := range taken {
				take(&q.ring[(3+i)%4].head)
			}
			return syscall.ENOTCONN
		}
		wrs := slices.Repeat([]SendWR{{Op: opSend}}, 3)
		want := error(syscall.ENOTCONN)
		if taken == len(wrs) {
			want = nil
		}
		if n, err := q.postSend(wrs, nil); n != taken || !errors.Is(err, want) || q.put != uint32(3+taken) {
			t.Errorf("%d taken, %v, position %d; the kernel took %d", n, err, q.put, taken)
		}
		for i := range q.ring {
			if siwFlags(q.ring[i].head.Load())&siwValid != 0 {
				t.Errorf("the kernel took %d; element %d is its own still", taken, i)
			}
		}
	}
}

func TestSiwRecv(t *testing.T) {
	mem := aligned(2 * siwRQELen)
	ring, err := siwRing[siwRQE](mem, 2)
	if err != nil {
		t.Fatal(err)
	}
	q := &siwRQ{ring: ring}
	sges := []SGE{{1, 2, 3}, {0x1122334455667788, 0x99aabbcc, 0xddeeff01}, {}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}, {13, 14, 15}}
	if n, err := q.postRecv([]RecvWR{{ID: 1, Num: 7}}, sges); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("7 entries: %d taken, %v", n, err)
	}
	wrs := []RecvWR{{ID: 0x0102030405060708, First: 1, Num: 6}, {ID: 2}, {ID: 3, Num: 1}}
	if n, err := q.postRecv(wrs, sges); n != 2 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d taken, %v", n, err)
	}
	want := image{}.u64(0x0102030405060708).u16(1).append(6, 0).u32(0).sge(sges[1:]...).u64(2).u16(1)
	same(t, "the queue", mem, want.pad(2*siwRQELen))
	take(&ring[0].head)
	if n, err := q.postRecv(wrs[2:], sges); n != 1 || err != nil {
		t.Errorf("%d taken, %v", n, err)
	}
	same(t, "the element that was reused", mem[:32], image{}.u64(3).u16(1).append(1, 0).u32(0).sge(sges[0]))
}

// siwTestCQ makes a completion queue of n elements on plain memory.
func siwTestCQ(t *testing.T, n uint32) (*siwCQ, []byte) {
	t.Helper()
	mem := aligned(int(n)*siwCQELen + siwCtrlLen)
	ring, err := siwRing[siwCQE](mem, n)
	if err != nil {
		t.Fatal(err)
	}
	return newSiwCQ(ring, mem), mem
}

// cqe is an element as the kernel writes it.
func cqe(id uint64, flags, op uint8, status uint16, size uint32, qp uint64) image {
	return image{}.u64(id).append(flags, op).u16(status).u32(size).u64(0xbad).u64(qp)
}

func TestSiwPoll(t *testing.T) {
	q, mem := siwTestCQ(t, 4)
	var out [4]WC
	poll := func(want ...WC) {
		t.Helper()
		n, err := q.poll(out[:])
		if err != nil || !slices.Equal(out[:n], want) {
			t.Fatalf("%v, %+v\nwant %+v", err, out[:n], want)
		}
	}
	poll()
	copy(mem, slices.Concat(cqe(0x0102030405060708, 1, 3, 0, 9, 0xabc), cqe(2, 1, 8, 4, 0, 5), cqe(3, 0, 8, 0, 0, 5)))
	poll(WC{ID: 0x0102030405060708, Op: wcOpcodeSend, Len: 9, QPN: 0xabc}, WC{ID: 2, Op: wcOpcodeRecv, Status: wcStatusWRFlushErr, QPN: 5})
	if mem[8]|mem[9]|mem[32+8] != 0 {
		t.Error("the elements are not the kernel's again")
	}
	copy(mem[64:], slices.Concat(cqe(3, 1, 1, 0, 1, 1), cqe(4, 1|64, 0, 7, 0, 1)))
	copy(mem, cqe(5, 1, 5, 9, 0, 1))
	if n, err := q.poll(out[:1]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	poll(WC{ID: 4, Op: wcOpcodeWrite, Status: wcStatusRemAccessErr, QPN: 1}, WC{ID: 5, Op: wcOpcodeSend, Status: wcStatusGeneralErr, QPN: 1})
	if n, err := q.poll(nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	for arm, want := range map[bool]uint32{false: 3, true: 1} {
		if err := q.arm(arm); err != nil {
			t.Error(err)
		}
		if got := binary.NativeEndian.Uint32(mem[4*siwCQELen:]); got != want {
			t.Errorf("armed for solicited messages alone: %v; the word is %d, want %d", arm, got, want)
		}
	}
}

// TestSiwHostile lets the kernel's side of the queues hold anything.
func TestSiwHostile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	fill := func(b []byte) {
		for i := range b {
			b[i] = byte(random.Uint32())
		}
	}
	cq, cqMem := siwTestCQ(t, 8)
	sq, sqMem, _ := siwTestSQ(t, 8)
	rqMem := aligned(8 * siwRQELen)
	ring, err := siwRing[siwRQE](rqMem, 8)
	if err != nil {
		t.Fatal(err)
	}
	rq := &siwRQ{ring: ring}
	var out [20]WC
	for range 2000 {
		fill(cqMem)
		fill(sqMem)
		fill(rqMem)
		n, err := cq.poll(out[:])
		if n > 8 || err != nil { // each element is seen once, since a poll clears it
			t.Fatal(n, err)
		}
		for _, wc := range out[:n] {
			if wc.Status > wcStatusGeneralErr || wc.Op > wcOpcodeRecv {
				t.Fatalf("%+v", wc)
			}
		}
		if n, err := sq.postSend(slices.Repeat([]SendWR{{Op: opSend, Num: 1}}, 20), []SGE{{1, 2, 3}}); n > 8 || !errors.Is(err, syscall.ENOMEM) {
			t.Fatal(n, err)
		}
		if n, err := rq.postRecv(slices.Repeat([]RecvWR{{Num: 1}}, 20), []SGE{{1, 2, 3}}); n > 8 || !errors.Is(err, syscall.ENOMEM) {
			t.Fatal(n, err)
		}
	}
	for op := range 256 {
		for _, status := range []uint16{0, 9, 10, 0x100, 0xffff} {
			copy(cqMem[cq.get%8*siwCQELen:], cqe(1, 1, uint8(op), status, 0, 1<<32|7))
			if n, err := cq.poll(out[:1]); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			want := uint32(wcStatusGeneralErr)
			if op <= siwOpReceive && status == 0 {
				want = wcStatusSuccess
			}
			if out[0].Status != want || out[0].QPN != 7 {
				t.Errorf("opcode %d with status %d: %+v", op, status, out[0])
			}
		}
	}
}

// TestSiwSizesRefused makes queues of sizes that the kernel does not give, or that the mapping has no room for.
func TestSiwSizesRefused(t *testing.T) {
	mem := aligned(4 * siwCQELen)
	for _, n := range []uint32{0, 3, 8, 1 << 27, 1 << 31, 1<<32 - 1} {
		if _, err := siwRing[siwCQE](mem, n); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%d elements: %v", n, err)
		}
	}
	if _, err := siwRing[siwCQE](mem[:len(mem)-1], 4); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("no room for the last element: %v", err)
	}
	if _, err := siwRing[siwSQE](nil, 1); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("no memory: %v", err)
	}
}

// TestSiwAllocates none on the way of data.
func TestSiwAllocates(t *testing.T) {
	cq, cqMem := siwTestCQ(t, 2)
	sq, _, _ := siwTestSQ(t, 2)
	sq.bell = func(uint64) error { return nil }
	ring, err := siwRing[siwRQE](aligned(2*siwRQELen), 2)
	if err != nil {
		t.Fatal(err)
	}
	rq := &siwRQ{ring: ring}
	sends := []SendWR{{Op: opSend, Flags: sendInline, Num: 1}, {Op: opRead, Num: 1}}
	recvs := []RecvWR{{Num: 1}, {Num: 1}}
	sges := []SGE{{Addr: fixed(t, make([]byte, 64)), Length: 64}}
	done := slices.Concat(cqe(1, 1, 3, 0, 0, 1), cqe(1, 1, 3, 0, 0, 1))
	var out [2]WC
	if n := testing.AllocsPerRun(100, func() {
		copy(cqMem, done)
		clear(sq.ring)
		clear(rq.ring)
		s, _ := sq.postSend(sends, sges)
		r, _ := rq.postRecv(recvs, sges)
		c, _ := cq.poll(out[:])
		if cq.arm(true) != nil || s+r+c != 6 {
			t.Fatal(s, r, c)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
