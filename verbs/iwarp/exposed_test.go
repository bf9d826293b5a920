package iwarp_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestExposure compares an exposure with a list of its regions, in random histories of short regions, writes and watches, which overlap and touch.
func TestExposure(t *testing.T) {
	const size, most = 48, 40
	mem := make([]byte, size)
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		type region struct {
			from, to int
			x        *iwarp.ExposedRegion
			readable bool
			writes   int
		}
		type watch struct {
			from, to int
			end      func() bool
			reached  bool
		}
		var x iwarp.Exposure
		var regions []*region
		var watches []*watch
		span := func(low, high int) (from, to int) {
			from = low + rng.IntN(high-low)
			return from, from + 1 + rng.IntN(min(high-from, 1+rng.IntN(12)))
		}
		for range 1000 {
			from, to := span(0, size)
			switch op := rng.IntN(6); {
			case op == 0 && len(regions) < most:
				r := &region{from: from, to: to}
				access := verbs.RemoteWrite
				if rng.IntN(8) == 0 && !slices.ContainsFunc(watches, func(w *watch) bool { return from < w.to && w.from < to }) { // otherwise it would wait
					access, r.readable = verbs.RemoteRead, true
				}
				r.x = x.Add(mem[from:to], access)
				regions = append(regions, r)
			case op == 1 && len(regions) > 0:
				i := rng.IntN(len(regions))
				if r := regions[i]; r.writes == 0 {
					r.x.Drop()
					regions = slices.Delete(regions, i, i+1)
				}
			case op == 2 && len(regions) > 0:
				r := regions[rng.IntN(len(regions))]
				from, to = span(r.from, r.to)
				r.x.BeginWrite(mem[from:to])
				r.writes++
				for _, w := range watches {
					w.reached = w.reached || from < w.to && w.from < to
				}
			case op == 3 && len(regions) > 0:
				if r := regions[rng.IntN(len(regions))]; r.writes > 0 {
					r.x.EndWrite()
					r.writes--
				}
			case op == 4:
				want := !slices.ContainsFunc(regions, func(r *region) bool { return (r.readable || r.writes > 0) && r.from < to && from < r.to })
				end, ok := x.Watch(mem[from:to])
				if ok != want {
					t.Fatalf("seed %d: bytes %d to %d are watched: %t, want %t", seed, from, to, ok, want)
				}
				if ok {
					watches = append(watches, &watch{from: from, to: to, end: end})
				}
			case op == 5 && len(watches) > 0:
				i := rng.IntN(len(watches))
				if w := watches[i]; w.end() != w.reached {
					t.Fatalf("seed %d: bytes %d to %d were reached: %t, want %t", seed, w.from, w.to, !w.reached, w.reached)
				}
				watches = slices.Delete(watches, i, i+1)
			}
		}
	}
}

// TestExposureOfReaders adds a region that peers may read: it waits for watches of its bytes, and for no others.
func TestExposureOfReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x iwarp.Exposure
		mem := make([]byte, 64)
		watch := func(b []byte) (end func() bool) {
			end, ok := x.Watch(b)
			if !ok {
				t.Fatal("the watch does not begin")
			}
			return end
		}
		ends := []func() bool{watch(mem[:10]), watch(mem[9:20]), watch(mem[30:])}
		x.Add(mem[:10], verbs.RemoteWrite)
		x.Add(mem[20:30], verbs.RemoteRead)
		added := false
		go func() {
			x.Add(mem[5:30], verbs.LocalWrite|verbs.RemoteRead)
			added = true
		}()
		for i, end := range ends[:2] {
			synctest.Wait()
			if added {
				t.Errorf("the region is there before the end of watch %d", i)
			}
			if _, ok := x.Watch(mem[25:26]); ok {
				t.Error("a further watch begins, for which the region would have to wait too")
			}
			end()
		}
		synctest.Wait()
		if !added {
			t.Error("the region waits for a watch of other bytes")
		}
		if _, ok := x.Watch(mem[29:30]); ok {
			t.Error("bytes that peers may read are watched")
		}
	})
}

