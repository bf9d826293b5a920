package margo

// lanes are the queues of a pool, one for each peer that has requests waiting, in a ring in which they take turns.
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
	var longest *lane
	for l := ls.first; l != nil; l = l.next {
		if longest == nil || l.n > longest.n {
			longest = l
		}
	}
	if longest == nil || longest.n <= own+1 { // so longest keeps at least one request and its place in the ring
		return nil
	}
	j := longest.tail
	ls.remove(longest, j)
	return j
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
