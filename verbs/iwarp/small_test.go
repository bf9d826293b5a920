package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestSmallRun makes a run of small sends, which are read ahead, and then another operation: everything arrives, and no other byte of the
// receives changes.
func TestSmallRun(t *testing.T) {
	const size, room = 64, 512
	for _, next := range []int{1, 3, 8, 63, 65, 128, 256, 300, 512} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpWriteImm, verbs.OpSendImm, verbs.OpRead} {
			for _, crc := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%d/crc=%t", op, next, crc), func(t *testing.T) {
					cfg := iwarp.Config{NoCRC: !crc}
					a, b := newPair(t, cfg, cfg)
					src, dst, back := a.region(t, room), b.region(t, 3*room), a.region(t, room)
					fill(src.Bytes(), 3)
					run := func() {
						for i := range 20 {
							b.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(0, room)}})
							a.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(i, size)}})
							a.want(t, uint64(i), verbs.WCSend, verbs.StatusSuccess)
							spin(t, b, uint64(i))
							if !bytes.Equal(dst.Bytes()[:size], src.Bytes()[i:i+size]) {
								t.Fatalf("message %d differs", i)
							}
						}
					}
					run()
					for i := range dst.Bytes() {
						dst.Bytes()[i] = 0xee
					}
					b.recv(t, verbs.RecvWR{ID: 100, SGL: []verbs.SGE{dst.SGE(0, room)}}, verbs.RecvWR{ID: 101, SGL: []verbs.SGE{dst.SGE(room, room)}})
					wr := verbs.SendWR{ID: 50, Op: op, Flags: verbs.Signaled, Imm: 9, SGL: []verbs.SGE{src.SGE(0, next)}, Remote: dst.RemoteAt(2 * room)}
					if op == verbs.OpRead {
						wr.SGL = []verbs.SGE{back.SGE(0, next)}
					}
					a.send(t, wr, verbs.SendWR{ID: 51, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(100, size)}})
					first := uint64(100)
					want := bytes.Repeat([]byte{0xee}, 3*room)
					switch op {
					case verbs.OpSend, verbs.OpSendImm:
						copy(want, src.Bytes()[:next])
					case verbs.OpWriteImm, verbs.OpWrite:
						copy(want[2*room:], src.Bytes()[:next])
					default: // a read leaves the target as it is
					}
					last := uint64(101)
					if op == verbs.OpWrite || op == verbs.OpRead {
						last = 100
						copy(want, src.Bytes()[100:100+size])
					} else {
						copy(want[room:], src.Bytes()[100:100+size])
						spin(t, b, first)
					}
					spin(t, b, last)
					if op == verbs.OpRead {
						spin(t, a, 50)
					} else {
						a.wait(t)
					}
					if !bytes.Equal(dst.Bytes(), want) {
						for i := range want {
							if dst.Bytes()[i] != want[i] {
								t.Fatalf("byte %d is %#x, want %#x", i, dst.Bytes()[i], want[i])
							}
						}
					}
				})
			}
		}
	}
}

// spin polls without parking until a completion comes, which must be id's.
func spin(t testing.TB, s *side, id uint64) {
	t.Helper()
	ctx := testContext(t)
	var wc [1]verbs.WC
	for ctx.Err() == nil {
		n, err := s.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			if wc[0].ID != id || wc[0].Status != verbs.StatusSuccess {
				t.Fatalf("completion id %d status %v, want id %d", wc[0].ID, wc[0].Status, id)
			}
			return
		}
	}
	t.Fatal(ctx.Err())
}

// TestScratchGrows posts many small writes at a time: the memory in which they are put together grows to its limit and no further, and the
// writes arrive.
func TestScratchGrows(t *testing.T) {
	const size, writes = 200, 256
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	src, dst := a.region(t, size*writes), b.region(t, size*writes)
	fill(src.Bytes(), 5)
	for range 2 {
		clear(dst.Bytes())
		var wrs []verbs.SendWR
		for i := range writes {
			wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(i*size, size)}, Remote: dst.RemoteAt(i * size)})
		}
		b.recv(t, verbs.RecvWR{ID: 1})
		last := &wrs[writes-1]
		last.Op, last.Flags = verbs.OpWriteImm, verbs.Signaled
		a.send(t, wrs...)
		a.want(t, writes-1, verbs.WCWrite, verbs.StatusSuccess)
		b.wait(t)
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Fatal("the bytes of the writes differ")
		}
	}
	if got, most := iwarp.Scratch(a.dev); got != most {
		t.Errorf("the capacity is %d bytes, want %d", got, most)
	}
}
