package iwarp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// sendTerminate sends a Terminate for a segment that the device has sent, in the
// RFC's bit order or in siw's.
func (p *peer) sendTerminate(c rdmap.Cause, h ddp.Header, swapped bool) {
	p.t.Helper()
	b := rdmap.AppendTerminate(nil, c.ForSegment(h, 8))
	if swapped {
		b[0] = b[0]<<4 | b[0]>>4
		b[2] = b[2]>>7&1 | b[2]>>5&2 | b[2]>>3&4
	}
	p.send(p.untagged(rdmap.OpTerminate), b)
}

// receivedCauses are the causes that a peer can give, with the status by which the
// oldest request is told.
var receivedCauses = []struct {
	cause  rdmap.Cause
	status verbs.WCStatus
}{
	{rdmap.TermLocalCatastrophic, verbs.StatusRemOpErr},
	{rdmap.TermInvalidSTag, verbs.StatusRemAccessErr},
	{rdmap.TermBaseBounds, verbs.StatusRemAccessErr},
	{rdmap.TermAccess, verbs.StatusRemAccessErr},
	{rdmap.TermSTagNotAssociated, verbs.StatusRemAccessErr},
	{rdmap.TermTOWrap, verbs.StatusRemAccessErr},
	{rdmap.TermCannotInvalidate, verbs.StatusRemInvReqErr},
	{rdmap.TermProtectionUnspecified, verbs.StatusRemAccessErr},
	{rdmap.TermInvalidVersion, verbs.StatusRemInvReqErr},
	{rdmap.TermUnexpectedOpcode, verbs.StatusRemInvReqErr},
	{rdmap.TermCatastrophic, verbs.StatusRemInvReqErr},
	{rdmap.TermCatastrophicGlobal, verbs.StatusRemOpErr},
	{rdmap.TermOpCannotInvalidate, verbs.StatusRemInvReqErr},
	{rdmap.TermOperationUnspecified, verbs.StatusRemOpErr},
	{rdmap.TermDDPCatastrophic, verbs.StatusRemOpErr},
	{rdmap.TermDDPInvalidSTag, verbs.StatusRemAccessErr},
	{rdmap.TermDDPBaseBounds, verbs.StatusRemAccessErr},
	{rdmap.TermDDPSTagNotAssociated, verbs.StatusRemAccessErr},
	{rdmap.TermDDPTOWrap, verbs.StatusRemAccessErr},
	{rdmap.TermDDPTaggedVersion, verbs.StatusRemAccessErr},
	{rdmap.TermDDPInvalidQN, verbs.StatusRemInvReqErr},
	{rdmap.TermDDPNoBuffer, verbs.StatusRNRRetryExcErr},
	{rdmap.TermDDPMSNRange, verbs.StatusRemOpErr},
	{rdmap.TermDDPInvalidMO, verbs.StatusRemOpErr},
	{rdmap.TermDDPTooLong, verbs.StatusRemInvReqErr},
	{rdmap.TermDDPUntaggedVersion, verbs.StatusRemOpErr},
	{rdmap.TermMPACRC, verbs.StatusFatalErr},
	{rdmap.TermMPAMarker, verbs.StatusFatalErr},
}

// TestTerminateReceived has a peer give each cause, in both bit orders: the oldest
// request outstanding is told, and the asynchronous event if there is none.
func TestTerminateReceived(t *testing.T) {
	for _, c := range receivedCauses {
		for _, swapped := range []bool{false, true} {
			if swapped && c.cause == rdmap.TermDDPCatastrophic {
				continue // without headers, as siw sends it, this word is that of another cause (rdmap.ParseTerminate)
			}
			order := map[bool]string{false: "RFC", true: "siw"}[swapped]
			t.Run(fmt.Sprintf("%04x %s outstanding", uint16(c.cause), order), func(t *testing.T) {
				testTerminateTold(t, c.cause, c.status, swapped)
			})
			t.Run(fmt.Sprintf("%04x %s idle", uint16(c.cause), order), func(t *testing.T) {
				testTerminateRaised(t, c.cause, swapped)
			})
		}
	}
}