// TestExposureOfMany adds regions that have the watched bytes, and others that only lie before them. A watch begins up to a number of each.
func TestExposureOfMany(t *testing.T) {
	mem := make([]byte, 64+2*iwarp.LongestWalk)
	for _, c := range []struct {
		most   int
		watch  []byte
		region func(i int) []byte
	}{
		{iwarp.MostLooks, mem[:64], func(int) []byte { return mem[:64] }},
		{iwarp.LongestWalk - 1, mem[len(mem)-64:], func(i int) []byte { return mem[i+1 : i+2] }}, // the region of all bytes is passed too
	} {
		var x iwarp.Exposure
		if c.most != iwarp.MostLooks {
			x.Add(mem, verbs.RemoteWrite)
		}
		for i := range c.most + 5 {
			end, ok := x.Watch(c.watch)
			if ok != (i <= c.most) {
				t.Errorf("with %d regions the watch begins: %t, want %t", i, ok, !ok)
			}
			if ok {
				end()
			}
			x.Add(c.region(i), verbs.RemoteWrite)
		}
	}
}

// In TestExposureOrder a write begins when a watch is about to be counted, and a watch begins when a write has found no watch. The watch must be refused, or
// find the write.
func TestExposureOrder(t *testing.T) {
	for _, write := range []bool{true, false} {
		var x iwarp.Exposure
		mem := make([]byte, 64)
		region := x.Add(mem, verbs.RemoteWrite)
		var end func() bool
		ok, turns := false, 0
		watch := func() { end, ok = x.Watch(mem) }
		first, second := watch, func() { region.BeginWrite(mem) }
		if write {
			first, second = second, first
		}
		x.OnTurn(func() {
			turns++
			second()
		})
		first()
		if turns != 1 {
			t.Fatalf("write first: %t: nothing was done at the turn", write)
		}
		if ok && !end() {
			t.Errorf("write first: %t: neither the write nor the watch has found the other", write)
		}
		region.EndWrite()
		if end, ok = x.Watch(mem); !ok || end() {
			t.Errorf("write first: %t: no watch begins after the write", write)
		}
	}
}

// TestExposureRace has writers of one region and a goroutine that watches its bytes and copies them. A copy is refused or whole: it has no byte that was
// written after the watch began.
func TestExposureRace(t *testing.T) {
	var x iwarp.Exposure
	mem := make([]byte, 64)
	region := x.Add(mem, verbs.RemoteWrite)
	var word atomic.Uint64 // stands for the bytes
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				region.BeginWrite(mem)
				word.Add(1)
				region.EndWrite()
			}
		})
	}
	for range 20_000 {
		end, ok := x.Watch(mem)
		if !ok {
			continue
		}
		before := word.Load()
		after := word.Load()
		if reached := end(); before != after && !reached {
			t.Fatal("a write to watched bytes was not noticed")
		}
	}
	stop.Store(true)
	wg.Wait()
}

// register registers b with a protection domain of s, or with another one of the same device, or of another device.
func (s *side) register(t *testing.T, domain string, b []byte, access verbs.Access) (mr *verbs.MR, of *side) {
	t.Helper()
	pd := s.pd
	of = s
	if domain == "other domain" {
		other, err := s.dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, other.Close)
		pd = other
	} else if domain == "other device" {
		of = newSide(t, iwarp.Config{}, nil)
		pd = of.pd
	}
	mr, err := pd.RegMR(b, access)
	if err != nil {
		t.Fatal(err)
	}
	return mr, of
}

