package sched

// lanes are the queues of a level. Hosts take turns, and among the requests of a host its peers do. In a level in order of
// arrival the host with the request that came first has the turn, and peers are not distinguished.
type lanes struct {
	inOrder bool
	queued  int    // in all lanes
	clock   uint64 // the last turn that was given
	byHost  map[*tenant]*hostLanes
	turns   heap[*hostLanes] // by turn
	sizes   heap[*hostLanes] // the host with most requests first; without the process's own
	skipped []*hostLanes     // kept for reuse
	passed  []*lane          // likewise
	spare   []*hostLanes     // empty ones, to be used again
}

// maxSpareLanes is how many empty hostLanes a level keeps.
const maxSpareLanes = 64

// hostLanes are the queues of one host: a lane for each peer that has requests waiting.
type hostLanes struct {
	of     *tenant
	n      int    // requests
	turn   uint64 // the host with the least is next
	atTurn int    // place in lanes.turns
	atSize int    // place in lanes.sizes

	clock  uint64
	byPeer map[string]*lane
	turns  heap[*lane]
	sizes  heap[*lane] // the peer with most requests first
}

// lane is the queue of one peer.
type lane struct {
	peer           string
	n              int
	head, tail     *Job
	turn           uint64
	atTurn, atSize int
}

func newLanes(inOrder bool) lanes {
	return lanes{
		inOrder: inOrder, byHost: map[*tenant]*hostLanes{},
		turns: heap[*hostLanes]{
			before: func(a, b *hostLanes) bool { return a.turn < b.turn }, place: func(h *hostLanes) *int { return &h.atTurn },
		},
		sizes: heap[*hostLanes]{
			before: func(a, b *hostLanes) bool { return a.n > b.n }, place: func(h *hostLanes) *int { return &h.atSize },
		},
	}
}

// hostLanes returns an empty hostLanes.
func (ls *lanes) hostLanes() *hostLanes {
	if n := len(ls.spare); n > 0 {
		h := ls.spare[n-1]
		ls.spare = ls.spare[:n-1]
		return h
	}
	return &hostLanes{
		atTurn: -1, atSize: -1, byPeer: map[string]*lane{},
		turns: heap[*lane]{before: func(a, b *lane) bool { return a.turn < b.turn }, place: func(l *lane) *int { return &l.atTurn }},
		sizes: heap[*lane]{before: func(a, b *lane) bool { return a.n > b.n }, place: func(l *lane) *int { return &l.atSize }},
	}
}

// push appends j to its peer's lane. arrival grows with each request of the queue.
func (ls *lanes) push(t *tenant, peer string, j *Job, arrival uint64) {
	j.arrival = arrival
	h := ls.byHost[t]
	if h == nil {
		h = ls.hostLanes()
		h.of = t
		ls.byHost[t] = h
		h.turn = arrival
		if !ls.inOrder {
			h.turn = ls.next()
		}
		ls.turns.push(h)
		if !t.host.IsZero() {
			ls.sizes.push(h)
		}
	}
	if ls.inOrder {
		peer = ""
	}
	h.push(peer, j)
	ls.sizes.fix(h)
	ls.queued++
	t.queued++
}

// next returns a new turn, which is later than all turns before it.
func (ls *lanes) next() uint64 {
	ls.clock++
	return ls.clock
}

func (h *hostLanes) push(peer string, j *Job) {
	l := h.byPeer[peer]
	if l == nil {
		h.clock++
		l = &lane{peer: peer, turn: h.clock, atTurn: -1, atSize: -1}
		h.byPeer[peer] = l
		h.turns.push(l)
		h.sizes.push(l)
	}
	j.prev, j.next = l.tail, nil
	if l.tail == nil {
		l.head = j
	} else {
		l.tail.next = j
	}
	l.tail = j
	l.n++
	h.n++
	h.sizes.fix(l)
}

