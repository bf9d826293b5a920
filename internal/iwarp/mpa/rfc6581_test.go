package mpa

import (
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rfc6581 indexes the MUSTs of RFC 6581, in its order.
var rfc6581 = []rule{
	{"5", "the initiator sends nothing else before the RTR", "device: it sends the RTR before it reports the connection"},
	{"6", "reserved bits are sent as zero and not checked", "TestRFC6581_6_Reserved"},
	{"6", "enhanced set-up goes with revision 2 or higher", "TestRFC6581_6_EnhancedIsRevision2"},
	{"6", "requests of revision 1 are still accepted", "TestRFC6581_6_Revision1Accepted"},
	{"6", "with S the private data begins with the set-up data", "TestRFC6581_6_SetupLeads"},
	{"7", "SCTP session control", "not applicable: iWARP runs over TCP here"},
	{"8", "layer 2, error type 0, codes 5 to 7", "TestRFC6581_8_Codes"},
	{"9", "network order, 14-bit depths; four octets less for the user", "TestRFC6581_9_Encoding"},
	{"9.1", "both ends pass the peer's IRD and ORD to the user", "TestRFC6581_9_1_PeerDepthsReported"},
	{"9.1", "the responder's ORD is at most the initiator's IRD", "TestRFC6581_9_1_ResponderORD"},
	{"9.1", "a rejection for want of IRD says code 6 by a Terminate", "not applicable: no connection is rejected for that, the ORD is lowered"},
	{"9.1", "the initiator's IRD is at least the responder's ORD, its ORD at most the responder's IRD", "TestRFC6581_9_1_InitiatorDepths"},
	{"9.1", "an initiator without the IRD terminates with code 6", "TestRFC6581_9_1_InsufficientIRD"},
	{"9.1", "the initiator passes the responder's depths on from a rejection too", "TestRFC6581_9_1_PeerDepthsReported"},
	{"9.1", "0x3FFF: the responder leaves its depth alone and answers 0x3FFF", "TestRFC6581_9_1_NoNegotiationResponder"},
	{"9.1", "0x3FFF: the initiator leaves its depth alone", "TestRFC6581_9_1_NoNegotiationInitiator"},
	{"9.2", "peer-to-peer: the initiator sets A, and each of B, C, D that it supports", "TestRFC6581_9_2_InitiatorFlags"},
	{"9.2", "a responder supports at least one kind of RTR", "TestRFC6581_9_2_ResponderWithoutRTR"},
	{"9.2", "A in the request: A in the reply, and at least one kind", "TestRFC6581_9_2_ResponderFlags"},
	{"9.2", "no kind in common: the responder sets one that it supports", "TestRFC6581_9_2_NoneInCommon"},
	{"9.2", "the initiator generates one of the negotiated RTRs", "TestRFC6581_9_2_InitiatorPicks"},
	{"9.2", "an initiator that can generate none terminates with code 7", "TestRFC6581_9_2_NoneInCommon"},
	{"9.2", "client-server: the initiator sets A to 0, B, C and D too", "TestRFC6581_9_2_ClientServer"},
	{"9.2", "client-server: the responder sets A to 0, B, C and D too", "TestRFC6581_9_2_ClientServer"},
	{"9.2", "B, C and D are ignored when A is 0", "TestRFC6581_9_2_FlagsWithoutA"},
	{"9.3", "any other local error is told by code 5", "device: CodeLocalCatastrophic is for it, when binding the queue pair fails"},
	{"9.3", "... and so is a reply with M=1", "not done: a peer that demands markers could not read the Terminate either"},
	{"10", "an enhanced request gets an enhanced reply", "TestRFC6581_10_SameForm"},
	{"10", "an unenhanced request gets an unenhanced reply", "TestRFC6581_10_SameForm"},
	{"10", "the enhanced form is not used when nothing of it is wanted", "TestRFC6581_10_NotUnasked"},
	{"10", "unenhanced requests are still accepted", "TestRFC6581_6_Revision1Accepted"},
	{"10", "a responder without enhanced set-up refuses an enhanced request", "TestRFC6581_10_ResponderWithout"},
	{"10", "an initiator whose enhanced request meets such a responder gives up", "TestRFC6581_10_InitiatorAlone"},
}

func TestRFC6581_Index(t *testing.T) { checkIndex(t, "rfc6581_test.go", "TestRFC6581_", rfc6581) }

// enhanced returns a request or reply with set-up data.
func enhanced(reply bool, s Setup) Frame {
	return Frame{Reply: reply, Enhanced: true, Revision: 2, Setup: s}
}

// respond answers a request with the given set-up data, and requires that it is accepted.
func respond(t *testing.T, req Setup, l Local) (Setup, Agreed) {
	t.Helper()
	l.Revision = 2
	reply, a, err := Respond(enhanced(false, req), l)
	if err != nil || !reply.Enhanced || reply.Reject {
		t.Fatalf("request %+v: reply %+v, err %v, want it accepted", req, reply, err)
	}
	return reply.Setup, a
}

// finish takes a reply to a request, both with set-up data.
func finish(req, reply Setup) (Agreed, error) {
	l := Local{
		Revision: 2, IRD: req.IRD, ORD: req.ORD, PeerToPeer: req.PeerToPeer,
		RTRSend: req.RTRSend, RTRWrite: req.RTRWrite, RTRRead: req.RTRRead,
	}
	return Finish(enhanced(false, req), enhanced(true, reply), l)
}

// Section 6: the four bits that are still reserved.
func TestRFC6581_6_Reserved(t *testing.T) {
	f, _, err := ParseFrame(wire(t, keyRequest, "5f020004 00010002"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := AppendFrame(nil, f)
	if err != nil || b[offFlags] != 0x50 {
		t.Errorf("flags %02x, err %v, want 50", b[offFlags], err)
	}
}

// Section 6: S needs revision 2; below it is a reserved bit.
func TestRFC6581_6_EnhancedIsRevision2(t *testing.T) {
	req, err := Request(Local{Revision: 2})
	if err != nil || !req.Enhanced || req.Revision != 2 {
		t.Errorf("request %+v, err %v, want an enhanced one of revision 2", req, err)
	}
	if _, err := AppendFrame(nil, Frame{Enhanced: true, Revision: 1}); err == nil {
		t.Error("an enhanced frame of revision 1 was accepted for sending")
	}
	f, _, err := ParseFrame(wire(t, keyRequest, "50010004 00010002"))
	if err != nil || f.Enhanced || len(f.PrivateData) != 4 {
		t.Errorf("S in revision 1: %+v, err %v, want it ignored", f, err)
	}
}

// Section 6 and 10: supporting revision 2 does not end the support for revision 1.
func TestRFC6581_6_Revision1Accepted(t *testing.T) {
	reply, a, err := Respond(Frame{Revision: 1, CRC: true}, Local{Revision: 2, IRD: 3, ORD: 4})
	if err != nil || reply.Enhanced || reply.Revision != 1 || a.IRD != 3 || a.ORD != 4 {
		t.Errorf("reply %+v, agreed %+v, err %v", reply, a, err)
	}
}

// Section 6: the set-up data come first, the user's private data behind them, and PD_Length counts both.
func TestRFC6581_6_SetupLeads(t *testing.T) {
	f := enhanced(false, Setup{IRD: 1, ORD: 2})
	f.PrivateData = []byte("user")
	b, err := AppendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b[keyLen:]), "10020008"+"00010002"+hex.EncodeToString([]byte("user")); got != want {
		t.Errorf("frame %s, want %s", got, want)
	}
	_, _, err = ParseFrame(wire(t, keyRequest, "50020003 000100"))
	wantError(t, err, CodeInvalidFrame)
}

// Section 8: what a Terminate message says.
func TestRFC6581_8_Codes(t *testing.T) {
	got := fmt.Sprintf("%d %d %d %d %d", TerminateLayer, TerminateType,
		CodeLocalCatastrophic, CodeInsufficientIRD, CodeNoMatchingRTR)
	if want := "2 0 5 6 7"; got != want {
		t.Errorf("layer, type, codes = %s, want %s", got, want)
	}
}

// Section 9: network order, 14 bits, and 508 octets left for the user.
func TestRFC6581_9_Encoding(t *testing.T) {
	b, err := AppendFrame(nil, enhanced(false, Setup{IRD: 0x0102, ORD: 0x2304}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b[FrameLen:]), "01022304"; got != want {
		t.Errorf("set-up data %s, want %s", got, want)
	}
	for _, s := range []Setup{{IRD: 0x4000}, {ORD: 0x4000}} {
		if _, err := AppendFrame(nil, enhanced(false, s)); err == nil {
			t.Errorf("%+v was accepted for sending", s)
		}
	}
	for _, l := range []Local{{Revision: 2, IRD: 0x4000}, {Revision: 2, ORD: 0x4000}} {
		if reply, _, err := Respond(enhanced(false, Setup{}), l); err == nil || reply.Reply {
			t.Errorf("%+v: reply %+v, err %v, want the caller's mistake refused", l, reply, err)
		}
	}
	f := enhanced(true, Setup{})
	if f.PrivateData = make([]byte, 508); checkFrame(opAppend, f) != nil {
		t.Error("508 octets of private data were refused")
	}
	if f.PrivateData = make([]byte, 509); checkFrame(opAppend, f) == nil {
		t.Error("509 octets of private data were accepted")
	}
}

// Section 9.1: the user sees what the peer said, besides what came of it.
func TestRFC6581_9_1_PeerDepthsReported(t *testing.T) {
	_, a := respond(t, Setup{IRD: 30, ORD: 40}, Local{IRD: 1, ORD: 2})
	if a.PeerIRD != 30 || a.PeerORD != 40 {
		t.Errorf("passive side: peer %d/%d, want 30/40", a.PeerIRD, a.PeerORD)
	}
	a, err := finish(Setup{IRD: 50, ORD: 50}, Setup{IRD: 30, ORD: 40})
	if err != nil || a.PeerIRD != 30 || a.PeerORD != 40 {
		t.Errorf("active side: peer %d/%d, err %v, want 30/40", a.PeerIRD, a.PeerORD, err)
	}
	reject := enhanced(true, Setup{IRD: 5, ORD: 6})
	reject.Reject = true
	_, err = Finish(enhanced(false, Setup{}), reject, Local{Revision: 2})
	if r, ok := errors.AsType[*RejectedError](err); !ok || r.PeerIRD != 5 || r.PeerORD != 6 {
		t.Errorf("rejection: %#v, want peer 5/6", err)
	}
}

// Section 9.1: the responder never plans more reads than the initiator serves.
func TestRFC6581_9_1_ResponderORD(t *testing.T) {
	for _, ird := range []uint16{0, 1, 7, 8, 9, MaxDepth} {
		s, a := respond(t, Setup{IRD: ird}, Local{IRD: 8, ORD: 8})
		if want := min(ird, 8); s.ORD != want || a.ORD != want {
			t.Errorf("initiator IRD %d: replied %d, in force %d, want %d", ird, s.ORD, a.ORD, want)
		}
	}
}

// Section 9.1: after the reply the initiator's IRD covers the responder's ORD, its ORD the responder's IRD.
func TestRFC6581_9_1_InitiatorDepths(t *testing.T) {
	for _, got := range []Setup{{IRD: 0, ORD: 0}, {IRD: 3, ORD: 2}, {IRD: 8, ORD: 8}, {IRD: MaxDepth, ORD: 1}} {
		a, err := finish(Setup{IRD: 8, ORD: 8}, got)
		if err != nil || a.IRD < got.ORD || a.ORD > got.IRD || a.ORD > 8 {
			t.Errorf("reply %+v: in force %d/%d, err %v", got, a.IRD, a.ORD, err)
		}
	}
}

// Section 9.1: a responder that plans more reads than the initiator serves is told so.
func TestRFC6581_9_1_InsufficientIRD(t *testing.T) {
	for _, ord := range []uint16{9, MaxDepth} {
		_, err := finish(Setup{IRD: 8, ORD: 8}, Setup{IRD: 8, ORD: ord})
		wantError(t, err, CodeInsufficientIRD)
	}
}

// Section 9.1: to 0x3FFF the responder answers 0x3FFF and keeps its own.
func TestRFC6581_9_1_NoNegotiationResponder(t *testing.T) {
	s, a := respond(t, Setup{IRD: 4, ORD: NoNegotiation}, Local{IRD: 8, ORD: 8})
	if s.IRD != NoNegotiation || a.IRD != 8 || s.ORD != 4 || a.ORD != 4 {
		t.Errorf("ORD open: replied %d/%d, in force %d/%d, want 16383/4 and 8/4", s.IRD, s.ORD, a.IRD, a.ORD)
	}
	s, a = respond(t, Setup{IRD: NoNegotiation, ORD: 4}, Local{IRD: 8, ORD: 8})
	if s.ORD != NoNegotiation || a.ORD != 8 || s.IRD != 4 || a.IRD != 4 {
		t.Errorf("IRD open: replied %d/%d, in force %d/%d, want 4/16383 and 4/8", s.IRD, s.ORD, a.IRD, a.ORD)
	}
}

// Section 9.1: on 0x3FFF in the reply the initiator keeps its own.
func TestRFC6581_9_1_NoNegotiationInitiator(t *testing.T) {
	a, err := finish(Setup{IRD: 4, ORD: 5}, Setup{IRD: NoNegotiation, ORD: 2})
	if err != nil || a.ORD != 5 || a.IRD != 2 {
		t.Errorf("IRD open: in force %d/%d, err %v, want 2/5", a.IRD, a.ORD, err)
	}
	a, err = finish(Setup{IRD: 4, ORD: 5}, Setup{IRD: 3, ORD: NoNegotiation})
	if err != nil || a.IRD != 4 || a.ORD != 3 {
		t.Errorf("ORD open: in force %d/%d, err %v, want 4/3", a.IRD, a.ORD, err)
	}
}

// Section 9.2: the initiator offers exactly what it supports.
func TestRFC6581_9_2_InitiatorFlags(t *testing.T) {
	for bits := 1; bits < 8; bits++ {
		want := Setup{PeerToPeer: true, RTRSend: bits&1 != 0, RTRWrite: bits&2 != 0, RTRRead: bits&4 != 0}
		req, err := Request(Local{
			Revision: 2, PeerToPeer: true,
			RTRSend: want.RTRSend, RTRWrite: want.RTRWrite, RTRRead: want.RTRRead,
		})
		if err != nil || req.Setup != want {
			t.Errorf("offered %+v, err %v, want %+v", req.Setup, err, want)
		}
	}
}

// Section 9.2: an end without any kind of RTR cannot take part in peer-to-peer set-up.
func TestRFC6581_9_2_ResponderWithoutRTR(t *testing.T) {
	reply, _, err := Respond(enhanced(false, Setup{PeerToPeer: true, RTRRead: true}), Local{Revision: 2})
	wantError(t, err, CodeInvalidFrame)
	if !reply.Reject || !reply.Setup.PeerToPeer || !reply.Setup.RTRRead {
		t.Errorf("reply %+v, want a rejection of the same model", reply)
	}
}

// Section 9.2: whatever is offered and supported, the reply has A and at least one kind, one that both
// support if there is any.
func TestRFC6581_9_2_ResponderFlags(t *testing.T) {
	for offered := range 8 {
		for own := 1; own < 8; own++ {
			req := Setup{PeerToPeer: true, RTRSend: offered&1 != 0, RTRWrite: offered&2 != 0, RTRRead: offered&4 != 0}
			l := Local{RTRSend: own&1 != 0, RTRWrite: own&2 != 0, RTRRead: own&4 != 0}
			s, a := respond(t, req, l)
			common := offered&own != 0
			if !s.PeerToPeer || a.RTR == RTRNone || !s.has(a.RTR) || !l.setup().has(a.RTR) || common && !req.has(a.RTR) {
				t.Errorf("offered %+v, own %+v: replied %+v, awaits %v", req, l, s, a.RTR)
			}
		}
	}
}

// Section 9.2: without a kind in common the responder names one of its own and the initiator terminates.
func TestRFC6581_9_2_NoneInCommon(t *testing.T) {
	req := Setup{PeerToPeer: true, RTRWrite: true}
	s, a := respond(t, req, Local{RTRRead: true})
	if !s.RTRRead || a.RTR != RTRRead {
		t.Errorf("replied %+v, awaits %v, want a read", s, a.RTR)
	}
	_, err := finish(req, s)
	wantError(t, err, CodeNoMatchingRTR)
	_, err = finish(req, Setup{}) // a responder that does not keep the model
	wantError(t, err, CodeNoMatchingRTR)
}

// Section 9.2: the RTR is one that the reply names and the initiator can send.
func TestRFC6581_9_2_InitiatorPicks(t *testing.T) {
	all := Setup{PeerToPeer: true, RTRSend: true, RTRWrite: true, RTRRead: true}
	for want, s := range map[RTR]Setup{
		RTRSend:  {PeerToPeer: true, RTRSend: true},
		RTRWrite: {PeerToPeer: true, RTRWrite: true},
		RTRRead:  {PeerToPeer: true, RTRRead: true},
	} {
		if a, err := finish(all, s); err != nil || a.RTR != want {
			t.Errorf("reply %+v: %v, err %v, want %v", s, a.RTR, err, want)
		}
		if a, err := finish(s, all); err != nil || a.RTR != want {
			t.Errorf("request %+v: %v, err %v, want %v", s, a.RTR, err, want)
		}
	}
}

// Section 9.2: in the client-server model all four flags are 0, both ways, and no RTR is sent.
func TestRFC6581_9_2_ClientServer(t *testing.T) {
	l := Local{Revision: 2, RTRSend: true, RTRWrite: true, RTRRead: true}
	req, err := Request(l)
	if err != nil || !cmp.Equal(req.Setup, Setup{}) {
		t.Errorf("request %+v, err %v, want no flags", req.Setup, err)
	}
	l.PeerToPeer = true // a wish of the passive side's changes nothing
	s, a := respond(t, req.Setup, l)
	if s != (Setup{}) || a.RTR != RTRNone {
		t.Errorf("reply %+v, RTR %v, want no flags and none", s, a.RTR)
	}
	if _, err := AppendFrame(nil, enhanced(false, Setup{RTRWrite: true})); err == nil {
		t.Error("C without A was accepted for sending")
	}
}

// Section 9.2: without A, B, C and D mean nothing.
func TestRFC6581_9_2_FlagsWithoutA(t *testing.T) {
	f, _, err := ParseFrame(wire(t, keyReply, "50020004 4002c003"))
	if want := (Setup{IRD: 2, ORD: 3}); err != nil || f.Setup != want {
		t.Errorf("set-up %+v, err %v, want %+v", f.Setup, err, want)
	}
}

// Section 10: a reply has the form of its request, also when it rejects.
func TestRFC6581_10_SameForm(t *testing.T) {
	for _, req := range []Frame{
		{Revision: 1}, {Revision: 2}, enhanced(false, Setup{}),
		{Revision: 1, Markers: true}, {Revision: 2, Markers: true},
		{Revision: 2, Enhanced: true, Markers: true},
	} {
		reply, _, err := Respond(req, Local{Revision: 2})
		if reply.Reject != (err != nil) || reply.Enhanced != req.Enhanced || reply.Revision != req.Revision {
			t.Errorf("request %+v: reply %+v, err %v", req, reply, err)
		}
		reply, err = Rejection(req, nil)
		if err != nil || reply.Enhanced != req.Enhanced || reply.Revision != req.Revision {
			t.Errorf("request %+v: rejection %+v, err %v", req, reply, err)
		}
	}
}

// Section 10: who asks for revision 1 sends nothing of the enhanced form.
func TestRFC6581_10_NotUnasked(t *testing.T) {
	req, err := Request(Local{Revision: 1, IRD: 5, ORD: 5, RTRWrite: true})
	if want := (Frame{Revision: 1}); err != nil || !cmp.Equal(req, want) {
		t.Errorf("request %+v, err %v, want %+v", req, err, want)
	}
	if _, err := Request(Local{Revision: 1, PeerToPeer: true, RTRWrite: true}); err == nil {
		t.Error("peer-to-peer was accepted with revision 1")
	}
}

// Section 10: an end held to revision 1 does not take an enhanced request; its refusal names its revision.
func TestRFC6581_10_ResponderWithout(t *testing.T) {
	reply, _, err := Respond(enhanced(false, Setup{IRD: 1, ORD: 1}), Local{Revision: 1})
	wantError(t, err, CodeInvalidFrame)
	if want := (Frame{Reply: true, Reject: true, Revision: 1}); !cmp.Equal(reply, want) {
		t.Errorf("reply %+v, want %+v", reply, want)
	}
}

// Section 10: an acceptance that is not enhanced means that the set-up data went to the peer's user. It is
// refused, whatever its revision; a rejection is reported as one.
func TestRFC6581_10_InitiatorAlone(t *testing.T) {
	req := enhanced(false, Setup{IRD: 1, ORD: 1})
	l := Local{Revision: 2, IRD: 1, ORD: 1}
	for _, revision := range []uint8{1, 2} {
		_, err := Finish(req, Frame{Reply: true, Revision: revision}, l)
		wantError(t, err, CodeInvalidFrame)
	}
	_, err := Finish(req, Frame{Reply: true, Reject: true, Revision: 1}, l)
	if r, ok := errors.AsType[*RejectedError](err); !ok || r.Revision != 1 {
		t.Errorf("rejection of revision 1: %v, want a *RejectedError that names it", err)
	}
}