// TestRunExposed plays a stream with a Write behind the first segment of a read, so that the guesses behind that segment are wrong. There are none while a
// peer writes to a region that has one of their bytes, or may read it.
func TestRunExposed(t *testing.T) {
	const first, all = 60, verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteAtomic
	size := runSizes[0]
	for _, test := range []struct {
		name    string
		sink    verbs.Access // of the region of the sink
		rights  verbs.Access // of the other region; 0: LocalWrite, RemoteWrite and RemoteAtomic
		domain  string
		off, n  int // bytes of the sink in another region; 0: there is none
		writes  bool
		ended   bool // the write is over
		guesses bool
	}{
		{name: "no rights of peers", sink: verbs.LocalWrite, guesses: true},
		{name: "sink that peers may write", sink: all, guesses: true},
		{name: "sink that a peer writes", sink: all, writes: true},
		{name: "sink that a peer has written", sink: all, writes: true, ended: true, guesses: true},
		{name: "sink that peers may read", sink: verbs.LocalWrite | verbs.RemoteRead},
		{name: "overlap that peers may read", rights: verbs.RemoteRead, n: size},
		{name: "overlap that windows may be bound to", rights: verbs.MWBind, n: size},
		{name: "last byte that peers of another device may read", rights: verbs.RemoteRead, domain: "other device", off: size - 1, n: 1},
		{name: "touches a byte that peers may read", rights: verbs.RemoteRead, off: size, n: 1, guesses: true},
		{name: "overlap", n: size, guesses: true},
		{name: "overlap with a write", n: size, writes: true},
		{name: "overlap with a write that is over", n: size, writes: true, ended: true, guesses: true},
		{name: "other domain", domain: "other domain", n: size, writes: true},
		{name: "other device", domain: "other device", n: size, writes: true},
		{name: "first byte", off: first, n: 1, writes: true},
		{name: "up to first byte", n: first + 1, writes: true},
		{name: "touches first byte", n: first, writes: true, guesses: true},
		{name: "last byte", off: size - 1, n: 1, writes: true},
		{name: "from last byte", off: size - 1, n: 50, writes: true},
		{name: "touches last byte", off: size, n: 50, writes: true, guesses: true},
		{name: "in the middle", domain: "other domain", off: size / 2, n: 1, writes: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			access := verbs.LocalWrite
			if test.sink != 0 {
				access = test.sink
			}
			g := newRunSide(t, iwarp.Config{NoCRC: true}, access)
			g.connect(t, true)
			region, of := g.mem, g.side
			if test.n > 0 {
				rights := all
				if test.rights != 0 {
					rights = test.rights
				}
				region, of = g.register(t, test.domain, g.mem.Bytes()[test.off:test.off+test.n], rights)
				closeAtEnd(t, region.Close)
			}
			if test.writes {
				if end := iwarp.BeginWrite(of.dev, region, 0, 1); test.ended {
					end()
				} else {
					defer end()
				}
			}
			c := runCase{build: func(g *runRig) {
				for i := range runSizes {
					g.respond(i, []int{first}, func(k int) {
						if i == 0 && k == 1 {
							g.add(writeTo(g.target.Remote()), g.data[500:560])
						}
					})
				}
			}}
			before := g.dev.Stats()["rx_staged_bytes"]
			if o := c.play(t, g, (*runRig).whole); o.Err != "" || len(o.Completions) != len(runSizes) {
				t.Errorf("%d completions, error %q", len(o.Completions), o.Err)
			}
			if n := g.dev.Stats()["rx_staged_bytes"] - before; (n > 0) != test.guesses {
				t.Errorf("%d bytes were moved", n)
			}
			if _, calls := iwarp.Exposed(); calls != 0 {
				t.Errorf("%d system calls are watched after their end", calls)
			}
		})
	}
}

// TestRunExposedCases plays all streams while a peer writes to the region of the sinks. The outcome is the same whether the device reads FPDU by FPDU or
// all at once, and no bytes are moved.
func TestRunExposedCases(t *testing.T) {
	for _, c := range runCases() {
		t.Run(c.name, func(t *testing.T) {
			g, ref := newRunSide(t, iwarp.Config{NoCRC: true}, verbs.LocalWrite|verbs.RemoteWrite), newRunRig(t, true)
			g.connect(t, true)
			ref.data = g.data
			end := iwarp.BeginWrite(g.dev, g.mem, 0, g.mem.Len())
			got := c.play(t, g, (*runRig).whole)
			end()
			want := c.play(t, ref, (*runRig).fpdus)
			if d := differs(want.neutral(ref), got.neutral(g)); d != "" {
				t.Errorf("FPDU by FPDU (-) and at once with a write (+):\n%s", d)
			}
			if n := g.dev.Stats()["rx_staged_bytes"]; n > 0 {
				t.Errorf("%d bytes were moved", n)
			}
		})
	}
}