func testTerminateTold(t *testing.T, cause rdmap.Cause, status verbs.WCStatus, swapped bool) {
	v := newVictim(t, iwarp.Config{}, nil)
	v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
	v.work(numRecvs)
	v.sendTerminate(cause, tagged(rdmap.OpWrite, 1, 1), swapped)
	v.peer.end()
	for range numRecvs + numSends {
		wc := v.wait(t)
		if wc.ID != readID && wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("request %d: %v, want a flush", wc.ID, wc.Status)
		}
		if wc.ID == readID && (wc.Status != status || wc.Vendor != uint32(cause)) {
			t.Errorf("oldest request: %v, vendor %#x, want %v, %#x", wc.Status, wc.Vendor, status, uint32(cause))
		}
	}
	v.terminatedBy(cause)
	// The request has been told: the next event is the one that the test raises now.
	v.sentinel()
}

// terminatedBy checks how the connection says that the peer has ended it.
func (v *victim) terminatedBy(cause rdmap.Cause) {
	v.t.Helper()
	<-v.conn.Done()
	if term, ok := errors.AsType[rdmap.Terminate](v.conn.Err()); !ok || term.Cause() != cause || !strings.Contains(v.conn.Err().Error(), "by the peer") {
		v.t.Errorf("Conn.Err is %v, want the peer's Terminate %v", v.conn.Err(), cause)
	}
	if s := v.qp.State(); s != verbs.StateErr {
		v.t.Errorf("state %v, want ERR", s)
	}
}

// sentinel expects that no asynchronous event waits: it overruns a completion
// queue and finds that event first.
func (v *victim) sentinel() {
	v.t.Helper()
	overrun(v.t, v.side)
	ev, err := v.side.dev.NextEvent(testContext(v.t))
	if err != nil || ev.Type != verbs.EventCQErr {
		v.t.Errorf("event %v, error %v; want none before the test's own", ev.Type, err)
	}
}

// overrun overruns a completion queue of s's device.
func overrun(t testing.TB, s *side) {
	t.Helper()
	cq, err := s.dev.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, cq.Close)
	qp, err := s.pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, qp.Close)
	if _, err := qp.PostRecv(make([]verbs.RecvWR, 2)); err != nil {
		t.Fatal(err)
	}
	if err := qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err != nil {
		t.Fatal(err)
	}
}

func testTerminateRaised(t *testing.T, cause rdmap.Cause, swapped bool) {
	v := newVictim(t, iwarp.Config{}, nil)
	v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
	v.recv(t, verbs.RecvWR{ID: recvID})
	v.open()
	// Complete when handed to TCP: nobody is left to be told.
	v.side.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{v.sink.SGE(0, 8)}, Remote: verbs.RemoteAddr{Addr: 1, RKey: 1}})
	v.want(t, 1, verbs.WCWrite, verbs.StatusSuccess)
	h, _ := v.expect(rdmap.OpWrite)
	v.sendTerminate(cause, h, swapped)
	v.peer.end()
	v.want(t, recvID, verbs.WCRecv, verbs.StatusWRFlushErr)
	v.terminatedBy(cause)
	v.raised(verbs.EventQPFatal, cause)
}

// TestTerminateAdvice: a peer that does not know RFC 7306 says so by an unexpected
// opcode or by an invalid queue; the error names the options that keep the extensions away from it.
func TestTerminateAdvice(t *testing.T) {
	for _, cause := range []rdmap.Cause{rdmap.TermUnexpectedOpcode, rdmap.TermDDPInvalidQN} {
		for _, c := range []struct {
			cfg       iwarp.Config
			want, not []string
		}{
			{iwarp.Config{}, []string{"Config.NoImmediates", "Config.NoAtomics", "RFC 7306"}, nil},
			{iwarp.Config{NoImmediates: true}, []string{"Config.NoAtomics"}, []string{"NoImmediates"}},
			{iwarp.Config{NoAtomics: true}, []string{"Config.NoImmediates"}, []string{"NoAtomics"}},
			{iwarp.Config{NoAtomics: true, NoImmediates: true}, nil, []string{"Config."}},
		} {
			v := newVictim(t, c.cfg, nil)
			v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
			v.open()
			v.side.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled})
			h, _ := v.expect(rdmap.OpReadRequest)
			v.sendTerminate(cause, h, true)
			v.want(t, 1, verbs.WCRead, verbs.StatusRemInvReqErr)
			v.terminatedBy(cause)
			text := v.conn.Err().Error()
			for _, w := range c.want {
				if !strings.Contains(text, w) {
					t.Errorf("%v with %+v: error %q does not name %s", cause, c.cfg, text, w)
				}
			}
			for _, w := range c.not {
				if strings.Contains(text, w) {
					t.Errorf("%v with %+v: error %q names %s", cause, c.cfg, text, w)
				}
			}
		}
	}
}

