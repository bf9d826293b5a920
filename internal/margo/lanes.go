package margo

// lanes are the queues of a level, one for each peer that has requests waiting, in a ring in which they take turns.
type lanes struct {
	queued int // in all lanes
	byPeer map[string]*lane
	first  *lane // whose turn it is
	last   *lane
}

// lane is the queue of one peer.
type lane struct {
	peer       string
	n          int
	head, tail *Job
	next       *lane // whose turn is after this one's
}

func newLanes() lanes { return lanes{byPeer: map[string]*lane{}} }

// push appends j to its peer's lane.
func (ls *lanes) push(peer string, j *Job) {
	l := ls.byPeer[peer]
	if l == nil {
		l = &lane{peer: peer}
		ls.byPeer[peer] = l
		ls.append(l)
	}
	j.prev, j.next = l.tail, nil
	if l.tail == nil {
		l.head = j
	} else {
		l.tail.next = j
	}
	l.tail = j
	l.n++
	ls.queued++
}

// append gives l the last turn.
func (ls *lanes) append(l *lane) {
	l.next = nil
	if ls.last == nil {
		ls.first = l
	} else {
		ls.last.next = l
	}
	ls.last = l
}

// pop takes the oldest request of the peer whose turn it is; nil if nothing waits.
func (ls *lanes) pop() *Job {
	l := ls.first
	if l == nil {
		return nil
	}
	ls.first = l.next
	if ls.first == nil {
		ls.last = nil
	}
	j := l.head
	ls.remove(l, j)
	if l.n > 0 {
		ls.append(l)
	} else {
		delete(ls.byPeer, l.peer)
	}
	return j
}

// evict takes the newest request of the peer that has most in the queue, so that there is room for one of peer. It
// returns nil if peer itself would have as many.
func (ls *lanes) evict(peer string) *Job {
	own := 0
	if l := ls.byPeer[peer]; l != nil {
		own = l.n
	}
	longest, _ := ls.longest()
	if longest == nil || longest.n <= own+1 { // so longest keeps at least one request and its place in the ring
		return nil
	}
	j := longest.tail
	ls.remove(longest, j)
	return j
}

// drop takes the newest request of the peer that has most in the queue; nil if there is none.
func (ls *lanes) drop() *Job {
	l, before := ls.longest()
	if l == nil {
		return nil
	}
	j := l.tail
	ls.remove(l, j)
	if l.n == 0 {
		ls.unlink(l, before)
	}
	return j
}

// longest returns the lane that has most requests and may lose one, and the lane before it in the ring.
func (ls *lanes) longest() (longest, before *lane) {
	var last *lane
	for l := ls.first; l != nil; l = l.next {
		if l.peer != Own && (longest == nil || l.n > longest.n) {
			longest, before = l, last
		}
		last = l
	}
	return longest, before
}

// unlink takes an empty lane out of the ring; before is the one before it, nil if it is the first.
func (ls *lanes) unlink(l, before *lane) {
	if before == nil {
		ls.first = l.next
	} else {
		before.next = l.next
	}
	if ls.last == l {
		ls.last = before
	}
	delete(ls.byPeer, l.peer)
}

// remove takes j out of l.
func (ls *lanes) remove(l *lane, j *Job) {
	if j.prev == nil {
		l.head = j.next
	} else {
		j.prev.next = j.next
	}
	if j.next == nil {
		l.tail = j.prev
	} else {
		j.next.prev = j.prev
	}
	j.prev, j.next = nil, nil
	l.n--
	ls.queued--
}
