package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// borders are message sizes around the borders of FPDUs whose payload is n bytes.
func borders(n int) []int {
	sizes := []int{0, 1, 7, 8, 9}
	for _, k := range []int{1, 2, 5} {
		for d := -9; d <= 9; d += 3 {
			sizes = append(sizes, k*n+d)
		}
	}
	return sizes
}

// TestNoCopies transfers messages of sizes around the borders of FPDUs by every
// operation: the counters of copied payload stay 0, the data is right.
// parity: S23
func TestNoCopies(t *testing.T) {
	const tagged, untagged = 14, 18 // header octets
	for _, mulpdu := range []int{128, 1448, 0} {
		for _, crc := range []bool{true, false} {
			t.Run(fmt.Sprintf("mulpdu=%d/crc=%t", mulpdu, crc), func(t *testing.T) {
				cfg := iwarp.Config{MaxULPDU: mulpdu, NoCRC: !crc}
				if mulpdu == 0 {
					mulpdu = 64768
				}
				a, b := newPair(t, cfg, cfg)
				src, dst := a.region(t, 6*mulpdu), b.region(t, 6*mulpdu)
				fill(src.Bytes(), uint64(mulpdu))
				read := 0
				for _, n := range borders(mulpdu - tagged) {
					oneSided(t, a, b, src, dst, n)
					read += n
				}
				for _, n := range borders(mulpdu - untagged) {
					twoSided(t, a, b, src, dst, n)
				}
				// The source of a read may change under the CRC, so it is copied.
				if crc {
					if got := b.dev.Stats()["tx_staged_bytes"]; got != uint64(read) {
						t.Errorf("%d bytes of %d read were copied at their source", got, read)
					}
				}
				for name, s := range map[string]*side{"sender": a, "receiver": b} {
					st := s.dev.Stats()
					if st["rx_staged_bytes"] != 0 || st["rx_held_bytes"] != 0 || st["tx_staged_bytes"] != 0 && !(crc && s == b) {
						t.Errorf("%s: copied %d bytes in, %d held, %d out", name, st["rx_staged_bytes"], st["rx_held_bytes"], st["tx_staged_bytes"])
					}
				}
			})
		}
	}
}

// oneSided writes n bytes, with and without immediate data, and reads them back.
func oneSided(t *testing.T, a, b *side, src, dst *verbs.MR, n int) {
	t.Helper()
	clear(dst.Bytes())
	b.recv(t, verbs.RecvWR{ID: 1})
	half := n / 2
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(1, half), src.SGE(1+half, n-half)}, Remote: dst.RemoteAt(3)},
		verbs.SendWR{ID: 2, Op: verbs.OpWriteImm, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(1, n)}, Remote: dst.RemoteAt(3), Imm: uint32(n)})
	a.want(t, 2, verbs.WCWrite, verbs.StatusSuccess)
	if wc := b.want(t, 1, verbs.WCRecvRDMAImm, verbs.StatusSuccess); int(wc.Len) != n || int(wc.Imm) != n {
		t.Errorf("write of %d bytes: %+v", n, wc)
	}
	if !bytes.Equal(dst.Bytes()[3:3+n], src.Bytes()[1:1+n]) || !zero(dst.Bytes()[:3]) || !zero(dst.Bytes()[3+n:]) {
		t.Errorf("write of %d bytes: memory differs", n)
	}
	back := a.region(t, n+2)
	a.send(t, verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{back.SGE(1, half), back.SGE(1+half, n-half)}, Remote: dst.RemoteAt(3)})
	a.want(t, 3, verbs.WCRead, verbs.StatusSuccess)
	if !bytes.Equal(back.Bytes()[1:1+n], src.Bytes()[1:1+n]) || back.Bytes()[0] != 0 || back.Bytes()[n+1] != 0 {
		t.Errorf("read of %d bytes: memory differs", n)
	}
}

// twoSided sends n bytes from two pieces into two others.
func twoSided(t *testing.T, a, b *side, src, dst *verbs.MR, n int) {
	t.Helper()
	clear(dst.Bytes())
	third := n / 3
	b.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{dst.SGE(5, third), dst.SGE(5+third, n-third)}})
	a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(2, n/2), src.SGE(2+n/2, n-n/2)}})
	a.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
	if wc := b.want(t, 1, verbs.WCRecv, verbs.StatusSuccess); int(wc.Len) != n {
		t.Errorf("send of %d bytes: %+v", n, wc)
	}
	if !bytes.Equal(dst.Bytes()[5:5+n], src.Bytes()[2:2+n]) || !zero(dst.Bytes()[:5]) || !zero(dst.Bytes()[5+n:]) {
		t.Errorf("send of %d bytes: memory differs", n)
	}
}