// TestMoveUnreadExposed: if another peer writes to bytes of guesses between a system call and the moving of the bytes, the connection ends. Rights to write
// alone, and other bytes, do not matter. The bytes are cleared.
func TestMoveUnreadExposed(t *testing.T) {
	const size, all = 64, verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteAtomic
	for _, test := range []struct {
		name    string
		domain  string
		off, n  int // of the other region, in the memory around the sink, which begins at size
		at, len int // of the write, in that memory; 0: there is none
		before  bool
		refused bool
	}{
		{name: "no write", off: size, n: size},
		{name: "no write to an older region", off: size, n: size, before: true},
		{name: "write to an older region", off: size, n: size, at: size, len: size, before: true, refused: true},
		{name: "write to a new region", off: size, n: size, at: size, len: size, refused: true},
		{name: "other domain", domain: "other domain", off: size, n: size, at: size + 3, len: 1, before: true, refused: true},
		{name: "new region of other domain", domain: "other domain", off: size, n: size, at: size + 3, len: 1, refused: true},
		{name: "other device", domain: "other device", n: 3 * size, at: 1, len: 3*size - 2, before: true, refused: true},
		{name: "first byte", n: 3 * size, at: size - 1, len: 2, before: true, refused: true},
		{name: "last byte", n: 3 * size, at: 2*size - 1, len: 2, before: true, refused: true},
		{name: "before the first byte", n: 3 * size, at: size - 8, len: 8, before: true},
		{name: "behind the last byte", n: 3 * size, at: 2 * size, len: 8, before: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, p := opened(t, iwarp.Config{})
			mem := make([]byte, 3*size)
			sink, _ := s.register(t, "", mem[size:2*size], verbs.LocalWrite)
			closeAtEnd(t, sink.Close)
			to := p.asked(t, s, sink)
			var region *verbs.MR
			var of *side
			register := func() {
				region, of = s.register(t, test.domain, mem[test.off:test.off+test.n], all)
				closeAtEnd(t, region.Close)
			}
			if test.before {
				register()
			}
			fill(sink.Bytes(), 1)
			if !iwarp.MoveUnreadAfter(s.dev, p.addr(), sink.Bytes(), func() {
				if !test.before {
					register()
				}
				if test.len > 0 {
					iwarp.BeginWrite(of.dev, region, test.at-test.off, test.len)()
				}
			}) {
				t.Fatal("no guesses are made")
			}
			if !zero(sink.Bytes()) {
				t.Error("moved bytes are left in the sink")
			}
			if test.refused {
				wantExposed(t, s, p)
				return
			}
			p.send(to, make([]byte, size))
			s.want(t, 1, verbs.WCRead, verbs.StatusSuccess)
		})
	}
}

// moves stops a connection that moves bytes after a wrong guess.
type moves struct {
	points chan bool     // the connection has come to the point before the move (false) or behind it (true)
	goOn   chan struct{} // the connection may go on from there
	over   chan struct{} // closed when no connection stops any more
}

// stopMoves stops connections of the devices that are opened later.
func stopMoves(t *testing.T) *moves {
	m := &moves{make(chan bool), make(chan struct{}), make(chan struct{})}
	t.Cleanup(iwarp.OnMove(func(moved bool) {
		select {
		case m.points <- moved:
			<-m.goOn
		case <-m.over:
		}
	}))
	return m
}

// each calls do while the connection is stopped before the move, and again while it is stopped behind the move.
func (m *moves) each(t *testing.T, do func(moved bool)) {
	t.Helper()
	defer close(m.over)
	for _, want := range []bool{false, true} {
		select {
		case moved := <-m.points:
			func() {
				defer func() { m.goOn <- struct{}{} }()
				if moved != want {
					t.Fatalf("a connection is at the point behind the move: %t, want %t", moved, want)
				}
				do(moved)
			}()
		case <-testContext(t).Done():
			t.Fatal("no bytes are moved")
		}
	}
}

// moveSegment is the payload of a segment of misguessed.
const moveSegment = 64

// misguessed sends a response to a read of size bytes, which the device of s finds at once. Its segments have moveSegment bytes, and a Write to target lies
// between the first two, so that all guesses are wrong. The connection to other, if there is one, goes on meanwhile.
func (p *peer) misguessed(t *testing.T, s *side, other netip.AddrPort, to ddp.Header, size int, target verbs.RemoteAddr) {
	t.Helper()
	var out []byte
	for off := 0; off < size; off += moveSegment {
		if off == moveSegment {
			out = append(out, p.fpdu(writeTo(target), sixteen)...)
		}
		h := to
		h.TO, h.Last = to.TO+uint64(off), off+moveSegment == size
		out = append(out, p.fpdu(h, bytes.Repeat([]byte{1}, moveSegment))...)
	}
	p.sync()
	defer iwarp.LockInput(s.dev, other)()
	if _, err := p.tc.Write(out); err != nil {
		t.Fatal(err)
	}
}

