package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestRFC5041_3_GracefulCloseReported: an orderly end is reported as such, and not as a failure, to the
// side that ends first and to the other.
func TestRFC5041_3_GracefulCloseReported(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	if err := a.conn.Disconnect(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, s := range []*side{a, b} {
		<-s.conn.Done()
		if err := s.conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("error %v, want %v", err, verbs.ErrDisconnected)
		}
		v := victim{side: s, t: t}
		v.sentinel() // no event: nothing has failed
	}
}

// TestRFC5041_4_1_LastSegmentLast: the segments of a message go out in order, the one
// with L last, of messages of either model.
func TestRFC5041_4_1_LastSegmentLast(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxULPDU: 128}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	p.barrier()
	mr := s.region(t, 1000)
	fill(mr.Bytes(), 4)
	s.send(t,
		verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 1000)}},
		verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, 1000)}, Remote: verbs.RemoteAddr{Addr: 50, RKey: 9}})
	p.readRequest(mr.Remote(), 1000)
	for _, op := range []rdmap.Opcode{rdmap.OpSend, rdmap.OpWrite, rdmap.OpReadResponse} {
		var got []byte
		for last := false; !last; {
			h, payload := p.expect(op)
			at := uint64(h.MO)
			switch op {
			case rdmap.OpWrite:
				at = h.TO - 50
			case rdmap.OpReadResponse:
				at = h.TO
			default: // MO tells
			}
			if at != uint64(len(got)) || h.Len()+len(payload) > 128 {
				t.Fatalf("%v: segment at %d of %d octets, after %d", op, at, len(payload), len(got))
			}
			got, last = append(got, payload...), h.Last
		}
		if !bytes.Equal(got, mr.Bytes()) {
			t.Errorf("%v: data differs", op)
		}
	}
}

// TestRFC5041_5_2_TaggedPlace: STag and first TO of a tagged message are those that
// the program gave, and a message is placed there as a whole, whatever its segments.
func TestRFC5041_5_2_TaggedPlace(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 300)
	for _, r := range []verbs.RemoteAddr{{Addr: 0, RKey: 1}, {Addr: ^uint64(0) - 7, RKey: ^uint32(0)}, {Addr: 1 << 40, RKey: 0x80}} {
		s.send(t, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: r})
		if h, _ := p.expect(rdmap.OpWrite); h.STag != r.RKey || h.TO != r.Addr {
			t.Errorf("write to %v: STag %#x, TO %#x", r, h.STag, h.TO)
		}
	}
	data := make([]byte, 256)
	fill(data, 5)
	for _, size := range []int{1, 7, 8, 9, 255} {
		clear(mr.Bytes())
		h := writeTo(mr.RemoteAt(11))
		for rest := data; len(rest) > 0; {
			n := min(size, len(rest))
			h.Last = n == len(rest)
			p.send(h, rest[:n])
			h, rest = h.Advance(n), rest[n:]
		}
		p.barrier()
		if !bytes.Equal(mr.Bytes()[11:267], data) || !zero(mr.Bytes()[:11]) || !zero(mr.Bytes()[267:]) {
			t.Errorf("a Write in segments of %d octets is not in its place", size)
		}
	}
}

// TestRFC5041_5_4_DeliveredWhenWhole: a message is delivered when its last segment has
// come, and not before, and then all of it is in place.
func TestRFC5041_5_4_DeliveredWhenWhole(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	s.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 20), mr.SGE(30, 34)}})
	h := p.untagged(rdmap.OpSend)
	var wc [1]verbs.WC
	for i := range 3 {
		h.Last = i == 2
		p.send(h, sixteen)
		h = h.Advance(16)
		if i < 2 {
			p.barrier()
			if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
				t.Errorf("after segment %d: %d completions, error %v", i, n, err)
			}
		}
	}
	if wc := s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess); wc.Len != 48 {
		t.Errorf("%d bytes", wc.Len)
	}
	if !bytes.Equal(append(bytes.Clone(mr.Bytes()[:20]), mr.Bytes()[30:58]...), bytes.Repeat(sixteen, 3)) || !zero(mr.Bytes()[20:30]) {
		t.Error("the message is not in place")
	}
}

