package mpa

import (
	"fmt"
	"slices"
)

// RTR is the kind of the ready-to-receive message by which the active side opens a peer-to-peer connection
// (RFC 6581 section 9.2). It is the first FPDU, has no payload, and is sent and accepted for any agreed
// depth of reads.
type RTR uint8

const (
	RTRNone  RTR = iota // client-server: the active side's first message opens the connection
	RTRSend             // a zero-length Send: it uses up a receive at the passive side
	RTRWrite            // a zero-length RDMA Write
	RTRRead             // a zero-length RDMA Read
)

// String returns the kind in lower case.
func (r RTR) String() string {
	switch r {
	case RTRNone:
		return "none"
	case RTRSend:
		return "send"
	case RTRWrite:
		return "write"
	case RTRRead:
		return "read"
	}
	return fmt.Sprintf("RTR(%d)", uint8(r))
}

// rtrPreference orders the kinds when there is a choice: a write costs the passive side nothing, a read
// costs it an answer, a send a receive. Linux's siw prefers likewise and knows no send.
var rtrPreference = [...]RTR{RTRWrite, RTRRead, RTRSend}

// Local has the parameters of one end of the negotiation.
type Local struct {
	CRC bool // CRCs are wanted. RFC 5044 section 4.4 makes this the default; it is the caller's to set
	// Revision is the revision that the active side requests, and the highest that the passive side accepts: Revision1 or
	// Revision2. Revision 2 always asks for enhanced set-up.
	Revision uint8
	IRD, ORD uint16 // limits: up to MaxDepth, or NoNegotiation
	// PeerToPeer makes the active side offer to send an RTR. The passive side follows the request.
	PeerToPeer bool
	RTRSend    bool // the kinds of RTR that this end can send, as active side,
	RTRWrite   bool // or take, as passive side. With peer-to-peer set-up at
	RTRRead    bool // least one is needed.
	// PrivateData goes into the frame, up to MaxUserData octets. The frame aliases it.
	PrivateData []byte
}

// Agreed is the outcome of a negotiation, as one end sees it.
type Agreed struct {
	CRC      bool  // CRCs are generated and checked in both directions
	Revision uint8 // of both ends
	// IRD and ORD are ours, in force: how many reads the peer may have outstanding here, and we there.
	// Where nothing was negotiated they are those of Local.
	IRD, ORD uint16
	// PeerIRD and PeerORD are those of the peer's frame, for the user (RFC 6581 section 9.1):
	// NoNegotiation when it had no set-up data.
	PeerIRD, PeerORD uint16
	// RTR is the kind of the first FPDU, which the active side sends and the passive side awaits.
	RTR RTR
	// PeerData is the user's part of the peer's private data, a copy that the holder owns.
	PeerData []byte
}

// setup returns the set-up data of l.
func (l Local) setup() Setup {
	return Setup{
		IRD: l.IRD, ORD: l.ORD, PeerToPeer: true,
		RTRSend: l.RTRSend, RTRWrite: l.RTRWrite, RTRRead: l.RTRRead,
	}
}

// check returns an error if a parameter of l has no encoding.
func (l Local) check(op string) error {
	switch {
	case l.Revision != Revision1 && l.Revision != Revision2:
		return localError(op, "Revision", fmt.Sprintf("revision %d is not spoken here", l.Revision), "use 1 or 2")
	case l.IRD > NoNegotiation:
		return depthError(op, "IRD", l.IRD)
	case l.ORD > NoNegotiation:
		return depthError(op, "ORD", l.ORD)
	}
	return nil
}

// has reports whether s names the kind r.
func (s Setup) has(r RTR) bool {
	switch r {
	case RTRSend:
		return s.RTRSend
	case RTRWrite:
		return s.RTRWrite
	case RTRRead:
		return s.RTRRead
	case RTRNone:
	}
	return false
}

// set adds the kind r to s.
func (s *Setup) set(r RTR) {
	switch r {
	case RTRSend:
		s.RTRSend = true
	case RTRWrite:
		s.RTRWrite = true
	case RTRRead:
		s.RTRRead = true
	case RTRNone:
	}
}

// matchRTR returns the preferred kind that both a and b name, or RTRNone.
func matchRTR(a, b Setup) RTR {
	for _, r := range rtrPreference {
		if a.has(r) && b.has(r) {
			return r
		}
	}
	return RTRNone
}

// Request returns the frame that the active side sends. Its private data aliases l's.
func Request(l Local) (Frame, error) {
	if err := l.check(opRequest); err != nil {
		return Frame{}, err
	}
	f := Frame{CRC: l.CRC, Revision: l.Revision, PrivateData: l.PrivateData}
	if l.Revision >= Revision2 {
		f.Enhanced = true
		f.Setup = Setup{IRD: l.IRD, ORD: l.ORD}
	}
	if l.PeerToPeer {
		// RFC 6581 section 9.2: every kind that we support is offered.
		f.Setup = l.setup()
		if err := checkPeerToPeer(l, f.Setup); err != nil {
			return Frame{}, err
		}
	}
	if err := checkFrame(opRequest, f); err != nil {
		return Frame{}, err
	}
	return f, nil
}

// checkPeerToPeer reports why l cannot ask for the peer-to-peer set-up s.
func checkPeerToPeer(l Local, s Setup) error {
	if l.Revision < Revision2 {
		return localError(opRequest, "PeerToPeer", "revision 1 cannot ask for it", "use revision 2")
	}
	if matchRTR(s, s) == RTRNone {
		return localError(opRequest, "PeerToPeer", "no kind of RTR can be sent",
			"set RTRWrite, RTRRead or RTRSend")
	}
	return nil
}

