package sched

import (
	"fmt"
	"slices"
)

// Kind is the order in which the requests of a pool get their workers.
type Kind uint8

// The kinds of pools. A handler that has begun is never queued again, so the rules of Argobots' pools for units that
// have run before have no counterpart.
const (
	FIFO          Kind = iota // hosts take turns, and then the peers of each (ABT_POOL_FIFO_WAIT)
	Priority                  // by the priority of the RPC, then as FIFO (prio_wait)
	EarliestFirst             // in the order of arrival (earliest_first), as far as hosts may have another handler
)

func (k Kind) String() string {
	switch k {
	case FIFO:
		return "fifo_wait"
	case Priority:
		return "prio_wait"
	case EarliestFirst:
		return "earliest_first"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// fairTurn is how often, in a pool of kind Priority, it is the turn of the priority that has waited longest for one.
const fairTurn = 8

// queue holds the requests of a pool that wait for a worker: lanes for each priority, the highest first. Pools of other
// kinds have one level, which they keep.
type queue struct {
	kind     Kind
	queued   int
	turns    uint64   // requests taken out
	arrivals uint64   // requests put in
	levels   []*level // none is empty in pools of kind Priority
}

// level has the requests of one priority.
type level struct {
	priority int16
	lanes    lanes
	last     uint64 // the turn that was the level's last, or when it was made
}

// priorityOf returns the priority that j goes by in this kind of queue.
func (q *queue) priorityOf(j *Job) int16 {
	if q.kind == Priority {
		return j.priority
	}
	return 0
}

func (q *queue) push(t *tenant, peer string, j *Job) {
	priority := q.priorityOf(j)
	i, found := slices.BinarySearchFunc(q.levels, priority, func(l *level, p int16) int { return int(p) - int(l.priority) })
	if !found {
		q.levels = slices.Insert(q.levels, i, &level{priority: priority, lanes: newLanes(q.kind == EarliestFirst), last: q.turns})
	}
	q.arrivals++
	q.levels[i].lanes.push(t, peer, j, q.arrivals)
	q.queued++
}

// pop removes and returns the next request among those of hosts that may have another handler; nil if there is none.
func (q *queue) pop(may func(*tenant, *Job) bool) *Job {
	if q.queued == 0 {
		return nil
	}
	if (q.turns+1)%fairTurn == 0 {
		if j := q.popFrom(q.longest(), may); j != nil {
			return j
		}
	}
	for i := range q.levels {
		if j := q.popFrom(i, may); j != nil {
			return j
		}
	}
	return nil
}

// popFrom is pop for one level.
func (q *queue) popFrom(i int, may func(*tenant, *Job) bool) *Job {
	l := q.levels[i]
	j := l.lanes.pop(may)
	if j != nil {
		q.turns++
		l.last = q.turns
		q.took(i)
	}
	return j
}

// longest returns the index of the level that has waited longest for a turn.
func (q *queue) longest() int {
	least := 0
	for i, l := range q.levels {
		if l.last < q.levels[least].last {
			least = i
		}
	}
	return least
}

// took counts a request that has left a level.
func (q *queue) took(i int) {
	q.queued--
	if q.kind == Priority && q.levels[i].lanes.queued == 0 {
		q.levels = slices.Delete(q.levels, i, i+1)
	}
}

// evict takes a request out so that there is room for j of peer of t: the newest of the host that has most in the queue,
// of the lowest priority. It returns nil if there is no request that is worth less than j. A host that has its share of the
// queue already gets no room by its priority, only from a host that has more.
func (q *queue) evict(t *tenant, peer string, j *Job, hasShare bool) *Job {
	priority := q.priorityOf(j)
	for i, l := range slices.Backward(q.levels) {
		var victim *Job
		switch {
		case l.priority < priority && hasShare:
			if most := l.lanes.sizes.first(); most != nil && (most.of == t || most.of.queued > t.queued+1) {
				victim = l.lanes.drop()
			}
		case l.priority < priority:
			victim = l.lanes.drop() // nil if all are the process's own
		case l.priority == priority:
			victim = l.lanes.evict(t, peer)
		}
		if victim != nil {
			q.took(i)
			return victim
		}
	}
	return nil
}
