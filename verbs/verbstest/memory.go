package verbstest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"cinnabar/verbs"
)

// testDomains uses the key of a region of another domain.
// parity: V03 S09
func testDomains(t *testing.T, dev *verbs.Device) {
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
		t.Run(op.String(), func(t *testing.T) {
			p := NewPair(t, dev, PairConfig{})
			other := newSide(t, p.Ctx, dev, PairConfig{}, false)
			wr := p.Active.RDMA(1, op, 0, 8, p.Passive)
			wr.Remote = other.MR.Remote()
			p.Active.PostSend(wr)
			p.Active.Expect(1, verbs.StatusRemAccessErr, 0)
		})
	}
}

// testLocalDomain does the same with a local key.
// parity: V03
func testLocalDomain(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	wr := p.Active.RDMA(1, verbs.OpWrite, 0, 8, p.Passive)
	wr.SGL[0] = p.Passive.MR.SGE(0, 8)
	p.Active.PostSend(wr)
	p.Active.Expect(1, verbs.StatusLocProtErr, 0)
}

// violation is one way of reaching for memory outside the requester's rights.
type violation struct {
	name string
	size int          // of the target region, in bytes
	has  verbs.Access // the region's rights
	bend func(r *verbs.RemoteAddr)
}

var violations = []violation{
	{"wrong key", 64, fullAccess, func(r *verbs.RemoteAddr) { r.RKey ^= 1 << 20 }},
	{"one byte too long", 63, fullAccess, func(*verbs.RemoteAddr) {}},
	{"one byte too low", 65, fullAccess, func(r *verbs.RemoteAddr) { r.Addr-- }},
	{"wraps around", 64, fullAccess, func(r *verbs.RemoteAddr) { r.Addr = ^uint64(0) - 31 }},
	{"missing right", 64, verbs.LocalWrite, func(*verbs.RemoteAddr) {}},
}

// testViolations tries each violation by each operation and looks at the status
// and at the target's memory.
// parity: V04
func testViolations(t *testing.T, dev *verbs.Device) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		for _, v := range violations {
			t.Run(op.String()+"/"+v.name, func(t *testing.T) {
				p := NewPair(t, dev, PairConfig{})
				target := p.Passive.Alloc(v.size, v.has)
				p.Active.Fill(0, 64, 1)
				wr := p.Active.RDMA(7, op, 0, 64, p.Passive)
				wr.Remote = target.Remote()
				v.bend(&wr.Remote)
				p.Active.PostSend(wr)
				p.Active.Expect(7, verbs.StatusRemAccessErr, 0)
				if p.Active.QP.State() != verbs.StateErr {
					t.Errorf("state after the violation = %v, want ERR", p.Active.QP.State())
				}
				p.Passive.AwaitEnd()
				if !bytes.Equal(target.Bytes(), make([]byte, v.size)) {
					t.Error("memory was written to")
				}
			})
		}
	}
}

// testLocalViolations does the like with the requester's own list.
// parity: V04
func testLocalViolations(t *testing.T, dev *verbs.Device) {
	for _, tc := range []struct {
		name string
		op   verbs.Opcode
		sge  func(s *Side) verbs.SGE
	}{
		{"wrong key", verbs.OpWrite, func(s *Side) verbs.SGE { e := s.MR.SGE(0, 8); e.LKey ^= 1 << 20; return e }},
		{"beyond the end", verbs.OpWrite, func(s *Side) verbs.SGE { e := s.MR.SGE(0, s.MR.Len()); e.Length++; return e }},
		{"before the start", verbs.OpWrite, func(s *Side) verbs.SGE { e := s.MR.SGE(0, 8); e.Addr--; return e }},
		{"read without local-write", verbs.OpRead, func(s *Side) verbs.SGE { return s.Alloc(8, verbs.RemoteRead).SGE(0, 8) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := NewPair(t, dev, PairConfig{})
			wr := p.Active.RDMA(7, tc.op, 0, 8, p.Passive)
			wr.SGL[0] = tc.sge(p.Active)
			p.Active.PostSend(wr)
			p.Active.Expect(7, verbs.StatusLocProtErr, 0)
		})
	}
}

// parity: V05
func testLocalWriteNeeded(t *testing.T, dev *verbs.Device) {
	pd := newPD(t, dev)
	for _, a := range []verbs.Access{verbs.RemoteWrite, verbs.RemoteAtomic, verbs.RemoteWrite | verbs.RemoteRead} {
		if mr, err := pd.AllocMR(64, a); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("AllocMR with %v: %v, want ErrInvalid", a, err)
			if err == nil {
				closeAll(t, "memory region", mr.Close)
			}
		}
	}
	for _, a := range []verbs.Access{0, verbs.RemoteRead, verbs.LocalWrite, fullAccess} {
		mr, err := pd.AllocMR(64, a)
		if err != nil {
			t.Errorf("AllocMR with %v: %v", a, err)
			continue
		}
		closeAll(t, "memory region", mr.Close)
	}
}

