package mpa

import "fmt"

// Respond answers a request for the passive side. With a nil error, reply accepts and a is in force once it
// has been sent; no FPDU may be sent before the active side's first one has been received and validated
// (RFC 5044 section 7.1.2 rule 4).
//
// With an error there are two cases. If reply.Reply is set, reply rejects: it is sent, and then the
// connection is closed. This is so for a request that demands markers, for a revision that l does not take,
// and for peer-to-peer set-up when l takes no kind of RTR; the reply names our revision. Otherwise nothing is
// sent: either the request was none, or l cannot be put on the wire (Code is CodeNone) and the caller may
// mend it or send a Rejection.
//
// The reply echoes the request's revision and whether it is enhanced (RFC 6581 section 10), and its C is the
// outcome. Each depth is the smaller of the request's and l's, as siw does it. Of the kinds of RTR that both
// support the reply names exactly one, so that both ends know the first message; if there is none in common,
// or none was offered, it names one of l's and the active side decides (RFC 6581 section 9.2).
// The reply's private data aliases l's.
func Respond(req Frame, l Local) (reply Frame, a Agreed, err error) {
	if err := l.check(opRespond); err != nil {
		return Frame{}, Agreed{}, err
	}
	if reply, err := refuseRequest(req, l); err != nil {
		return reply, Agreed{}, err
	}
	// RFC 5044 section 7.1.1: C in either frame turns CRCs on, and ours is going to say so.
	a = agree(req.CRC || l.CRC, req, l)
	reply = Frame{
		Reply:       true,
		CRC:         a.CRC,
		Enhanced:    req.Enhanced,
		Revision:    req.Revision,
		PrivateData: l.PrivateData,
	}
	if req.Enhanced {
		reply.Setup = respondSetup(&a, req.Setup, l)
	}
	if err := checkFrame(opRespond, reply); err != nil {
		return Frame{}, Agreed{}, err
	}
	return reply, a, nil
}

// refuseRequest reports why req cannot be accepted, with the rejection that is due, if one is.
func refuseRequest(req Frame, l Local) (Frame, error) {
	own := l.setup()
	switch {
	case req.Reply:
		return Frame{}, refuse(opRespond, "Key", "the peer sent a reply, not a request", "close the connection")
	case req.Revision < Revision1 || req.Revision > l.Revision:
		return reject(req, l.Revision, nil), refuse(opRespond, "Rev",
			fmt.Sprintf("the request is of revision %d, we speak 1 to %d", req.Revision, l.Revision),
			"have the peer use a revision that we speak")
	case req.Markers:
		return reject(req, l.Revision, nil), refuse(opRespond, "M",
			"the peer demands markers, which are not supported", "turn markers off at the peer")
	case req.Enhanced && req.Setup.PeerToPeer && matchRTR(own, own) == RTRNone:
		// RFC 6581 section 9.2: an end that supports enhanced set-up supports at least one kind.
		return reject(req, l.Revision, nil), refuse(opRespond, "A",
			"the peer asks for peer-to-peer set-up and no kind of RTR is taken here",
			"set RTRWrite, RTRRead or RTRSend")
	}
	return Frame{}, nil
}

// respondSetup completes a with the outcome of the set-up data and returns the reply's.
func respondSetup(a *Agreed, req Setup, l Local) Setup {
	s := Setup{IRD: NoNegotiation, ORD: NoNegotiation, PeerToPeer: req.PeerToPeer}
	if req.PeerToPeer {
		a.RTR = respondRTR(req, l)
		s.set(a.RTR)
	}
	// RFC 6581 section 9.1: a depth that the request leaves open keeps its value here, and the reply
	// leaves it open too.
	if req.ORD != NoNegotiation {
		a.IRD = min(l.IRD, req.ORD)
		if a.RTR == RTRRead {
			a.IRD = max(a.IRD, 1) // the same section: room for the RTR itself
		}
		s.IRD = a.IRD
	}
	if req.IRD != NoNegotiation {
		a.ORD = min(l.ORD, req.IRD)
		s.ORD = a.ORD
	}
	return s
}

// respondRTR picks the kind that the reply names: the preferred one in common, or else our preferred one.
func respondRTR(req Setup, l Local) RTR {
	own := l.setup()
	if r := matchRTR(req, own); r != RTRNone {
		return r
	}
	return matchRTR(own, own)
}

// Rejection returns the reply by which the passive side's user refuses req, with up to MaxUserData octets of
// private data, which it aliases. It is a proper answer to any request of either revision; to one of an
// unknown revision it names the nearest that we speak.
func Rejection(req Frame, privateData []byte) (Frame, error) {
	f := reject(req, Revision2, privateData)
	if err := checkFrame(opRespond, f); err != nil {
		return Frame{}, err
	}
	return f, nil
}

// reject builds a rejection of at most the given revision. Its depths are 0, its connection model is the
// request's (RFC 6581 section 9.2), and no RTR will come.
func reject(req Frame, revision uint8, privateData []byte) Frame {
	f := Frame{
		Reply:       true,
		CRC:         req.CRC,
		Reject:      true,
		Revision:    min(max(req.Revision, Revision1), revision),
		PrivateData: privateData,
	}
	if f.Enhanced = req.Enhanced && f.Revision >= Revision2; f.Enhanced && req.Setup.PeerToPeer {
		f.Setup.PeerToPeer = true
		f.Setup.set(rejectRTR(req.Setup))
	}
	return f
}

// rejectRTR picks the kind named in a rejection, where at least one has to be.
func rejectRTR(req Setup) RTR {
	if r := matchRTR(req, req); r != RTRNone {
		return r
	}
	return RTRWrite
}
