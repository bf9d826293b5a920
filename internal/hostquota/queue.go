package hostquota

import "container/list"

// Queue holds values of hosts until their turn. The hosts take turns, so a value waits for at most one value of each other host before each value
// of its own host. The zero Queue is empty. Its methods are not safe for concurrent use.
type Queue[T any] struct {
	turns  list.List // of *lane[T]; the host of the first one is next
	byHost map[*Account]*list.Element
	n      int // values
}

// lane holds the values of one host, the oldest first. A host has a lane only while it has values.
type lane[T any] struct {
	account *Account
	values  list.List // of T
}

// Ticket is the place of a value in a [Queue], for [Queue.Remove].
type Ticket struct {
	account *Account
	at      *list.Element
}

// Len returns the number of values, and Hosts the number of hosts that have any.
func (q *Queue[T]) Len() int   { return q.n }
func (q *Queue[T]) Hosts() int { return q.turns.Len() }

// Push adds v as the last value of the host of a.
func (q *Queue[T]) Push(a *Account, v T) Ticket {
	turn := q.byHost[a]
	if turn == nil {
		if q.byHost == nil {
			q.byHost = make(map[*Account]*list.Element)
		}
		turn = q.turns.PushBack(&lane[T]{account: a})
		q.byHost[a] = turn
	}
	q.n++
	return Ticket{a, turn.Value.(*lane[T]).values.PushBack(v)}
}

// Remove removes a value that Next has not returned. It is called at most once for each ticket.
func (q *Queue[T]) Remove(t Ticket) {
	turn := q.byHost[t.account]
	l := turn.Value.(*lane[T])
	l.values.Remove(t.at)
	q.took(l, turn)
}

// took counts a value that was removed from l, and ends the turns of a host without values.
func (q *Queue[T]) took(l *lane[T], turn *list.Element) {
	q.n--
	if l.values.Len() == 0 {
		q.turns.Remove(turn)
		delete(q.byHost, l.account)
	}
}

// Next removes and returns the oldest value of the next host. It returns false if the queue is empty.
func (q *Queue[T]) Next() (v T, ok bool) {
	turn := q.turns.Front()
	if turn == nil {
		return v, false
	}
	q.turns.MoveToBack(turn)
	l := turn.Value.(*lane[T])
	v = l.values.Remove(l.values.Front()).(T)
	q.took(l, turn)
	return v, true
}
