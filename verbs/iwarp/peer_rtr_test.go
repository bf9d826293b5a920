package iwarp_test

import (
	"fmt"
	"testing"

	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestRTRActive: the active side offers peer-to-peer set-up and sends, before its
// program has posted anything, the message that the passive side has picked
// (RFC 6581 section 9.2).
func TestRTRActive(t *testing.T) {
	for _, kind := range []mpa.RTR{mpa.RTRWrite, mpa.RTRRead} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newSide(t, iwarp.Config{}, nil)
			p := connectRaw(t, s, func(req mpa.Frame) mpa.Frame {
				if !req.Setup.PeerToPeer || !req.Setup.RTRWrite || !req.Setup.RTRRead || req.Setup.RTRSend {
					t.Errorf("request offers %+v, want a write and a read", req.Setup)
				}
				reply := accept(req)
				reply.Setup.RTRWrite, reply.Setup.RTRRead = kind == mpa.RTRWrite, kind == mpa.RTRRead
				return reply
			}, verbs.ConnParam{})
			if kind == mpa.RTRWrite {
				if h, payload := p.expect(rdmap.OpWrite); len(payload) > 0 || !h.Last {
					t.Errorf("first FPDU %+v with %d octets", h, len(payload))
				}
			} else {
				h, payload := p.expect(rdmap.OpReadRequest)
				r, n := rdmap.ParseReadRequest(payload)
				if n != len(payload) || r.Size != 0 || h.MSN != 1 || !h.Last {
					t.Errorf("first FPDU %+v asks for %d octets", h, r.Size)
				}
				p.send(tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO), nil)
			}
			p.hello(t, s, false) // the peer may go first now
			mr := s.region(t, 64)
			s.send(t, verbs.SendWR{ID: 9, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}})
			_, payload := p.expect(rdmap.OpReadRequest)
			r, _ := rdmap.ParseReadRequest(payload)
			p.send(tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO), make([]byte, 8))
			s.want(t, 9, verbs.WCRead, verbs.StatusSuccess)
		})
	}
}

// TestRTRActiveNone: without peer-to-peer set-up the active side says nothing by itself.
func TestRTRActiveNone(t *testing.T) {
	s := newSide(t, iwarp.Config{NoPeerToPeer: true}, nil)
	p := connectRaw(t, s, func(req mpa.Frame) mpa.Frame {
		if req.Setup.PeerToPeer {
			t.Error("request offers peer-to-peer set-up")
		}
		return accept(req)
	}, verbs.ConnParam{})
	p.hello(t, s, true) // its first FPDU is the program's
}

// TestRTRPassive offers a device each combination of kinds: it picks exactly one of
// its own, and takes it as the first FPDU.
func TestRTRPassive(t *testing.T) {
	for offer := range 8 {
		setup := mpa.Setup{IRD: 4, ORD: 4, PeerToPeer: true, RTRSend: offer&1 != 0, RTRWrite: offer&2 != 0, RTRRead: offer&4 != 0}
		want := mpa.RTRWrite
		if setup.RTRRead && !setup.RTRWrite {
			want = mpa.RTRRead
		}
		for _, depth := range []uint16{0, 4} {
			setup.ORD = depth
			t.Run(fmt.Sprintf("send %t write %t read %t depth %d", setup.RTRSend, setup.RTRWrite, setup.RTRRead, depth), func(t *testing.T) {
				s := newSide(t, iwarp.Config{}, nil)
				req := request()
				req.Setup = setup
				p := acceptRaw(t, s, req, verbs.ConnParam{})
				got := p.reply.Setup
				if !got.PeerToPeer || got.RTRSend || got.RTRWrite != (want == mpa.RTRWrite) || got.RTRRead != (want == mpa.RTRRead) {
					t.Errorf("the reply picks %+v, want the %v", got, want)
				}
				if want == mpa.RTRWrite {
					p.open()
				} else {
					p.barrier()
				}
				p.hello(t, s, true) // after it the passive side may go first
			})
		}
	}
}

// TestPassiveHoldsSends: nothing of what the passive side's program posts is on the
// wire before the active side's first FPDU (RFC 5044 section 7.1.2), and then all of it, in order.
func TestPassiveHoldsSends(t *testing.T) {
	for _, polled := range []bool{false, true} {
		t.Run(fmt.Sprintf("polled=%t", polled), func(t *testing.T) {
			s := newSide(t, iwarp.Config{}, nil)
			mr := s.region(t, 4096)
			p := acceptRaw(t, s, request(), verbs.ConnParam{})
			s.send(t,
				verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}},
				verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 16)}, Remote: verbs.RemoteAddr{Addr: 1, RKey: 2}},
				verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 24)}, Remote: verbs.RemoteAddr{Addr: 3, RKey: 4}})
			if polled {
				var wc [4]verbs.WC
				for range 1000 {
					if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
						t.Fatalf("%d completions before the first FPDU, error %v", n, err)
					}
				}
			}
			// What would go is gone when the post returns: the socket has room for it.
			if st := s.dev.Stats(); st["tx_bytes"] != 0 || st["tx_fpdus"] != 0 {
				t.Errorf("%d bytes, %d FPDUs sent before the first FPDU of the active side", st["tx_bytes"], st["tx_fpdus"])
			}
			p.open()
			if _, payload := p.expect(rdmap.OpSend); len(payload) != 8 {
				t.Errorf("send of %d octets", len(payload))
			}
			if _, payload := p.expect(rdmap.OpWrite); len(payload) != 16 {
				t.Errorf("write of %d octets", len(payload))
			}
			_, payload := p.expect(rdmap.OpReadRequest)
			r, _ := rdmap.ParseReadRequest(payload)
			p.send(tagged(rdmap.OpReadResponse, r.SinkSTag, r.SinkTO), make([]byte, 24))
			s.want(t, 1, verbs.WCSend, verbs.StatusSuccess)
			s.want(t, 2, verbs.WCWrite, verbs.StatusSuccess)
			s.want(t, 3, verbs.WCRead, verbs.StatusSuccess)
		})
	}
}

// TestPassiveHoldsAnswers: a first FPDU with a wrong CRC does not open the stream.
func TestPassiveHoldsAnswers(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled})
	b := p.fpdu(tagged(rdmap.OpWrite, 0, 0), nil)
	b[len(b)-1] ^= 1
	p.write(b)
	if term := p.terminate(); term.Cause() != rdmap.TermMPACRC {
		t.Errorf("Terminate %v", term)
	}
	s.want(t, 1, verbs.WCWrite, verbs.StatusWRFlushErr)
}
