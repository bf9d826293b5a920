package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestSegmentSizes: segments of a long write begin at cache lines, are as long as the
// MULPDU lets them be, and the last bytes stay together. Frames of less are not cut down:
// they fill the segments of TCP on an Ethernet, here of 1500 and 9000 octets.
func TestSegmentSizes(t *testing.T) {
	const line, word = 64, 8
	for _, mulpdu := range []int{128, mpa.MULPDU(1448), 5000, mpa.MULPDU(8948), 32741, mpa.MaxULPDU} {
		s, p := opened(t, iwarp.Config{MaxULPDU: mulpdu})
		most := ddp.MaxPayload(mulpdu, true)
		even := most
		if most >= 16<<10 {
			even -= most % line
		}
		for _, size := range []int{most - 1, most, most + 1, most + word, even + line, 3*most + word + 1} {
			mr := s.region(t, size)
			fill(mr.Bytes(), uint64(mulpdu))
			s.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, size)}, Remote: verbs.RemoteAddr{RKey: 1}})
			got := make([]byte, 0, size)
			for last := false; !last; {
				h, payload := p.expect(rdmap.OpWrite)
				switch rest := size - len(got) - len(payload); {
				case h.TO != uint64(len(got)) || h.Last != (rest == 0) || len(payload) > most:
					t.Fatalf("mulpdu %d, %d bytes: a segment of %d at %d, after %d, last %t", mulpdu, size, len(payload), h.TO, len(got), h.Last)
				case rest > 0 && len(payload) != even && rest != word:
					t.Errorf("mulpdu %d, %d bytes: a segment of %d with %d to go, want %d", mulpdu, size, len(payload), rest, even)
				}
				got, last = append(got, payload...), h.Last
			}
			if !bytes.Equal(got, mr.Bytes()) {
				t.Errorf("mulpdu %d, %d bytes: the data differs", mulpdu, size)
			}
			s.wait(t)
		}
	}
}

// longWrite has s write all of mr and returns the longest ULPDU that comes.
func longWrite(t *testing.T, s *side, p *peer, mr *verbs.MR) int {
	t.Helper()
	s.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, mr.Len())}, Remote: verbs.RemoteAddr{RKey: 1}})
	longest := 0
	for last := false; !last; {
		var head [mpa.HeaderLen + ddp.TaggedHeaderLen]byte
		p.readFull(head[:])
		n := int(binary.BigEndian.Uint16(head[:]))
		h, _ := ddp.ParseHeader(head[mpa.HeaderLen:])
		longest, last = max(longest, n), h.Last
		if _, err := io.CopyN(io.Discard, p.tc, int64(n-ddp.TaggedHeaderLen+mpa.TrailerLen(n))); err != nil {
			t.Fatal(err)
		}
	}
	s.wait(t)
	return longest
}

// TestSegmentsFollowMSS: with the default MaxULPDU frames fit the segments of TCP also when
// those have grown: over loopback they do so once the peer's window has opened. However
// long the stream has become, what it learns of them is never old.
func TestSegmentsFollowMSS(t *testing.T) {
	s, p := opened(t, iwarp.Config{NoCRC: true})
	mr := s.region(t, 4<<20)
	grown := false
	for round := 0; round < 16; round++ { // the window opens
		longest, limit := longWrite(t, s, p, mr), mpa.MULPDU(iwarp.MSS(s.dev))
		if longest > limit {
			t.Errorf("a ULPDU of %d octets; MULPDU is %d", longest, limit)
		}
		grown = grown || iwarp.MULPDU(s.dev) == limit && round > 0
	}
	limit := mpa.MULPDU(iwarp.MSS(s.dev))
	if !grown {
		t.Errorf("MULPDU is %d, TCP's segments have %d octets", iwarp.MULPDU(s.dev), iwarp.MSS(s.dev))
	}
	iwarp.SetMULPDU(s.dev, limit/2)
	for range 2 {
		longWrite(t, s, p, mr)
	}
	if got, want := iwarp.MULPDU(s.dev), mpa.MULPDU(iwarp.MSS(s.dev)); got != want {
		t.Errorf("MULPDU is %d still, should be %d", got, want)
	}
}

// TestSizeOfSegments changes the MULPDU after the first segment of a read response. The segments that begin in the same 4 MiB have one size, and the last ones
// have the new size.
func TestSizeOfSegments(t *testing.T) {
	const step, size, before, after = 4 << 20, 21<<20 + 7, 30014, 20014
	s, p := opened(t, iwarp.Config{NoCRC: true})
	mr := s.region(t, size)
	iwarp.FixMULPDU(s.dev, before)
	p.readRequest(mr.Remote(), size)
	var sizes [size/step + 1]int // of the segments that begin in each step
	for last := false; !last; {
		h, payload := p.expect(rdmap.OpReadResponse)
		at := &sizes[h.TO/step]
		if *at == 0 {
			*at = len(payload)
		}
		if last = h.Last; len(payload) != *at && !last {
			t.Fatalf("a segment of %d bytes at %d, after one of %d", len(payload), h.TO, *at)
		}
		iwarp.FixMULPDU(s.dev, after)
	}
	if want := ddp.MaxPayload(before, true) &^ 63; sizes[0] != want {
		t.Errorf("the first segments have %d bytes, want %d", sizes[0], want)
	}
	if want := ddp.MaxPayload(after, true) &^ 63; sizes[len(sizes)-1] != want {
		t.Errorf("the last segments have %d bytes, want %d", sizes[len(sizes)-1], want)
	}
}
