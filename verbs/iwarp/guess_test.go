package iwarp_test

import (
	"bytes"
	"net/netip"
	"testing"

	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// reads reads size bytes of src into dst, times times one after the other.
func reads(t *testing.T, a *side, src, dst *verbs.MR, size, times int) {
	t.Helper()
	for range times {
		clear(dst.Bytes()[:size])
		a.send(t, verbs.SendWR{ID: 7, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{dst.SGE(0, size)}, Remote: src.Remote()})
		a.want(t, 7, verbs.WCRead, verbs.StatusSuccess)
		if !bytes.Equal(dst.Bytes()[:size], src.Bytes()[:size]) {
			t.Errorf("read of %d bytes: the data differs", size)
		}
	}
}

// guessedRight checks that dev has made guesses, and none was wrong.
func guessedRight(t *testing.T, dev *verbs.Device) {
	t.Helper()
	s := dev.Stats()
	if s["rx_wrong_guesses"] != 0 || s["rx_staged_bytes"] != 0 {
		t.Errorf("%d guesses were wrong, %d bytes were copied", s["rx_wrong_guesses"], s["rx_staged_bytes"])
	}
	if s["rx_calls"] >= s["rx_fpdus"] {
		t.Errorf("%d FPDUs were read by %d system calls", s["rx_fpdus"], s["rx_calls"])
	}
}

// TestNoWrongGuesses: a device reads from another one, on new connections, on which TCP's segments grow while the first bytes of a response cross them. No
// guess is wrong.
func TestNoWrongGuesses(t *testing.T) {
	const most = 9<<20 + 5
	for _, crc := range []bool{true, false} {
		cfg := iwarp.Config{NoCRC: !crc}
		a, b := newSide(t, cfg, nil), newSide(t, cfg, nil)
		src, dst := b.region(t, most), a.regionWith(t, most, verbs.LocalWrite)
		fill(src.Bytes(), 3)
		for i := range 30 {
			for _, s := range []*side{a, b} {
				var err error
				if s.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 4}); err != nil {
					t.Fatal(err)
				}
			}
			connect(t, a, b, verbs.ConnParam{}, verbs.ConnParam{})
			reads(t, a, src, dst, 1<<20, 4)
			if i%3 == 0 {
				reads(t, a, src, dst, 8<<20, 1)
				reads(t, a, src, dst, most, 1)
			}
			for _, s := range []*side{a, b} {
				if err := s.qp.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		guessedRight(t, a.dev)
	}
}

// TestNoWrongGuessAtTheEnd reads messages whose last segments have all sizes around those of the other segments.
func TestNoWrongGuessAtTheEnd(t *testing.T) {
	const tagged = 14
	for _, mulpdu := range []int{1448, 32762, mpa.MaxULPDU} {
		cfg := iwarp.Config{NoCRC: true, MaxULPDU: mulpdu}
		a, b := newPair(t, cfg, cfg)
		src, dst := b.region(t, 4*mulpdu), a.regionWith(t, 4*mulpdu, verbs.LocalWrite)
		fill(src.Bytes(), 4)
		for d := -160; d <= 70; d += 2 {
			reads(t, a, src, dst, 3*(mulpdu-tagged)+d, 1)
		}
		guessedRight(t, a.dev)
	}
}

// answerRead posts a read of size bytes on s. The response of p has segments of the sizes that sizeAt returns for their offsets. The device finds the segments
// that begin less than around bytes before and behind at of the response at once.
func answerRead(t *testing.T, s *side, p *peer, size, at, around int, sizeAt func(off int) int) {
	t.Helper()
	mr := s.regionWith(t, size, verbs.LocalWrite)
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, size)}})
	_, b := p.expect(rdmap.OpReadRequest)
	req, _ := rdmap.ParseReadRequest(b)
	data := make([]byte, size)
	fill(data, 4)
	var parts [3][]byte // before, around and behind at
	for off := 0; off < size; {
		n := min(sizeAt(off), size-off)
		h := tagged(rdmap.OpReadResponse, req.SinkSTag, req.SinkTO+uint64(off))
		h.Last = off+n == size
		i := 1
		if off <= at-around {
			i = 0
		} else if off >= at+around {
			i = 2
		}
		parts[i] = append(parts[i], p.fpdu(h, data[off:off+n])...)
		off += n
	}
	base := s.dev.Stats()["rx_bytes"]
	p.write(parts[0])
	eventually(t, "the device reads", func() bool { return s.dev.Stats()["rx_bytes"] == base+uint64(len(parts[0])) })
	unlock := iwarp.LockInput(s.dev, netip.AddrPort{})
	_, err := p.tc.Write(parts[1])
	unlock()
	if err != nil {
		t.Fatal(err)
	}
	p.write(parts[2])
	s.want(t, 1, verbs.WCRead, verbs.StatusSuccess)
	if !bytes.Equal(mr.Bytes(), data) {
		t.Error("the data differs")
	}
}

// TestGuessesOfSizes: the segments of a response may change their size at 4 MiB of it, where no guess is made. Where else they do, a guess is wrong, and after it
// none.
func TestGuessesOfSizes(t *testing.T) {
	const step, last = 4 << 20, 4<<20 - 4<<20%1448 // last is the place of the last segment that begins in the first step
	for _, c := range []struct {
		at    int // the first segment that begins here or behind has another size
		right bool
	}{{step, true}, {2 * step, true}, {last + 1, true}, {last, false}, {last - 1448, false}, {step + 1448, false}, {5 << 20, false}} {
		s, p := opened(t, iwarp.Config{NoCRC: true})
		answerRead(t, s, p, 9<<20, c.at, 10*1448, func(off int) int {
			if off < c.at {
				return 1448
			}
			return 1440
		})
		if c.right {
			guessedRight(t, s.dev)
		} else if n := s.dev.Stats()["rx_wrong_guesses"]; n != 1 {
			t.Errorf("change at %d: %d wrong guesses, want 1", c.at, n)
		}
	}
}

// TestRunPause: a peer whose segments have two sizes in turn has few of its bytes moved, and causes few wrong guesses.
func TestRunPause(t *testing.T) {
	const size = 32 << 20
	s, p := opened(t, iwarp.Config{NoCRC: true})
	answerRead(t, s, p, size, 0, 0, func(off int) int {
		if off%50000 == 0 {
			return 30000
		}
		return 20000
	})
	stats := s.dev.Stats()
	if n := stats["rx_staged_bytes"]; n > size/16 {
		t.Errorf("%d of %d bytes were moved", n, size)
	}
	if n := stats["rx_wrong_guesses"]; n < 1 || n > 15 { // the pauses are 64 KiB at least, then twice as long, and so on to 4 MiB
		t.Errorf("%d guesses were wrong", n)
	}
}