// testGoSlices transfers between slices of the Go heap of several types.
func testGoSlices(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	src, dst := []float64{1, 2.5, -3}, make([]float64, 3)
	from, err := verbs.RegSlice(p.Active.PD, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "memory region", from.Close)
	to, err := verbs.RegSlice(p.Passive.PD, dst, verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "memory region", to.Close)
	p.Passive.PostRecv(9, 0, 0)
	write := verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{from.SGE(0, from.Len())}, Remote: to.Remote()}
	p.Active.PostSend(write, p.Active.Send(2, 0, 0))
	p.Active.Take(2)
	p.Passive.Expect(9, verbs.StatusSuccess, verbs.WCRecv) // the bytes written before are there now
	for i := range src {
		if dst[i] != src[i] {
			t.Fatalf("written = %v, want %v", dst, src)
		}
	}
}

// testCloseRevokes uses a remote key after its region was closed.
// parity: V04 D38
func testCloseRevokes(t *testing.T, dev *verbs.Device) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		t.Run(op.String(), func(t *testing.T) {
			p := NewPair(t, dev, PairConfig{})
			target := p.Passive.Alloc(64, fullAccess)
			wr := p.Active.RDMA(1, op, 0, 64, p.Passive)
			wr.Remote = target.Remote()
			p.Active.PostSend(wr)
			p.Active.Expect(1, verbs.StatusSuccess, wcOpOf(op))
			closeAll(t, "memory region", target.Close)
			wr.ID = 2
			p.Active.PostSend(wr)
			p.Active.Expect(2, verbs.StatusRemAccessErr, 0)
		})
	}
}

// pairInTraffic returns a pair with eight writes of 1 MiB under way to a region of the passive side. If first is set, the first write has completed.
func pairInTraffic(t *testing.T, dev *verbs.Device, first bool) (*Pair, *verbs.MR) {
	t.Helper()
	p := NewPair(t, dev, PairConfig{Memory: 1 << 20})
	target := p.Passive.Alloc(1<<20, fullAccess)
	for id := range uint64(8) {
		wr := p.Active.RDMA(id, verbs.OpWrite, 0, 1<<20, p.Passive)
		wr.Remote = target.Remote()
		p.Active.PostSend(wr)
	}
	if first {
		p.Active.Take(1)
	}
	return p, target
}

// testCloseInTraffic closes the target of writes while they are under way. The
// memory is unmapped by Close, so a device that still touched it would crash.
func testCloseInTraffic(t *testing.T, dev *verbs.Device) {
	for i := range sized(20, 4) {
		p, target := pairInTraffic(t, dev, i%2 == 0)
		closeAll(t, "memory region", target.Close)
		closeAll(t, "source", p.Active.MR.Close)
		p.Active.Break()
		closeAll(t, "queue pairs", p.Active.QP.Close, p.Passive.QP.Close)
	}
}

// testKeys registers many regions: keys do not repeat among the living, are not
// counted up, and local and remote ones are used apart.
// parity: S10 D38
func testKeys(t *testing.T, dev *verbs.Device) {
	const n = 1000
	pd := newPD(t, dev)
	buf := make([]byte, 64)
	seen := make(map[uint32]bool)
	steps := make(map[uint32]int)
	var last uint32
	for range n {
		mr, err := pd.RegMR(buf, fullAccess)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(t, "memory region", mr.Close)
		if seen[mr.RKey()] {
			t.Fatalf("remote key %#x came twice", mr.RKey())
		}
		seen[mr.RKey()] = true
		steps[mr.RKey()-last]++
		last = mr.RKey()
	}
	if len(steps) < n/2 {
		t.Errorf("%d keys have only %d different distances: they can be guessed", n, len(steps))
	}
}

// testGuessedKeys guesses keys. Each wrong guess costs the connection.
// parity: S10
func testGuessedKeys(t *testing.T, dev *verbs.Device) {
	guess := rand.New(rand.NewPCG(1, 2))
	for range sized(500, 20) {
		p := NewPair(t, dev, PairConfig{Memory: 64})
		wr := p.Active.RDMA(1, verbs.OpRead, 0, 8, p.Passive)
		wr.Remote.RKey = guess.Uint32()
		p.Active.PostSend(wr)
		p.Active.Expect(1, verbs.StatusRemAccessErr, 0)
		closeAll(t, "queue pairs", p.Active.QP.Close, p.Passive.QP.Close)
	}
}

// testUnregistered posts memory that was never registered: it must fail before
// anything is sent.
// parity: S08
func testUnregistered(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	p.Passive.PostRecv(9, 0, 64)
	wr := p.Active.Send(1, 0, 8)
	wr.SGL[0] = verbs.SGE{Addr: 0x1000, Length: 8, LKey: p.Active.MR.LKey()}
	if n, err := p.Active.QP.PostSend([]verbs.SendWR{wr}); err == nil {
		p.Active.Expect(1, verbs.StatusLocProtErr, 0)
	} else if n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend = %d, %v; want acceptance, or 0 and ErrInvalid", n, err)
	}
	closeAll(t, "queue pair", p.Active.QP.Close)
	p.Passive.Expect(9, verbs.StatusWRFlushErr, 0)
}
