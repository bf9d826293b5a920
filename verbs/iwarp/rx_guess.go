package iwarp

import (
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/verbs"
)

// Small messages that come one by one cost two system calls each: for the head,
// and for the rest. When a run of Sends of one small size has been seen, the
// next is guessed to be like them and read by one call, its payload straight into
// the receive that is due. A wrong guess leaves no trace in that receive; the
// bytes that belong elsewhere are copied there.

const (
	guessMax = 256 // bytes of the largest payload that is guessed
	guessRun = 8   // messages of one size before a guess
)

// guess is the guessing of a connection's next FPDU.
type guess struct {
	size   int    // payload of the last Sends
	run    int    // how many of that size came in a row
	place  []byte // where this FPDU's payload is guessed to go
	owner  *mr    // of place, entered from tryGuess to the end of the read
	saved  [guessMax]byte
	unread []byte // bytes read by a wrong guess, to be read again
	back   [moreLen + guessMax + 3 + mpa.CRCLen + headLen]byte
}

// note takes a complete message of queue 0 into account.
func (g *guess) note(size int) {
	if size != g.size || size == 0 || size > guessMax {
		g.size, g.run = size, 0
		return
	}
	g.run++
}

// tryGuess makes the plan for a guessed FPDU, or returns nil. The caller exits
// the guess's owner when it has read.
//
// +checklocks:c.rxMu
func (c *conn) tryGuess() [][]byte {
	r := &c.rx
	g := &r.guess
	if g.run < guessRun || r.placed || r.got > 0 || r.bound || len(r.held) > 0 || len(g.unread) > 0 || c.qp.srq != nil {
		return nil
	}
	s, ok := c.qp.rq.first()
	if !ok || s.n < g.size || !s.m.enter() {
		return nil
	}
	s.n = g.size
	if _, ok := copyGuarded(g.saved[:], s.bytes()); !ok {
		s.m.exit()
		return nil // the reading without a guess finds out
	}
	g.place, g.owner = s.bytes(), s.m
	trailer := mpa.TrailerLen(ddp.UntaggedHeaderLen + g.size)
	return append(r.plan[:0], r.head[:], g.place, r.tail[:trailer], r.next[:])
}

// guessed takes n bytes read by the plan of tryGuess into account.
//
// +checklocks:c.rxMu
func (c *conn) guessed(n int) bool {
	r := &c.rx
	g := &r.guess
	place, region := g.place, g.owner
	g.place, g.owner = nil, nil
	if n <= headLen {
		return c.arrived(n)
	}
	var more [moreLen]byte
	copy(more[:], r.head[headLen:])
	r.got = headLen
	c.headComplete()
	if r.placed && r.bound && isSend(r.seg.Op) && r.seg.Payload == len(place) && len(r.dst) == 1 && &r.dst[0][0] == &place[0] {
		copy(r.head[headLen:], more[:])
		return c.arrived(n - headLen)
	}
	g.run = 0
	trailer := mpa.TrailerLen(ddp.UntaggedHeaderLen + len(place))
	back := append(g.back[:0], more[:]...)
	taken := false
	if region.enter() {
		if back, taken = appendGuarded(back, place); taken {
			_, taken = copyGuarded(place, g.saved[:])
		}
		region.exit()
	}
	if !taken {
		back = append(append(back[:0], more[:]...), g.saved[:len(place)]...) // the owner took the memory back: its bytes are lost, and with them the stream
		c.fail(&failure{status: verbs.StatusLocProtErr, quiet: true, err: verbs.Errorf("receive", verbs.ErrInvalid, "a receive's region was deregistered")})
	}
	back = append(back, r.tail[:trailer]...)
	back = append(back, r.next[:]...)
	g.unread = back[:n-headLen]
	return true
}

// readUnread reads by plan the bytes that a wrong guess has read; false means that the memory in the plan is not there.
//
// +checklocks:c.rxMu
func (c *conn) readUnread(plan [][]byte) (total int, there bool) {
	g := &c.rx.guess
	for _, b := range plan {
		n, ok := copyGuarded(b, g.unread)
		if !ok {
			return total, false
		}
		g.unread = g.unread[n:]
		total += n
	}
	c.rxStats.staged += uint64(total)
	return total, true
}