// In TestForgedHead a second peer writes to the sink of a read, by each operation, after a wrong guess: while bytes of the first peer's stream lie in the sink, or
// when they have just been copied. The second peer may write through another region of the same memory. The connection to the first peer ends, without
// the Write that was behind the guess, and that to the second goes on.
func TestForgedHead(t *testing.T) {
	const size = moveSegment
	for name, forge := range map[string]func(q *peer, to verbs.RemoteAddr){
		"write": func(q *peer, to verbs.RemoteAddr) { q.send(writeTo(to), make([]byte, size)) },
		"short write": func(q *peer, to verbs.RemoteAddr) { // all its bytes are stored at its end
			q.send(writeTo(to.Add(5)), make([]byte, 3))
		},
		"atomic": func(q *peer, to verbs.RemoteAddr) {
			q.send(q.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.FetchAdd(1, to.RKey, to.Addr+size-8, 1)))
			q.expect(rdmap.OpAtomicResponse)
		},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/copied=%t", name, late), func(t *testing.T) {
				m := stopMoves(t)
				s, other, p, q := twoStreams(t, iwarp.Config{})
				p.barrier()
				q.barrier()
				mem, target := s.regionWith(t, 4*size, verbs.LocalWrite), s.region(t, len(sixteen))
				region, _ := s.register(t, "", mem.Bytes(), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteAtomic)
				closeAtEnd(t, region.Close)
				to := p.asked(t, s, mem)
				q.device = nil // because sync waits for all connections
				p.misguessed(t, s, q.addr(), to, mem.Len(), target.Remote())
				m.each(t, func(moved bool) {
					if moved == late {
						forge(q, region.RemoteAt(size)) // the place of the first guess
						q.barrier()
					}
				})
				wantExposed(t, s, p)
				if !zero(target.Bytes()) {
					t.Error("the device has executed a message that another peer could change")
				}
				q.barrier()
				if err := other.conn.Err(); err != nil {
					t.Errorf("the connection of the other peer: %v", err)
				}
			})
		}
	}
}

// TestCloseDuringMove closes the sink of a read after a wrong guess, while bytes of the stream lie in the sink. Close waits until the bytes are moved and
// cleared. From then on the memory does not change. The connection goes on up to the next segment of the read.
func TestCloseDuringMove(t *testing.T) {
	const size = 4 * moveSegment
	m := stopMoves(t)
	s, p := opened(t, iwarp.Config{})
	mem, target := make([]byte, size), s.region(t, len(sixteen))
	sink, _ := s.register(t, "", mem, verbs.LocalWrite)
	state := iwarp.RegionState(s.dev, sink)
	to := p.asked(t, s, sink)
	p.misguessed(t, s, netip.AddrPort{}, to, size, target.Remote())
	done := make(chan error, 1)
	m.each(t, func(moved bool) {
		if !moved {
			if zero(mem[moveSegment:]) {
				t.Error("no bytes lie in the sink before the move")
			}
			go func() { done <- sink.Close() }()
			eventually(t, "Close has begun", func() bool {
				closed, _ := state()
				return closed
			})
		} else if !zero(mem[moveSegment:]) {
			t.Error("moved bytes are left in the sink")
		}
		if _, users := state(); users == 0 {
			t.Errorf("moved=%t: Close has no user of the memory to wait for", moved)
		}
		if len(done) > 0 {
			t.Errorf("moved=%t: Close has returned", moved)
		}
	})
	select {
	case err := <-done:
		if err != nil {
			t.Error("close:", err)
		}
	case <-testContext(t).Done():
		t.Fatal("Close does not return")
	}
	fill(mem, 8) // the program uses its memory
	want := bytes.Clone(mem)
	s.want(t, 1, verbs.WCRead, verbs.StatusLocProtErr)
	if term := p.terminate(); term.Cause() != rdmap.TermLocalCatastrophic {
		t.Errorf("%v", term)
	}
	<-s.conn.Done()
	if !bytes.Equal(target.Bytes(), sixteen) {
		t.Error("the Write behind the wrong guess is not in its place")
	}
	if !bytes.Equal(mem, want) {
		t.Error("the memory has changed after Close")
	}
}

// addr is the address of the peer as the device sees it.
func (p *peer) addr() netip.AddrPort { return p.tc.LocalAddr().(*net.TCPAddr).AddrPort() }

// asked has s ask p for a read into all of sink, and returns the header of a response in one segment.
func (p *peer) asked(t *testing.T, s *side, sink *verbs.MR) ddp.Header {
	t.Helper()
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{sink.SGE(0, sink.Len())}})
	_, b := p.expect(rdmap.OpReadRequest)
	req, _ := rdmap.ParseReadRequest(b)
	return tagged(rdmap.OpReadResponse, req.SinkSTag, req.SinkTO)
}

