package xfer

import (
	"math"
	"slices"
)

// choosing is the part of a fastServer that lets the file choose. After the head, the file of the protocol is the answer to the requests: its
// length is known as far as they were sent.
//
//	head       the head comes and is stored
//	choosing   the file is asked for more ranges whenever the last answer was sent, or something was stored since
//	last       all ranges were sent
type choosing struct {
	head   int64
	wishes Wishes
	stored int64 // bytes of the protocol's file that are stored

	ends     ranges // of the requests that were sent
	data     int64  // bytes of data that were asked for, beyond the head
	told     int64  // bytes of head and data that the observer has had
	requests []Range
	removals []Removal
	ended    bool    // the file has no more
	last     bool    // the client knows that
	asking   bool    // the file is asked
	asked    int64   // stored, when the file was asked last
	idle     bool    // the file had nothing when it was asked last
	under    []int64 // for each WANT of which not all has come: the end of its answer in the protocol's file

	notes    uint64 // that were sent
	answered uint64 // of these
	firsts   []int  // for each NOTE that is not answered: the number of its first removal, and
	counts   []int  // how many it has
	sparing  int    // answers that the file does not know yet
	listed   int    // removals that were sent
}

// choose sends the requests of the file, and asks the file for more.
func (s *fastServer) choose(acts []action) []action {
	c := s.choice
	if c == nil || s.state != fastReceiving || c.last || c.stored < c.head {
		return acts
	}
	for len(c.removals) > 0 && len(c.firsts)+c.sparing < mostUnderWay { // so that the worker's queue has room for all
		acts = s.sendRemovals(acts)
	}
	for len(c.removals) == 0 && !c.last && len(c.under) < mostUnderWay && (len(c.requests) > 0 || c.ended) {
		if acts = s.sendWant(acts); s.state != fastReceiving {
			return acts
		}
	}
	if c.last || c.ended || c.asking || len(c.requests)+len(c.removals) > 0 || c.idle && c.stored == c.asked {
		return acts
	}
	c.asking, c.asked = true, c.stored
	return append(acts, action{kind: actWant})
}

// wanted takes the answer of the file.
func (s *fastServer) wanted(ev event, acts []action) []action {
	c := s.choice
	c.asking = false
	if ev.err != nil {
		return s.refuse(acts, ev.err)
	}
	w := ev.want
	c.removals, c.requests, c.ended = w.Removals, w.Ranges, w.Last
	c.idle = len(w.Removals)+len(w.Ranges) == 0
	if c.idle && !w.Last && s.limit == c.stored {
		return s.refuse(acts, failf(CodeOther, "the receiver's file wants nothing, and says that this is not all"))
	}
	return s.choose(acts)
}

// sendRemovals sends the next removals.
func (s *fastServer) sendRemovals(acts []action) []action {
	c := s.choice
	var tail []byte
	n := 0
	for n < len(c.removals) && n < mostRemovals && len(tail)+3+2+MaxName <= maxWantTail {
		tail = appendRemoval(tail, c.removals[n])
		n++
	}
	c.removals = c.removals[n:]
	acts = s.sendNote(acts, tail, n)
	c.listed += n
	return acts
}

// sendNote sends a NOTE with so many removals.
func (s *fastServer) sendNote(acts []action, tail []byte, n int) []action {
	c := s.choice
	c.notes++
	c.firsts, c.counts = append(c.firsts, c.listed), append(c.counts, n)
	return s.send(acts, fastMessage{kind: fastNote, number: c.notes, tail: tail})
}

// sendWant sends the next requests.
func (s *fastServer) sendWant(acts []action) []action {
	c := s.choice
	m := fastMessage{kind: fastWant}
	for len(c.requests) > 0 && len(m.tail)+leastRequest <= maxWantTail {
		r := c.requests[0]
		if !c.ends.fits(r, s.size) {
			return s.refuse(acts, failf(CodeOther, "the receiver's file wants %d bytes at offset %d, which do not follow the others", r.Length, r.Offset))
		}
		if r.crossing() > math.MaxInt64-s.limit {
			return s.refuse(acts, failf(CodeTooLarge, "the answers to the requests have more than %d bytes", int64(math.MaxInt64)))
		}
		m.tail = c.ends.append(m.tail, r)
		m.count++
		s.limit += r.crossing()
		if !r.Sum {
			c.data += r.Length
		}
		c.requests = c.requests[1:]
	}
	if m.count > 0 {
		c.under = append(c.under, s.limit)
	}
	if c.ended && len(c.requests) == 0 {
		m.word, c.last = 1, true
		acts = append(acts, action{kind: actKeep, offset: s.size - c.head - c.data, checked: s.limit == s.size && s.size == c.head+c.data})
	}
	return s.send(acts, m)
}

// advance reports n stored bytes of the protocol's file, without those that can only be sums.
func (s *fastServer) advance(acts []action, n int) []action {
	if c := s.choice; c != nil {
		n = int(min(int64(n), c.head+c.data-c.told))
		c.told += int64(n)
		if n == 0 {
			return acts
		}
	}
	return append(acts, action{kind: actAdvance, n: n})
}

// isAnswer reports whether m answers the next NOTE.
func (c *choosing) isAnswer(m fastMessage) bool {
	return c.answered < c.notes && m.number == c.answered+1 && len(m.tail) == 0 && uint64(m.word)>>c.counts[0] == 0
}

// awaitsVeto reports whether the client has not answered a NOTE with removals, of which it may spare some.
func (c *choosing) awaitsVeto() bool {
	return slices.ContainsFunc(c.counts, func(n int) bool { return n > 0 })
}

// noteAnswered takes the client's answer to a NOTE.
func (s *fastServer) noteAnswered(m fastMessage, acts []action) []action {
	c := s.choice
	if !c.isAnswer(m) {
		return s.refuse(acts, failf(CodeProtocol, "the client answered NOTE %d, which is not the next one, or spares entries that it does not have", m.number))
	}
	c.answered++
	if m.word != 0 {
		c.sparing++
		acts = append(acts, action{kind: actSpare, offset: int64(c.firsts[0]), crc: m.word})
	}
	c.firsts, c.counts = c.firsts[1:], c.counts[1:]
	return s.choose(acts)
}

// working lets the client know that the file is at work.
func (s *fastServer) working(acts []action) []action {
	if c := s.choice; c != nil && s.state != fastAwaitsOpen && c.answered == c.notes {
		return s.sendNote(acts, nil, 0)
	}
	return acts
}

// arrivedWanted forgets the WANTs of which all has come.
func (c *choosing) arrivedWanted(offset int64) {
	n := 0
	for n < len(c.under) && c.under[n] <= offset {
		n++
	}
	c.under = c.under[n:]
}
