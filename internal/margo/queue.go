package margo

import (
	"fmt"
	"slices"
)

// Kind is the order in which the requests of a pool get their workers.
type Kind uint8

// The kinds of pools. A handler that has begun is never queued again, so what Argobots' pools decide about units that
// have run before does not arise.
const (
	FIFO          Kind = iota // peers take turns (ABT_POOL_FIFO_WAIT)
	Priority                  // by the priority of the RPC, then as FIFO (prio_wait)
	EarliestFirst             // in the order of arrival, whoever they are from (earliest_first)
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
	kind   Kind
	queued int
	turns  uint64   // requests taken out
	levels []*level // none is empty in pools of kind Priority
}

// level has the requests of one priority.
type level struct {
	priority int16
	lanes    lanes
	last     uint64 // the turn that was the level's last, or when it was made
}

// place returns the priority and the lane that a request of peer goes by in this kind of queue.
func (q *queue) place(peer string, j *Job) (int16, string) {
	switch q.kind {
	case Priority:
		return j.priority, peer
	case EarliestFirst:
		return 0, ""
	case FIFO:
	}
	return 0, peer
}

func (q *queue) push(peer string, j *Job) {
	priority, lane := q.place(peer, j)
	i, found := slices.BinarySearchFunc(q.levels, priority, func(l *level, p int16) int { return int(p) - int(l.priority) })
	if !found {
		q.levels = slices.Insert(q.levels, i, &level{priority: priority, lanes: newLanes(), last: q.turns})
	}
	q.levels[i].lanes.push(lane, j)
	q.queued++
}

// pop takes the request out whose turn it is; nil if nothing waits.
func (q *queue) pop() *Job {
	if q.queued == 0 {
		return nil
	}
	q.turns++
	i := 0
	if q.turns%fairTurn == 0 {
		i = q.longest()
	}
	l := q.levels[i]
	l.last = q.turns
	j := l.lanes.pop()
	q.took(i)
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

// evict takes a request out so that there is room for j of peer: the newest of who has most in the queue, of the lowest
// priority. It returns nil if there is no request that is worth less than j.
func (q *queue) evict(peer string, j *Job) *Job {
	priority, lane := q.place(peer, j)
	for i, l := range slices.Backward(q.levels) {
		var victim *Job
		switch {
		case l.priority < priority:
			victim = l.lanes.drop() // nil if all are the process's own
		case l.priority == priority:
			victim = l.lanes.evict(lane)
		}
		if victim != nil {
			q.took(i)
			return victim
		}
	}
	return nil
}
