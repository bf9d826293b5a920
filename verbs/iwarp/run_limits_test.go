package iwarp_test

import (
	"slices"
	"testing"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestRunEnd ends a stream at and around each of the parts of its first FPDUs: three FPDUs come before a Send, the others after it. The program and
// the peer see no difference between a stream that the device finds at once and one that it finds FPDU by FPDU.
func TestRunEnd(t *testing.T) {
	const head, payload, trailer = 16, 60, 6
	c := runCases()[slices.IndexFunc(runCases(), func(c runCase) bool { return c.name == "a send" })]
	g := newRunRig(t, true)
	for k := range 6 {
		for _, at := range []int{1, 2, head - 1, head, head + 1, head + payload/2, head + payload, head + payload + 1, head + payload + trailer} {
			c.cut = k*(head+payload+trailer) + at
			got := c.playFuzzed(t, g, (*runRig).whole)
			g.connect(t, true)
			want := c.playFuzzed(t, g, (*runRig).fpdus)
			g.connect(t, true)
			if d := differs(want, got); d != "" {
				t.Fatalf("ends after %d bytes, FPDU by FPDU (-) and at once (+):\n%s", c.cut, d)
			}
		}
	}
}

// TestRunStalled has the device move the bytes of a run, and stop behind a message that it must not hold. The bytes count for the host until they are
// processed, or the connection is over.
func TestRunStalled(t *testing.T) {
	cfg := iwarp.Config{NoCRC: true, HoldLimit: 200} // one message and its overhead
	g := newRunSide(t, cfg, verbs.LocalWrite)
	for _, ends := range []bool{false, true} {
		g.connect(t, true)
		g.ask(t, 0)
		g.all(func() {
			for range 2 {
				g.add(g.p.untagged(rdmap.OpSend), g.data[200:260])
			}
		})
		g.finish()
		g.whole(t)
		eventually(t, "the device stalls", func() bool {
			_, _, stalled := iwarp.Held(g.dev)
			return stalled
		})
		const counted = 4 << 10 // for one held message
		if n := g.dev.Stats()["quota_memory"]; n <= counted {
			t.Errorf("%d bytes are counted", n)
		}
		if ends {
			if err := g.qp.Close(); err != nil {
				t.Error(err)
			}
		} else {
			for i := range runRecvs {
				g.receive(t, i)
			}
			g.receive(t, 0)
			if o := g.outcome(t); o.Err != "" || len(o.Completions) != len(runSizes)+4 {
				t.Errorf("%d completions, error %q", len(o.Completions), o.Err)
			}
		}
		eventually(t, "no memory is counted", func() bool { return g.dev.Stats()["quota_memory"] == 0 })
	}
}

// TestRunMemory: without room for moved bytes in the host's share no guesses are made. Calls without guesses are no refusals.
func TestRunMemory(t *testing.T) {
	for _, c := range runCases() {
		if c.bad || !c.wrong || c.late > 0 {
			continue
		}
		g := newRunSide(t, iwarp.Config{NoCRC: true, MaxMemory: 60}, verbs.LocalWrite)
		g.connect(t, true)
		if o := c.play(t, g, (*runRig).whole); o.Err != "" {
			t.Errorf("%s: %s", c.name, o.Err)
		}
		if s := g.dev.Stats(); s["rx_staged_bytes"] > 0 || s["quota_memory"] > 0 || s["quota_memory_refused"] > 0 {
			t.Errorf("%s: %d bytes were moved, %d are counted, %d were refused", c.name, s["rx_staged_bytes"], s["quota_memory"], s["quota_memory_refused"])
		}
	}
}

// TestRunMemoryTwice: guesses are made if the host's share has room for twice the bytes that a wrong guess would move, and not with one byte less.
func TestRunMemoryTwice(t *testing.T) {
	const first, head = 60, 16
	most := 0 // of the guesses behind the first segment of read 0
	for off := first; off < runSizes[0]; off += first {
		n := min(first, runSizes[0]-off)
		most += n + mpa.TrailerLen(ddp.TaggedHeaderLen+n) + head
	}
	c := runCase{build: func(g *runRig) {
		for i := range runSizes {
			g.respond(i, []int{first}, func(k int) {
				if i == 0 && k == 1 { // behind segment 0, so that the guesses there are wrong
					g.add(writeTo(g.target.Remote()), g.data[500:560])
				}
			})
		}
	}}
	for _, test := range []struct {
		share   int
		guesses bool
	}{{most - 1, false}, {most, false}, {most + most/2, false}, {2*most - 1, false}, {2 * most, true}} {
		memory := int64(test.share) // of all hosts
		for hostquota.Most(memory, 0) < int64(test.share) {
			memory++
		}
		g := newRunSide(t, iwarp.Config{NoCRC: true, MaxMemory: memory}, verbs.LocalWrite)
		g.connect(t, true)
		if o := c.play(t, g, (*runRig).whole); o.Err != "" {
			t.Errorf("share of %d bytes: %s", test.share, o.Err)
		}
		s := g.dev.Stats()
		if (s["rx_staged_bytes"] > 0) != test.guesses || s["quota_memory"] > 0 || s["quota_memory_refused"] > 0 {
			t.Errorf("share of %d bytes for guesses of %d: %d were moved, %d are counted, %d were refused",
				test.share, most, s["rx_staged_bytes"], s["quota_memory"], s["quota_memory_refused"])
		}
	}
}

// TestRunCalls counts the system calls for a response that has come.
func TestRunCalls(t *testing.T) {
	g := newRunRig(t, true)
	c := runCase{build: func(g *runRig) { g.all(nil) }}
	before := g.dev.Stats()
	c.play(t, g, (*runRig).whole)
	after := g.dev.Stats()
	calls, fpdus := after["rx_calls"]-before["rx_calls"], after["rx_fpdus"]-before["rx_fpdus"]
	if fpdus != uint64(len(g.out)) || calls > fpdus/2 {
		t.Errorf("%d FPDUs were read by %d system calls", fpdus, calls)
	}
}

// TestRunClosedRegion closes the sink of a read in the middle of its response.
func TestRunClosedRegion(t *testing.T) {
	const size = 4096
	for _, crc := range []bool{true, false} {
		for _, cut := range []int{10, 16, 100, 16 + 200 + 4 + 5, 1000} {
			s := newSide(t, iwarp.Config{NoCRC: true}, nil)
			req := request()
			req.CRC = crc
			p := acceptRaw(t, s, req, verbs.ConnParam{})
			p.open()
			p.barrier()
			mr, err := s.pd.AllocMR(size, verbs.LocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, size)}})
			_, b := p.expect(rdmap.OpReadRequest)
			r, _ := rdmap.ParseReadRequest(b)
			var out []byte
			for off := 0; off < size; off += 200 {
				n := min(200, size-off)
				h := tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO+uint64(off))
				h.Last = off+n == size
				out = append(out, p.fpdu(h, make([]byte, n))...)
			}
			base := s.dev.Stats()["rx_bytes"]
			p.write(out[:cut])
			eventually(t, "the device reads", func() bool { return s.dev.Stats()["rx_bytes"] == base+uint64(cut) })
			if err := mr.Close(); err != nil {
				t.Fatal(err)
			}
			p.write(out[cut:])
			s.want(t, 1, verbs.WCRead, verbs.StatusLocProtErr)
			if term := p.terminate(); term.Cause() != rdmap.TermLocalCatastrophic {
				t.Errorf("crc %t, closed after %d bytes: %v", crc, cut, term)
			}
		}
	}
}