// Finish judges, for the active side, the reply to req, which Request has made of l.
// A rejection is a *RejectedError. Any other error is an *Error: when its Code Terminates, the passive side
// has accepted, and the active side sends a Terminate message before it closes the connection; otherwise it
// closes the connection at once.
//
// A reply of another revision is refused. In particular, a responder that knows only RFC 5044 should close
// the connection on an enhanced request (RFC 6581 section 10); one that accepts it with revision 1 has taken
// the set-up data for private data, and its user has been given four octets too many. The way to such a
// peer is a new connection with Revision1, as the remedy says.
func Finish(req, reply Frame, l Local) (Agreed, error) {
	if err := l.check(opFinish); err != nil {
		return Agreed{}, err
	}
	if err := checkReply(req, reply); err != nil {
		return Agreed{}, err
	}
	// RFC 5044 section 7.1.1: C in either frame turns CRCs on.
	a := agree(req.CRC || reply.CRC, reply, l)
	if !req.Enhanced {
		return a, nil
	}
	if err := finishDepths(&a, req.Setup, reply.Setup); err != nil {
		return Agreed{}, err
	}
	if err := finishRTR(&a, req.Setup, reply.Setup); err != nil {
		return Agreed{}, err
	}
	return a, nil
}

// agree returns the part of the outcome that does not depend on set-up data, for the end with l that has received peer.
func agree(crc bool, peer Frame, l Local) Agreed {
	a := Agreed{
		CRC:      crc,
		Revision: peer.Revision,
		IRD:      l.IRD, ORD: l.ORD,
		PeerData: slices.Clone(peer.PrivateData),
	}
	a.PeerIRD, a.PeerORD = peer.depths()
	return a
}

// depths returns the depths in f's set-up data, NoNegotiation without it.
func (f Frame) depths() (ird, ord uint16) {
	if !f.Enhanced {
		return NoNegotiation, NoNegotiation
	}
	return f.Setup.IRD, f.Setup.ORD
}

// checkReply reports why reply is no acceptance of req that we can work with.
func checkReply(req, reply Frame) error {
	switch {
	case !reply.Reply:
		// RFC 5044 section 7.1.2 rule 8.
		return refuse(opFinish, "Key", "the peer sent a request too, both ends started as initiators",
			"let one end listen")
	case reply.Reject:
		ird, ord := reply.depths()
		return &RejectedError{
			PrivateData: slices.Clone(reply.PrivateData), Revision: reply.Revision,
			PeerIRD: ird, PeerORD: ord,
		}
	case reply.Revision != req.Revision:
		return refuse(opFinish, "Rev",
			fmt.Sprintf("the reply is of revision %d, the request of %d", reply.Revision, req.Revision),
			"connect again with the peer's revision, if it is 1 or 2")
	case reply.Enhanced != req.Enhanced:
		// RFC 6581 section 10: enhanced is answered with enhanced, unenhanced with unenhanced.
		return refuse(opFinish, "S",
			fmt.Sprintf("enhanced set-up is %t in the reply and %t in the request", reply.Enhanced, req.Enhanced),
			"connect again with revision 1")
	case reply.Markers:
		// Without markers no Terminate message could be read by such a peer either.
		return refuse(opFinish, "M", "the peer demands markers, which are not supported", "turn markers off at the peer")
	}
	return nil
}

// refuse reports a frame after which the connection is closed at once.
func refuse(op, field, problem, remedy string) *Error {
	return &Error{Op: op, Field: field, Problem: problem, Remedy: remedy, Code: CodeInvalidFrame}
}

// finishDepths applies RFC 6581 section 9.1 at the active side: our ORD is at most the responder's IRD, our
// IRD at least its ORD; a depth that the responder leaves open stays as it is.
func finishDepths(a *Agreed, sent, got Setup) error {
	if got.IRD != NoNegotiation {
		a.ORD = min(sent.ORD, got.IRD)
	}
	if got.ORD == NoNegotiation {
		return nil
	}
	if got.ORD > sent.IRD {
		return &Error{
			Op:      opFinish,
			Field:   "ORD",
			Problem: fmt.Sprintf("the peer would send %d reads at once, the limit here is an IRD of %d", got.ORD, sent.IRD),
			Remedy:  "connect with a larger IRD, or lower the peer's ORD",
			Code:    CodeInsufficientIRD,
		}
	}
	a.IRD = got.ORD
	return nil
}

// finishRTR picks the active side's first message (RFC 6581 section 9.2).
func finishRTR(a *Agreed, sent, got Setup) error {
	if got.PeerToPeer != sent.PeerToPeer {
		return &Error{
			Op:      opFinish,
			Field:   "A",
			Problem: fmt.Sprintf("peer-to-peer is %t in the reply and %t in the request", got.PeerToPeer, sent.PeerToPeer),
			Remedy:  "connect with the connection model that the peer supports",
			Code:    CodeNoMatchingRTR,
		}
	}
	if !sent.PeerToPeer {
		return nil
	}
	a.RTR = matchRTR(sent, got)
	if a.RTR == RTRNone {
		return &Error{
			Op:      opFinish,
			Field:   "B, C, D",
			Problem: fmt.Sprintf("no kind of RTR in common: we send %s, the peer takes %s", sent.kinds(), got.kinds()),
			Remedy:  "offer a kind that the peer takes, or connect without peer-to-peer",
			Code:    CodeNoMatchingRTR,
		}
	}
	return nil
}

// kinds lists the kinds of RTR in s for error texts.
func (s Setup) kinds() string {
	var names []string
	for _, r := range rtrPreference {
		if s.has(r) {
			names = append(names, r.String())
		}
	}
	return fmt.Sprint(names)
}
