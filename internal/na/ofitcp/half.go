package ofitcp

import (
	"container/list"
	"io"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
)

// maxHalfOpen is how many connections may be sending their request where the Book of Config sets no limit.
const maxHalfOpen = 4096

// halfOpen is a connection before or during the decision about its peer's connection request.
type halfOpen struct {
	account *hostquota.Account
	at      *list.Element // in the list of its host; nil: it has left
	end     io.Closer     // the socket; changed with the endpoint's mu held
}

// halves is the table of half-open connections of each host, the oldest first. The endpoint's mu guards them.
type halves struct {
	hosts map[*hostquota.Account]*list.List
	n     int
}

// add counts h, unless there are too many of its host or in all.
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

// remove takes h out and reports whether it was in.
func (s *halves) remove(h *halfOpen) bool {
	if h.at == nil {
		return false
	}
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

// leaveHalf takes h out of the half-open connections, unless it has left already.
func (e *Endpoint) leaveHalf(h *halfOpen) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.half.remove(h)
}