// pop removes and returns the next request among those of hosts and peers that may have another handler; nil if there is
// none. may is asked about a host, and then about the next request of each of its peers. Few hosts and peers are passed
// over, because each of them holds a part of the pool's handlers.
func (ls *lanes) pop(may func(*tenant, *Job) bool) *Job {
	var j *Job
	for h := ls.turns.first(); h != nil; h = ls.turns.first() {
		l := ls.laneOf(h, may)
		if l == nil {
			ls.turns.remove(h)
			ls.skipped = append(ls.skipped, h)
			continue
		}
		j = l.head
		h.clock++
		l.turn = h.clock
		h.turns.fix(l)
		if !ls.inOrder {
			h.turn = ls.next()
		}
		ls.remove(h, l, j)
		break
	}
	for i, h := range ls.skipped {
		ls.turns.push(h) // its turn is as before
		ls.skipped[i] = nil
	}
	ls.skipped = ls.skipped[:0]
	return j
}

// laneOf returns the next lane of h among those of peers that may have another handler; nil if there is none.
func (ls *lanes) laneOf(h *hostLanes, may func(*tenant, *Job) bool) *lane {
	if !may(h.of, nil) {
		return nil
	}
	l := h.turns.first()
	for l != nil && !may(h.of, l.head) {
		h.turns.remove(l)
		ls.passed = append(ls.passed, l)
		l = h.turns.first()
	}
	for i, l := range ls.passed {
		h.turns.push(l) // its turn is as before
		ls.passed[i] = nil
	}
	ls.passed = ls.passed[:0]
	return l
}

// evict takes out the newest request of the host that has most, so that there is room for one of peer of t, or of the
// peer that has most if that host is t itself. It returns nil if t, or peer, itself would have as many.
func (ls *lanes) evict(t *tenant, peer string) *Job {
	most := ls.sizes.first()
	if most == nil {
		return nil
	}
	if most.of != t {
		own := 0
		if h := ls.byHost[t]; h != nil {
			own = h.n
		}
		if most.n > own+1 {
			return ls.newest(most)
		}
		return nil
	}
	if ls.inOrder {
		return nil
	}
	own := 0
	if l := most.byPeer[peer]; l != nil {
		own = l.n
	}
	if most.sizes.first().n > own+1 {
		return ls.newest(most)
	}
	return nil
}

// drop takes out the newest request of the host that has most, of its peer that has most; nil if there is none.
func (ls *lanes) drop() *Job {
	most := ls.sizes.first()
	if most == nil {
		return nil
	}
	return ls.newest(most)
}

// newest takes out the newest request of the peer of h that has most.
func (ls *lanes) newest(h *hostLanes) *Job {
	l := h.sizes.first()
	j := l.tail
	ls.remove(h, l, j)
	return j
}

// remove takes j out of l, and l and h if they are empty then.
func (ls *lanes) remove(h *hostLanes, l *lane, j *Job) {
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
	h.n--
	ls.queued--
	h.of.queued--
	if l.n == 0 {
		h.turns.remove(l)
		h.sizes.remove(l)
		delete(h.byPeer, l.peer)
	} else {
		h.sizes.fix(l)
	}
	if h.n == 0 {
		ls.turns.remove(h)
		ls.sizes.remove(h)
		delete(ls.byHost, h.of)
		h.of = nil
		if len(ls.spare) < maxSpareLanes {
			ls.spare = append(ls.spare, h)
		}
		return
	}
	if ls.inOrder {
		h.turn = h.turns.first().head.arrival
	}
	ls.turns.fix(h)
	ls.sizes.fix(h)
}

// some calls f for at most *room requests, the first ones of each peer, and subtracts their number from *room.
func (ls *lanes) some(room *int, f func(*Job)) {
	for _, h := range ls.turns.items {
		for _, l := range h.turns.items {
			for j := l.head; j != nil && *room > 0; j = j.next {
				f(j)
				*room--
			}
			if *room == 0 {
				return
			}
		}
	}
}