// TestTerminateInSetup: what the active side finds wrong with the reply it tells by
// a Terminate that is its first message (RFC 6581 section 8), in either bit order.
func TestTerminateInSetup(t *testing.T) {
	for _, cause := range []rdmap.Cause{rdmap.TermMPACatastrophic, rdmap.TermMPAInsufficientIRD, rdmap.TermMPANoRTR, rdmap.TermLocalCatastrophic} {
		for _, swapped := range []bool{false, true} {
			v := newVictim(t, iwarp.Config{}, nil)
			v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
			v.side.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled}) // held back: never on the wire
			v.sendTerminate(cause, ddp.Header{}, swapped)
			v.peer.end()
			v.want(t, 1, verbs.WCWrite, verbs.StatusWRFlushErr)
			v.terminatedBy(cause)
			v.raised(verbs.EventQPFatal, cause)
		}
	}
}

// TestTerminateMalformed: a Terminate that announces more than it has still tells
// its cause; one that breaks a rule itself is refused.
func TestTerminateMalformed(t *testing.T) {
	v := newVictim(t, iwarp.Config{}, nil)
	v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
	v.open()
	v.barrier()
	v.peer.send(v.untagged(rdmap.OpTerminate), []byte{0x11, 0x01, 0xc0, 0, 0, 8})
	v.peer.end()
	v.terminatedBy(rdmap.TermDDPBaseBounds)
	if text := v.conn.Err().Error(); !strings.Contains(text, "malformed") {
		t.Errorf("error %q does not say that the message is malformed", text)
	}

	v = newVictim(t, iwarp.Config{}, nil)
	v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
	v.open()
	v.barrier()
	v.peer.send(v.untagged(rdmap.OpTerminate), []byte{0x11, 0x01, 0xc0})
	if term := v.terminate(); term.Cause() != rdmap.TermCatastrophic {
		t.Errorf("Terminate of 3 octets is answered by %v, want %v", term, rdmap.TermCatastrophic)
	}
}

// TestTerminateReadsBeyondIRD: one read more than was negotiated is refused, after
// those before it have been answered.
func TestTerminateReadsBeyondIRD(t *testing.T) {
	for _, ird := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(ird), func(t *testing.T) {
			v := newVictim(t, iwarp.Config{NoCRC: true}, nil)
			const size = 16 << 20 // more than the sockets hold: the answer cannot be done before the next request
			big := v.region(t, size)
			req := request()
			req.CRC = false
			req.Setup.ORD = uint16(ird)
			v.peer = acceptRaw(t, v.side, req, verbs.ConnParam{})
			if got := v.conn.Param().ResponderResources; got != ird {
				t.Errorf("ResponderResources is %d, want %d", got, ird)
			}
			var h ddp.Header
			for range ird + 1 {
				h = v.readRequest(big.Remote(), size)
			}
			for n := 0; n < ird*size; {
				_, payload := v.expect(rdmap.OpReadResponse)
				n += len(payload)
			}
			term := v.terminate()
			if term.Cause() != rdmap.TermDDPNoBuffer || string(term.DDPHeader) != string(ddp.AppendHeader(nil, h)) {
				t.Errorf("Terminate %v for header %x", term, term.DDPHeader)
			}
			v.gone(0, rdmap.TermDDPNoBuffer, nil)
			v.raised(verbs.EventQPReqErr, rdmap.TermDDPNoBuffer)
		})
	}
}

