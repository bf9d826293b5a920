package hostquota

import (
	"runtime"
	"time"

	"cinnabar/internal/invariants"
)

// Readers limits the number of background goroutines of one engine that read connections at the same time, while several hosts have connections,
// because the goroutines of a busy host would otherwise delay those of other hosts. A goroutine of a light host needs no place: see lightUse.
type Readers struct {
	*Turns
	light *lightUse
	book  *Book
	yield func()
}

// NewReaders returns Readers for the hosts with connections in book. Readers calls yield to let other goroutines run, also the readers of connections
// that have just become readable.
func NewReaders(book *Book, yield func()) *Readers {
	return &Readers{Turns: NewTurns(), light: newLightUse(), book: book, yield: yield}
}

// lightUse records the processor time that hosts have used lately. A host is light while it uses less than half of an equal share of
// the processors, except in bursts of up to lightBurst. Goroutines that work for a light host need no place.
type lightUse struct {
	rate float64 // number of processors

	mu invariants.Mutex
	// +checklocks:mu
	hosts map[*Account]*hostUse
	// +checklocks:mu
	swept time.Time
}

// hostUse is the debt of a host at the time at: the processor time that it had used beyond half of its share.
type hostUse struct {
	debt time.Duration
	at   time.Time
}

const (
	// lightBurst is the debt from which on a host is not light. One call with its transfers costs less.
	lightBurst = 2 * time.Millisecond
	// lightRequests is the number of requests in handlers above which a connection needs a place even if its host is light.
	lightRequests = 64
	// lightSweep is the interval at which add deletes the hosts without debt.
	lightSweep = time.Second
)

func newLightUse() *lightUse {
	u := &lightUse{rate: float64(runtime.GOMAXPROCS(0))}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hosts = map[*Account]*hostUse{}
	return u
}

// add adds took to the debt of host a and reports whether the host is light. sharers is the number of hosts that have connections.
func (u *lightUse) add(a *Account, took time.Duration, now time.Time, sharers int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	h := u.hosts[a]
	if h == nil {
		if took == 0 {
			return true
		}
		h = &hostUse{at: now}
		u.hosts[a] = h
	}
	earned := u.rate / float64(2*(sharers+1))
	h.debt = max(0, h.debt-time.Duration(float64(now.Sub(h.at))*earned)) + min(took, turnMost)
	h.at = now
	light := h.debt < lightBurst
	if now.Sub(u.swept) > lightSweep {
		u.swept = now
		for a, h := range u.hosts {
			if float64(h.debt) <= float64(now.Sub(h.at))*earned {
				delete(u.hosts, a)
			}
		}
	}
	return light
}

const (
	// The cost of a turn is at most turnBase, and turnByte for each byte that was read in the turn.
	turnBase = 5 * time.Microsecond
	turnByte = 15 * time.Nanosecond
)

// ReaderTurn is the turn of the background goroutine of one connection: a time in which it reads. The zero ReaderTurn has not begun. Only that
// goroutine calls its methods with it.
type ReaderTurn struct {
	place readPlace
	began time.Time
	read  uint64 // bytes that the connection had read when the turn began
}

// readPlace states whether a background goroutine is in a turn, and whether it has a place in Readers.
type readPlace uint8

const (
	placeNone  readPlace = iota // not in a turn, or the only host needs no turns
	placeLight                  // in a turn without a place, because the host is light
	placeTaken                  // in a turn with a place in Readers
)

// Enter begins a turn to read a connection of host a, unless only one host has connections. It waits until there is a place, if the goroutine needs one. read is the number of
// bytes that the connection has read, and requests the number of its requests in handlers: above lightRequests, the goroutine needs a place even if its
// host is light. The caller must not hold a lock that other readers of the connection wait for, because they would wait for the place, too.
func (r *Readers) Enter(t *ReaderTurn, a *Account, read uint64, requests int64) {
	if t.place != placeNone {
		return
	}
	hosts := r.book.Holders(Connections)
	if hosts <= 1 {
		return
	}
	t.began, t.read = time.Now(), read
	if r.light.add(a, 0, t.began, hosts) && requests <= lightRequests {
		t.place = placeLight
		return
	}
	r.Turns.Enter(a)
	t.place, t.began = placeTaken, time.Now()
}

// cost returns the time since the turn began, or the time that its bytes need at most if that is less, because the operating
// system may have run another process meanwhile.
func (t *ReaderTurn) cost(now time.Time, read uint64) time.Duration {
	return min(now.Sub(t.began), turnBase+time.Duration(read-t.read)*turnByte)
}

// Next ends a turn and begins the next one, as Leave and Enter do. Between the two turns other goroutines run, unless the host is light, because
// they would delay the light host by much more than it delays them.
func (r *Readers) Next(t *ReaderTurn, a *Account, read uint64, requests int64) {
	if t.place == placeLight {
		now := time.Now()
		took := t.cost(now, read)
		t.began, t.read = now, read
		if r.light.add(a, took, now, r.book.Holders(Connections)) && requests <= lightRequests {
			return
		}
		t.place = placeNone
	}
	if t.place != placeTaken || !r.Crowded() {
		r.yield()
	}
	r.Leave(t, a, read)
	r.Enter(t, a, read, requests)
}

// Leave ends a turn, if it has begun. The goroutine calls it before it waits or runs a task.
func (r *Readers) Leave(t *ReaderTurn, a *Account, read uint64) {
	if t.place == placeNone {
		return
	}
	now := time.Now()
	took := t.cost(now, read)
	r.light.add(a, took, now, r.book.Holders(Connections))
	if t.place == placeTaken {
		r.Turns.Leave(a, took, r.yield)
	}
	t.place = placeNone
}

// Burden charges host a with processor time until the host is not light even at the time until. It is for tests.
func (r *Readers) Burden(a *Account, until time.Time) {
	for r.light.add(a, turnMost, until, 2) {
		continue
	}
}
