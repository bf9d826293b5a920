package ofitcp

import (
	"net/netip"

	"cinnabar/internal/na/ofiaddr"
)

// linkState is the state between an endpoint and a peer when a connection request of that peer arrives.
type linkState uint8

const (
	linkIdle      linkState = iota // nothing, or a lost connection
	linkDialing                    // an own attempt that is not decided
	linkNacked                     // an own attempt was refused and will be repeated
	linkAccepting                  // an earlier request is being answered
	linkUp                         // a connection
)

func (s linkState) String() string {
	return [...]string{"idle", "dialing", "nacked", "accepting", "up"}[s]
}

// verdict is the decision about a connection request.
type verdict uint8

const (
	verdictAccept  verdict = iota // it becomes the connection; an own attempt, or an old connection, is given up
	verdictNack                   // it is refused
	verdictReflect                // it is our own: it becomes the receiving end beside the dialing one
	verdictTaken                  // another process has a connection as this peer, which may be gone without a word
	verdictBeside                 // the same process has connected to another address of this host: both connections stay
)

func (v verdict) String() string {
	return [...]string{"accept", "nack", "reflect", "taken", "beside"}[v]
}

// collide decides about a request of peer that reaches the endpoint self in state s (xnet_process_connreq). same says
// that the request comes from the process that the existing connection is with.
//
// Of two attempts that cross, the one of the higher address survives. Beside an existing connection, the same process asks
// again only because its request was on its way before. Another process is the peer after a restart, or an impostor, or
// has the peer's address behind address translation: see [Endpoint.assignPeer].
func collide(s linkState, self, peer netip.AddrPort, same bool) verdict {
	switch s {
	case linkDialing:
		switch c := ofiaddr.Compare(peer, self); {
		case c < 0:
			return verdictNack
		case c == 0:
			return verdictReflect
		}
	case linkAccepting, linkUp:
		if peer == self {
			return verdictReflect
		}
		if same {
			return verdictNack
		}
		return verdictTaken
	case linkIdle, linkNacked:
	}
	return verdictAccept
}