// TestTerminateAfterSlowAnswers has a peer that asks for too much read the answer to its earlier request slowly. It gets all
// of the answer, and the Terminate behind it.
func TestTerminateAfterSlowAnswers(t *testing.T) {
	v := newVictim(t, iwarp.Config{NoCRC: true}, nil)
	const size, pauses = 16 << 20, 8
	big := v.region(t, size)
	req := request()
	req.CRC = false
	req.Setup.ORD = 1
	v.peer = acceptRaw(t, v.side, req, verbs.ConnParam{})
	for range 2 {
		v.readRequest(big.Remote(), size)
	}
	for n, next := 0, 0; n < size; {
		if n >= next {
			next += size / pauses
			time.Sleep(350 * time.Millisecond) //nolint:forbidigo // the peer of this test reads slowly: all pauses together are longer than a peer may read nothing
		}
		_, payload := v.expect(rdmap.OpReadResponse)
		n += len(payload)
	}
	if term := v.terminate(); term.Cause() != rdmap.TermDDPNoBuffer {
		t.Errorf("Terminate %v", term)
	}
}

// TestTerminateShortULPDU: an FPDU too short for a DDP header.
func TestTerminateShortULPDU(t *testing.T) {
	for _, head := range [][]byte{{0, 1, 0xc1}, {0, 13, 0xc1}, {0, 17, 0x41}, {0, 0, 0x41}} {
		v := newVictim(t, iwarp.Config{}, nil)
		v.peer = acceptRaw(t, v.side, request(), verbs.ConnParam{})
		v.peer.write(append(head, make([]byte, 40)...))
		term := v.terminate()
		if term.HasDDP || term.HasRDMAP {
			t.Errorf("ULPDU of %d octets: Terminate %v includes headers that are not there", head[1], term)
		}
		v.gone(0, term.Cause(), nil)
	}
}

// TestTerminateSetupRefused: a reply that accepts but cannot be lived with is
// answered by a Terminate (RFC 6581 sections 8, 9.1 and 9.2).
func TestTerminateSetupRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(f *mpa.Frame)
		cause  rdmap.Cause
	}{
		{"ORD over IRD", func(f *mpa.Frame) { f.Setup.ORD = 33 }, rdmap.TermMPAInsufficientIRD},
		{"no RTR in common", func(f *mpa.Frame) { f.Setup.RTRSend, f.Setup.RTRWrite, f.Setup.RTRRead = true, false, false }, rdmap.TermMPANoRTR},
		{"no peer-to-peer", func(f *mpa.Frame) { f.Setup.PeerToPeer, f.Setup.RTRWrite, f.Setup.RTRRead = false, false, false }, rdmap.TermMPANoRTR},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSide(t, iwarp.Config{}, nil)
			p, dialed := dialPeer(testContext(t), t, s, verbs.ConnParam{})
			reply := accept(p.readFrame())
			c.answer(&reply)
			p.crc = reply.CRC
			p.writeFrame(reply)
			if term := p.terminateMPA(); term.Cause() != c.cause {
				t.Errorf("Terminate %v, want %v", term, c.cause)
			}
			if err := <-dialed; err == nil || !strings.Contains(err.Error(), "mpa") {
				t.Errorf("Dial: error %v, want MPA's", err)
			}
			if state := s.qp.State(); state != verbs.StateInit {
				t.Errorf("state %v after a refused reply, want INIT", state)
			}
		})
	}
}

// terminateMPA is terminate for the codes of a connection that is being set up,
// which rdmap.ParseTerminate does not take for the RFC's order elsewhere.
func (p *peer) terminateMPA() rdmap.Terminate {
	p.t.Helper()
	h, payload := p.expect(rdmap.OpTerminate)
	if h.MSN != 1 || h.QN != ddp.QNTerminate || len(payload) != rdmap.MinTerminateLen {
		p.t.Errorf("Terminate %+v of %d octets", h, len(payload))
	}
	var r rdmap.Receiver
	r.Init(rdmap.Options{Passive: true})
	if _, term := r.Segment(h, len(payload)); term != nil {
		p.t.Fatal(term)
	}
	t, swapped, n := r.ParseTerminate(payload)
	if swapped || n != len(payload) {
		p.t.Errorf("Terminate %x: %d octets parsed, swapped %t", payload, n, swapped)
	}
	p.end()
	return t
}
