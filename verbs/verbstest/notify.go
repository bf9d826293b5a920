package verbstest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/verbs"
)

// testOneSided writes 1 GiB in messages of 256 MiB, or of the port's longest message, while the program at the
// target does not post, poll or wait. The target's queue must be empty afterwards and its
// memory full.
// parity: V36 S19
func testOneSided(t *testing.T, dev *verbs.Device) {
	const page = 4096
	a := attr(t, dev)
	pieces := min(4, a.MaxSGE) // each message gathers one piece so many times
	piece, messages := 64<<20, sized(4, 1)
	if invariants.Race {
		piece = 16 << 20
	}
	if most := a.Ports[0].MaxMsgSize / uint64(pieces); uint64(piece) > most {
		piece = int(most) / page * page
	}
	size := piece * pieces
	p := NewPair(t, dev, PairConfig{Memory: 4096, QP: verbs.QPConfig{MaxSendSGE: pieces}})
	src := p.Active.Alloc(piece, 0)
	dst := p.Passive.Alloc(size, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	markPages(src.Bytes())
	write := verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: dst.Remote()}
	for range pieces {
		write.SGL = append(write.SGL, src.SGE(0, piece))
	}
	for range messages {
		p.Active.PostSend(write)
	}
	// The read behind them comes back when the writes are there.
	read := p.Active.Send(2, 0, 8)
	read.Op, read.Remote = verbs.OpRead, dst.RemoteAt(size-8)
	p.Active.PostSend(read)
	for range messages {
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	}
	p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
	if !bytes.Equal(p.Active.MR.Bytes()[:8], src.Bytes()[piece-8:]) {
		t.Error("the last bytes, read back, differ")
	}
	p.Passive.Quiet()
	for off := 0; off < size; off += piece {
		if !bytes.Equal(dst.Bytes()[off:off+piece], src.Bytes()) {
			t.Fatalf("the piece at %d differs", off)
		}
	}
}

// markPages fills b with a pattern in which every page is different.
func markPages(b []byte) {
	const page = 4096
	for i := range page {
		b[i] = byte(i) ^ byte(i>>8)
	}
	for n := page; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
	for off := 0; off < len(b); off += page {
		binary.BigEndian.PutUint64(b[off:], uint64(off))
	}
}

// testLearnByImmediate: the completion of a write with immediate says that the
// data is there, and which.
// parity: V37 S20
func testLearnByImmediate(t *testing.T, dev *verbs.Device) {
	needs(t, dev, verbs.CapWriteImm)
	p := NewPair(t, dev, PairConfig{})
	for i := range 20 {
		want := p.Active.Fill(i*100, 100, byte(i))
		p.Passive.postRecvWR(verbs.RecvWR{ID: uint64(i)})
		wr := p.Active.RDMA(1, verbs.OpWriteImm, i*100, 100, p.Passive)
		wr.Imm = uint32(i * 100)
		p.Active.PostSend(wr)
		wc := p.Passive.Expect(uint64(i), verbs.StatusSuccess, verbs.WCRecvRDMAImm)
		if got := p.Passive.MR.Bytes()[wc.Imm : wc.Imm+wc.Len]; !bytes.Equal(got, want) {
			t.Fatalf("write %d was reported before it was there", i)
		}
		p.Active.Take(1)
	}
}

// testLearnBySend: a message behind the write arrives after it.
// parity: V37 S20
func testLearnBySend(t *testing.T, dev *verbs.Device) {
	const size = 100_000
	p := NewPair(t, dev, PairConfig{Memory: 2 * size})
	for i := range uint64(20) {
		want := p.Active.Fill(0, size, byte(i))
		p.Passive.PostRecv(i, size, 1)
		write := p.Active.RDMA(1, verbs.OpWrite, 0, size, p.Passive)
		write.Flags = 0
		p.Active.PostSend(write, p.Active.Send(2, 0, 1))
		p.Passive.Expect(i, verbs.StatusSuccess, verbs.WCRecv)
		if !bytes.Equal(p.Passive.MR.Bytes()[:size], want) {
			t.Fatalf("message %d overtook the write", i)
		}
		p.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
	}
}

// testLearnByPolling: the target looks at a flag that a second write sets. Writes
// of one connection land in order, so the bytes of the first are there when the
// flag is; the flag is a word that is written at once and read atomically. Within
// one write no order is promised, which is why the flag has its own.
//
// The device must land writes without being polled by the target, and the race
// detector must accept the flag as the point where the two sides meet.
// parity: V37 S20
func testLearnByPolling(t *testing.T, dev *verbs.Device) {
	const size = 10_000
	p := NewPair(t, dev, PairConfig{Memory: 2 * size})
	flagOff := size + 240 // aligned to 8
	for i := range uint64(20) {
		want := p.Active.Fill(0, size, byte(i))
		if !hostmem.Store64(p.Active.MR.Bytes()[flagOff:], i+1) {
			t.Fatal("the flag is not aligned")
		}
		data, flag := p.Active.RDMA(1, verbs.OpWrite, 0, size, p.Passive), p.Active.RDMA(2, verbs.OpWrite, flagOff, 8, p.Passive)
		data.Flags = 0
		p.Active.PostSend(data, flag)
		for v := uint64(0); v != i+1; v, _ = hostmem.Load64(p.Passive.MR.Bytes()[flagOff:]) {
			if p.Ctx.Err() != nil {
				t.Fatal("the flag was not set")
			}
		}
		if !bytes.Equal(p.Passive.MR.Bytes()[:size], want) {
			t.Fatalf("flag %d was there before the data", i)
		}
		p.Active.Expect(2, verbs.StatusSuccess, verbs.WCWrite)
	}
}
