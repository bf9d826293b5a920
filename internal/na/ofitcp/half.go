package ofitcp

import (
	"container/list"
	"io"
	"net"
	"net/netip"
	"runtime"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
)

// maxHalfOpen is the largest number of half-open connections of an endpoint. The Book of Config may set a lower limit.
const maxHalfOpen = 4096

const (
	// directHandshakes is the number of handshakes of one host above which further ones wait in halves.arrivals.
	directHandshakes = 4
	// handshakeTurn is the number of waiting handshakes, for each processor, that begin before other goroutines run and before the
	// goroutine that begins them pauses for handshakeRest. A handshake with its set-up takes some 40 µs.
	handshakeTurn = 8
	handshakeRest = time.Millisecond
)

// halfOpen is an accepted connection until the endpoint has accepted or refused the connection request of its peer.
type halfOpen struct {
	account *hostquota.Account
	tcp     *net.TCPConn
	from    netip.AddrPort
	at      *list.Element // in the list of its host; nil: it has left
	waits   bool          // it is in the arrivals: its handshake has not begun
	ticket  hostquota.Ticket
	end     io.Closer // the socket; changed with the endpoint's mu held
}

// halves is the table of half-open connections of each host, the oldest first. The endpoint's mu guards them.
type halves struct {
	hosts map[*hostquota.Account]*list.List
	n     int
	// arrivals holds the connections of which the handshake has not begun.
	arrivals hostquota.Queue[*halfOpen]
	starting bool // a goroutine runs startArrivals
}

func newHalves() halves { return halves{hosts: map[*hostquota.Account]*list.List{}} }

// arrive adds h, which is in the table, to the arrivals.
func (s *halves) arrive(h *halfOpen) { h.ticket, h.waits = s.arrivals.Push(h.account, h), true }

// begin takes h out of the arrivals.
func (s *halves) begin(h *halfOpen) {
	if h.waits {
		h.waits = false
		s.arrivals.Remove(h.ticket)
	}
}

// next takes the connection that is to begin its handshake out of the arrivals, and returns nil if there is none.
func (s *halves) next() *halfOpen {
	h, ok := s.arrivals.Next()
	if !ok {
		return nil
	}
	h.waits = false
	return h
}

// add enters h into the table and reports whether it did: it does not if its host or the table has as many connections as it may have.
func (s *halves) add(h *halfOpen) bool {
	if s.n >= maxHalfOpen || h.account.Take(hostquota.Handshakes, 1) != nil {
		return false
	}
	of := s.hosts[h.account]
	if of == nil {
		of = list.New()
		s.hosts[h.account] = of
	}
	h.at = of.PushBack(h)
	s.n++
	return true
}

// remove takes h out of the table, and reports whether h was in it.
func (s *halves) remove(h *halfOpen) bool {
	if h.at == nil {
		return false
	}
	s.begin(h)
	of := s.hosts[h.account]
	of.Remove(h.at)
	if of.Len() == 0 {
		delete(s.hosts, h.account)
	}
	h.at = nil
	s.n--
	h.account.Give(hostquota.Handshakes, 1)
	return true
}

// oldest returns the half-open connection that gives way to a newcomer, nil if there is none. It is the oldest of the
// newcomer's own host if that host has used up its share, and the oldest of the host with most if the limit is used up.
func (s *halves) oldest(newcomer *hostquota.Account) *halfOpen {
	from := newcomer
	if full := newcomer.Book().Limit(hostquota.Handshakes); s.n >= maxHalfOpen || full != 0 && newcomer.Book().Used(hostquota.Handshakes) >= full {
		most := 0
		if of := s.hosts[newcomer]; of != nil {
			most = of.Len()
		}
		for a, of := range s.hosts {
			if of.Len() > most {
				from, most = a, of.Len()
			}
		}
	}
	of := s.hosts[from]
	if of == nil {
		return nil
	}
	return of.Front().Value.(*halfOpen)
}

// enterHalf enters h into the half-open connections. If there are too many, the one that oldest
// returns gives way, because it is more likely to be garbage than the new one. enterHalf returns false if there is no
// room even so.
func (e *Endpoint) enterHalf(h *halfOpen) bool {
	for range 4 {
		if e.takeHalf(h) {
			return true
		}
		if !e.evictHalf(h.account) {
			return false
		}
	}
	return e.takeHalf(h)
}

func (e *Endpoint) takeHalf(h *halfOpen) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.half.add(h)
}

// evictHalf closes a half-open connection to make room for one of the newcomer's.
func (e *Endpoint) evictHalf(newcomer *hostquota.Account) bool {
	e.mu.Lock()
	oldest := e.half.oldest(newcomer)
	if oldest == nil {
		e.mu.Unlock()
		return false
	}
	e.half.remove(oldest)
	end := oldest.end
	e.mu.Unlock()
	_ = end.Close() // its goroutine notices
	e.cfg.Audit.Record(audit.Evicted, causeHandshakes, oldest.account.Host())
	return true
}

// arrive lets the handshake of h, which is in the table, begin when it is its turn, if its host has more than directHandshakes
// handshakes, and otherwise returns false.
func (e *Endpoint) arrive(h *halfOpen) bool {
	if h.account.Used(hostquota.Handshakes) <= directHandshakes {
		return false
	}
	e.mu.Lock()
	start := h.at != nil && !e.half.starting
	if h.at != nil { // it has not been evicted
		e.half.arrive(h)
		e.half.starting = true
	}
	e.mu.Unlock()
	if start && !e.spawn(e.startArrivals) {
		e.startArrivals() // ends the connections, because the endpoint is closed
	}
	return true
}

// startArrivals begins the handshakes that wait, until there are none. The pauses bound the processor time that a host with many
// connections takes, because each needs a goroutine, several system calls and memory before its peer has sent anything useful.
func (e *Endpoint) startArrivals() {
	turn := handshakeTurn * runtime.GOMAXPROCS(0)
	for n := 1; ; n++ {
		e.mu.Lock()
		h := e.half.next()
		e.half.starting = h != nil
		e.mu.Unlock()
		if h == nil {
			return
		}
		e.startHandshake(h)
		if n%turn == 0 {
			e.yield()
			e.pause(handshakeRest)
		}
	}
}

// leaveHalf takes h out of the half-open connections, unless it has left already.
func (e *Endpoint) leaveHalf(h *halfOpen) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.half.remove(h)
}
