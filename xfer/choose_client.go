package xfer

import "math"

// chosen is the part of a fastClient that obeys the choice of a receiver. After the head, the file of the protocol is the answer to
// the requests, without gaps: the client's size grows with each WANT.
//
//	head          the head crosses
//	asking        WANT comes, and its ranges are read and cross, while more WANTs come
//	last look     all ranges are read: the source must end where it ended before
type chosen struct {
	*Choice
	source int64   // bytes of the source
	ends   ranges  // of the requests
	queue  []Range // not asked of the source, or not all of it
	under  []int64 // for each WANT that was not read whole: the end of its answer in the file
	data   int64   // bytes of data that the receiver wants, beyond the head
	told   int64   // bytes of head and data that the observer has had
	last   bool    // there are no more WANTs
	looked bool    // the end of the source was read, or is
	notes  uint64
	listed int // removals
	paths  removalPaths
}

// newChosen begins to obey.
func newChosen(c *Choice, size int64) *chosen {
	return &chosen{Choice: c, source: size, ends: ranges{c.Head, c.Head}}
}

// mostSummed bounds the bytes that are hashed for one chunk, unless a single range has more, because a read that takes longer than the timeout of a side would end the
// transfer, and each later one at the same place.
const mostSummed = 4 << 20

// next takes the parts of the next chunk out of the queue, for the action that reads them, and returns their length in the chunk.
func (s *chosen) next(read *action, chunk int) (n int) {
	if r := &s.queue[0]; !r.Sum && (r.Length >= int64(chunk) || len(s.queue) == 1) { // without a list, which would be allocated
		n = int(min(r.Length, int64(chunk)))
		read.offset = r.Offset
		s.take(n)
		return n
	}
	summed := int64(0)
	for len(s.queue) > 0 && n < chunk {
		r := &s.queue[0]
		if r.Sum {
			if chunk-n < SumLen || summed > 0 && summed+r.Length > mostSummed {
				break
			}
			summed += r.Length
			read.parts, n = append(read.parts, *r), n+SumLen
			s.queue = s.queue[1:]
			continue
		}
		k := min(r.Length, int64(chunk-n))
		read.parts, n = append(read.parts, Range{Offset: r.Offset, Length: k}), n+int(k)
		s.take(int(k))
	}
	return n
}

// take takes n bytes of the first range out of the queue.
func (s *chosen) take(n int) {
	r := &s.queue[0]
	r.Offset, r.Length = r.Offset+int64(n), r.Length-int64(n)
	if r.Length == 0 {
		s.queue = s.queue[1:]
	}
}

// passed forgets the WANTs of which all was read, up to an offset in the file.
func (s *chosen) passed(offset int64) {
	n := 0
	for n < len(s.under) && s.under[n] <= offset {
		n++
	}
	s.under = s.under[n:]
}

// want takes a message WANT.
func (c *fastClient) want(m fastMessage, acts []action) []action {
	s := c.choice
	last := m.word&1 != 0
	if s.last || len(s.under) == mostUnderWay || m.count == 0 && !last {
		return c.abort(acts, failf(CodeProtocol, "the server sent WANT with %d ranges, %d messages before it are not answered, and after the last one: %t", m.count, len(s.under), s.last))
	}
	b := m.tail
	for range m.count {
		r, n := s.ends.parse(b, s.source)
		if n < 0 || r.crossing() > math.MaxInt64-c.size {
			return c.abort(acts, failf(CodeProtocol, "the server wants a range that does not follow the others, or is not in the file"))
		}
		b = b[n:]
		c.size += r.crossing()
		if !r.Sum {
			s.data += r.Length
		}
		s.queue = append(s.queue, r)
	}
	if len(b) > 0 {
		return c.abort(acts, failf(CodeProtocol, "the server sent WANT with %d bytes behind its %d ranges", len(b), m.count))
	}
	s.last = last
	if m.count > 0 {
		s.under = append(s.under, c.size)
	}
	switch {
	case last && s.Wishes&WishDryRun != 0:
		return c.end(c.send(acts, failedMessage(failf(CodeCanceled, "the sender has asked for the list of removals only")), none), nil)
	case last:
		acts = append(acts, action{kind: actKeep, offset: s.source - s.Head - s.data, checked: c.size == s.source && s.source == s.Head+s.data})
	}
	return c.wrapUp(c.fill(acts))
}

// note answers a message NOTE.
func (c *fastClient) note(m fastMessage, acts []action) []action {
	s := c.choice
	if m.number != s.notes+1 || len(m.tail) > 0 && s.Wishes&WishDelete == 0 {
		return c.abort(acts, failf(CodeProtocol, "the server sent NOTE %d with %d bytes, after NOTE %d", m.number, len(m.tail), s.notes))
	}
	s.notes++
	var spared uint32
	b := m.tail
	for i := 0; len(b) > 0; i++ {
		r, n := parseRemoval(b)
		if s.listed++; s.listed > mostListed {
			return c.abort(acts, failf(CodeTooLarge, "the server lists more than %d removals", mostListed))
		}
		if n < 0 || i == mostRemovals {
			return c.abort(acts, failf(CodeProtocol, "the server sent NOTE with a removal that makes no sense"))
		}
		b = b[n:]
		path := s.paths.path(&r)
		if path == "" {
			return c.abort(acts, failf(CodeProtocol, "the server sent NOTE with a removal of depth %d and no directory before it", r.Depth))
		}
		if !r.Stays && s.Remove != nil && !s.Remove(path, r.Dir) {
			spared |= 1 << i
		}
	}
	return c.send(acts, fastMessage{kind: fastNote, number: s.notes, word: spared}, none)
}

// advance reports n stored bytes of the protocol's file, without those that can only be sums.
func (c *fastClient) advance(acts []action, n int64) []action {
	c.stored += n
	if s := c.choice; s != nil {
		n = min(n, s.Head+s.data-s.told)
		s.told += n
	}
	if n == 0 {
		return acts
	}
	return append(acts, action{kind: actAdvance, n: int(n)})
}

// look reads the end of the source when all ranges are read, because the source must not have grown.
func (c *fastClient) look(acts []action) []action {
	if s := c.choice; s.last && len(s.queue) == 0 && c.offset == c.size && !s.looked {
		s.looked = true
		c.reading++
		return append(acts, action{kind: actRead, offset: s.source})
	}
	return acts
}