// TestWriteEndsWhole: however long a write is, its last segment has the last 8
// bytes, which the receiver stores last and as one.
// parity: S20
func TestWriteEndsWhole(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxULPDU: 128, NoCRC: true, NoPeerToPeer: true}, nil)
	p := connectRaw(t, s, accept, verbs.ConnParam{})
	mr := s.region(t, 1024)
	for n := 1; n < 500; n++ {
		sgl := []verbs.SGE{mr.SGE(0, n)}
		if n%3 == 0 {
			sgl = []verbs.SGE{mr.SGE(0, n/3), mr.SGE(n/3, n-n/3)}
		}
		s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: sgl, Remote: verbs.RemoteAddr{Addr: 64, RKey: 1}})
		s.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
		for got := 0; ; {
			h, payload := p.expect(rdmap.OpWrite)
			if h.TO != 64+uint64(got) || len(payload) > 128-14 {
				t.Fatalf("write of %d bytes: segment at %d of %d bytes, after %d", n, h.TO, len(payload), got)
			}
			got += len(payload)
			if !h.Last {
				continue
			}
			if got != n || len(payload) < min(n, 8) {
				t.Errorf("write of %d bytes: %d came, %d of them in the last segment", n, got, len(payload))
			}
			break
		}
	}
}

// TestWritePublishesLast: a program polls the last word of the memory that a peer
// writes. When it sees a new value all that came before is there; and it may
// overwrite the word at once, which disturbs nothing.
// parity: S20
func TestWritePublishesLast(t *testing.T) {
	const rounds = 60
	for _, c := range []struct {
		size   int
		load   func(b []byte) (uint64, bool)
		mulpdu int
	}{
		{300000, load64, 0}, {4096, load64, 128}, {64, load64, 0}, {8, load64, 0},
		{300004, load32, 0}, {4100, load32, 128}, {4, load32, 0},
	} {
		t.Run(fmt.Sprintf("%d bytes by %d", c.size, c.mulpdu), func(t *testing.T) {
			a, b := newPair(t, iwarp.Config{MaxULPDU: c.mulpdu}, iwarp.Config{})
			src, dst := a.region(t, c.size), b.region(t, c.size)
			word := 8
			if c.size%8 != 0 {
				word = 4
			}
			flag := dst.Bytes()[c.size-word:]
			for round := byte(1); round <= rounds; round++ {
				for i := range src.Bytes() {
					src.Bytes()[i] = round
				}
				a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{src.SGE(0, c.size)}, Remote: dst.Remote()})
				var v uint64
				eventually(t, "flag set", func() bool {
					var ok bool
					if v, ok = c.load(flag); !ok {
						t.Fatal("the flag is not aligned")
					}
					return v != 0
				})
				if word == 8 {
					hostmem.Store64(flag, 0)
				} else {
					hostmem.StoreUint32(flag, 0)
				}
				if body := dst.Bytes()[:c.size-word]; !bytes.Equal(body, bytes.Repeat([]byte{round}, len(body))) {
					t.Fatalf("round %d: the flag is set and the bytes before it are not there", round)
				}
				if want := uint64(round) * 0x0101010101010101 >> (64 - 8*word); v != want {
					t.Fatalf("round %d: flag %#x, want %#x", round, v, want)
				}
				a.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
			}
			a.send(t, verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled})
			a.want(t, 2, verbs.WCRead, verbs.StatusSuccess)
		})
	}
}

func load64(b []byte) (uint64, bool) { return hostmem.Load64(b) }

func load32(b []byte) (uint64, bool) {
	v, ok := hostmem.LoadUint32(b)
	return uint64(v), ok
}

// TestNoAllocations: posting and polling allocate nothing, on either side, whatever
// the operation.
func TestNoAllocations(t *testing.T) {
	const size, runs = 4096, 200
	for _, crc := range []bool{true, false} {
		cfg := iwarp.Config{NoCRC: !crc}
		a, b := newPair(t, cfg, cfg)
		src, dst := a.region(t, size), b.region(t, size)
		wc, passive := make([]verbs.WC, 1), []*side{b}
		recvs := []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{dst.SGE(0, size)}}}
		for _, wr := range []verbs.SendWR{
			{Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(0, 64)}},
			{Op: verbs.OpSend, SGL: []verbs.SGE{src.SGE(0, size/2), src.SGE(0, size/2)}},
			{Op: verbs.OpSend, Flags: verbs.Inline, SGL: []verbs.SGE{src.SGE(0, 64)}},
			{Op: verbs.OpSendImm, SGL: []verbs.SGE{src.SGE(0, 64)}},
			{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			{Op: verbs.OpWriteImm, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			{Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote()},
			{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote()},
			{Op: verbs.OpCompareSwap, SGL: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote()},
		} {
			t.Run(fmt.Sprintf("crc=%t/%v/%d", crc, wr.Op, len(wr.SGL)), func(t *testing.T) {
				wr.Flags |= verbs.Signaled
				sends := []verbs.SendWR{wr}
				received := wr.Op == verbs.OpSend || wr.Op == verbs.OpSendImm || wr.Op == verbs.OpWriteImm
				round := func() {
					if received {
						if _, err := b.qp.PostRecv(recvs); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := a.qp.PostSend(sends); err != nil {
						t.Fatal(err)
					}
					if received {
						spinQuietly(t, wc, b)
					}
					spinQuietly(t, wc, a, passive...)
				}
				for range 20 {
					round()
				}
				if n := testing.AllocsPerRun(runs, round); n != 0 {
					t.Errorf("%v allocations for each request", n)
				}
			})
		}
	}
}