// TestRFC5041_6_2_NoTeardown: the stream stays as long as no rule is broken, however
// strange the traffic.
func TestRFC5041_6_2_NoTeardown(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	for i := range uint64(100) {
		s.recv(t, verbs.RecvWR{ID: i})
		p.send(tagged(rdmap.OpWrite, uint32(i), ^uint64(0)), nil)
		p.send(p.untagged(rdmap.OpSendSE), nil)
		p.barrier()
		s.want(t, i, verbs.WCRecv, verbs.StatusSuccess)
	}
	odd := p.untagged(rdmap.OpSend)
	odd.Rsvd = 0xffffffff // ignored where nothing is invalidated
	s.recv(t, verbs.RecvWR{ID: 1})
	p.send(odd, nil)
	s.want(t, 1, verbs.WCRecv, verbs.StatusSuccess)
	if s.conn.Err() != nil || s.qp.State() != verbs.StateRTS {
		t.Errorf("state %v, error %v", s.qp.State(), s.conn.Err())
	}
}

// TestRFC5041_6_2_1_OtherHalf: when the peer has closed its half, the program's close
// closes the other one.
func TestRFC5041_6_2_1_OtherHalf(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	p.send(p.untagged(rdmap.OpSend), sixteen) // waits for a receive, and keeps the other half open
	if err := p.tc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the device has seen the end of the peer's half", func() bool { return iwarp.Ended(s.dev) })
	mr := s.region(t, 16)
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 16)}})
	s.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
	p.expect(rdmap.OpWrite)
	if err := s.conn.Disconnect(testContext(t)); err != nil {
		t.Error(err)
	}
	p.end()
}

// TestRFC5041_6_2_2_LossReported: the loss of the connection is a failure that the
// oldest request is told, or an event if there is none.
func TestRFC5041_6_2_2_LossReported(t *testing.T) {
	for _, outstanding := range []bool{true, false} {
		t.Run(fmt.Sprintf("outstanding=%t", outstanding), func(t *testing.T) {
			s, p := opened(t, iwarp.Config{})
			v := victim{side: s, peer: p, t: t}
			if outstanding {
				s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled}, verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled})
				p.expect(rdmap.OpReadRequest)
				p.expect(rdmap.OpReadRequest)
			}
			if err := p.tc.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			p.tc.Close()
			<-s.conn.Done()
			if err := s.conn.Err(); err == nil || errors.Is(err, verbs.ErrDisconnected) {
				t.Errorf("error %v, want a loss", err)
			}
			if !outstanding {
				v.raised(verbs.EventQPFatal, 0)
				return
			}
			s.want(t, 1, verbs.WCRead, verbs.StatusRetryExcErr)
			s.want(t, 2, verbs.WCRead, verbs.StatusWRFlushErr)
			v.sentinel()
		})
	}
}

// TestRFC5041_8_3_Revocation: the owner establishes and revokes what a peer may touch,
// at any time, by opening and closing regions of the same memory.
func TestRFC5041_8_3_Revocation(t *testing.T) {
	s, p := opened(t, iwarp.Config{})
	buf := make([]byte, 64)
	whole, err := s.pd.RegMR(buf, verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, whole.Close)
	part, err := s.pd.RegMR(buf[:16], verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	p.send(writeTo(part.Remote()), sixteen)
	p.barrier()
	revoked := part.Remote()
	if err := part.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf[:16], sixteen) {
		t.Error("the Write before the revocation is missing")
	}
	p.send(writeTo(whole.RemoteAt(16)), sixteen) // the other STag of the same memory is good
	p.barrier()
	h := p.send(writeTo(revoked), make([]byte, 16))
	if term := p.terminate(); term.Cause() != rdmap.TermDDPInvalidSTag || !bytes.Equal(term.DDPHeader, ddp.AppendHeader(nil, h)) {
		t.Errorf("Terminate %v", term)
	}
	if !bytes.Equal(buf[:32], bytes.Repeat(sixteen, 2)) {
		t.Error("memory differs")
	}
}