// wantExposed checks that the connection of s to p has ended because another peer has written to the sink of read 1.
func wantExposed(t *testing.T, s *side, p *peer) {
	t.Helper()
	s.want(t, 1, verbs.WCRead, verbs.StatusLocProtErr)
	if term := p.terminate(); term.Cause() != rdmap.TermLocalCatastrophic {
		t.Errorf("%v", term)
	}
	<-s.conn.Done()
	if err := s.conn.Err(); !strings.Contains(err.Error(), "another connection wrote to the sink of a read") {
		t.Errorf("the error does not name the cause: %v", err)
	}
}

// TestExposedRegions counts the regions that peers may read or write: each is in the list from its registration to its end.
func TestExposedRegions(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	mem := make([]byte, 64)
	before, _ := iwarp.Exposed()
	var mrs []*verbs.MR
	for range 3 {
		for _, a := range []verbs.Access{0, verbs.LocalWrite, verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteInvalidate, verbs.MWBind, verbs.LocalWrite | verbs.RemoteWrite, verbs.LocalWrite | verbs.RemoteAtomic} {
			mr, _ := s.register(t, "", mem, a)
			mrs = append(mrs, mr)
		}
	}
	if n, _ := iwarp.Exposed(); n != before+12 {
		t.Errorf("%d regions are in the list, want 12", n-before)
	}
	for _, mr := range mrs {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		if err := mr.Close(); err != nil {
			t.Error("second Close:", err)
		}
	}
	if n, _ := iwarp.Exposed(); n != before {
		t.Errorf("%d regions are left", n-before)
	}
}

// connectTLS connects a peer to g through a relay, which puts the peer's stream into TLS.
func (g *runRig) connectTLS(t *testing.T, cfg *tls.Config) {
	t.Helper()
	l, err := verbs.Listen(g.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	cfg = cfg.Clone()
	cfg.NextProtos, cfg.ServerName = []string{"cinnabar-iwarp"}, "127.0.0.1"
	cfg.DynamicRecordSizingDisabled = true // each Write of up to 16 KiB is a record
	to := dialListener(t, l)
	g.secure = tls.Client(to.tc, cfg)
	relay, addr := listenRaw(t)
	from, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, from)
	here, err := relay.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_, _ = to.tc.Close(), here.Close()
		wg.Wait()
	})
	wg.Go(func() { _, _ = io.Copy(g.secure, here) })
	wg.Go(func() {
		_, _ = io.Copy(here, g.secure)
		_ = here.(*net.TCPConn).CloseWrite() // the peer sees the end of the device's stream
	})
	g.accept(t, p, l, false)
}

// record has the device find the whole stream at once, or as much of it as fits into a record of TLS.
func (g *runRig) record(t testing.TB) {
	t.Helper()
	g.p.sync()
	if _, err := g.secure.Write(bytes.Join(g.out, nil)); err != nil {
		t.Fatal(err)
	}
}

// TestRunTLS plays each stream inside TLS, at once and FPDU by FPDU. Guesses are made as without TLS.
func TestRunTLS(t *testing.T) {
	cfg := secure(t)
	for _, c := range runCases() {
		t.Run(c.name, func(t *testing.T) {
			g, ref := newRunSide(t, cfg, verbs.LocalWrite), newRunSide(t, cfg, verbs.LocalWrite)
			g.connectTLS(t, cfg.TLS)
			ref.connectTLS(t, cfg.TLS)
			ref.data = g.data
			before := g.dev.Stats()["rx_staged_bytes"]
			got := c.play(t, g, (*runRig).record)
			staged := g.dev.Stats()["rx_staged_bytes"] - before
			want := c.play(t, ref, (*runRig).fpdus)
			if d := differs(want.neutral(ref), got.neutral(g)); d != "" {
				t.Errorf("FPDU by FPDU (-) and at once (+):\n%s", d)
			}
			if c.bad != (got.Err != "") {
				t.Errorf("error of the connection: %q", got.Err)
			}
			if !c.bad && (staged > 0) != c.wrong {
				t.Errorf("%d bytes were moved", staged)
			}
		})
	}
}

// BenchmarkExposure measures the time that a watch adds to a system call with guesses, among many regions.
func BenchmarkExposure(b *testing.B) {
	for _, n := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			var x iwarp.Exposure
			mem := make([]byte, 64*(n+1))
			for i := range n {
				x.Add(mem[64*i:64*i+64], verbs.RemoteWrite)
			}
			sink := mem[64*n:]
			for b.Loop() {
				if end, ok := x.Watch(sink); !ok || end() {
					b.Fatal("the sink is exposed")
				}
			}
		})
	}
}
