package ofitcp

import (
	"time"

	"cinnabar/internal/progress"
	"cinnabar/internal/sockio"
)

// spinner is one wait for bytes of a connection, in which a goroutine reads again after a read without bytes instead of parking.
type spinner struct {
	progress.Spin
	c      *conn
	rounds int       // vain reads
	end    time.Time // a driver's: when driveTime is over; set when the clock is first looked at
}

// spinner returns a wait on c. driver says that the goroutine waits for the result of its own call; it spins before others.
func (c *conn) spinner(driver bool) spinner { return spinner{Spin: c.spins.Spin(driver), c: c} }

// pollRounds is the number of vain reads after which a spinning goroutine looks at the other connections of the process. It is high, because
// such a look delays the messages of its own connection by some microseconds, and because an idle thread of Go's scheduler notices the other
// connections anyway. lateRounds is the number after which a driver looks at the clock, because a spin may be longer than driveTime.
const (
	pollRounds = 512
	lateRounds = 64
)

// begin reports whether the goroutine may spin. It may not while the connection is in a crowd, because the poller
// watches the connection then.
func (s *spinner) begin() bool {
	if !sockio.Direct || shared.crowded(s.c) || !s.Begin() {
		return false
	}
	s.c.sock.Stand(false)
	return true
}

// vain reports whether the goroutine reads once more. The goroutine calls it after a read without bytes. within says that a part of a
// message has come.
func (s *spinner) vain(within bool) bool {
	s.Within = within
	if !sockio.Direct || shared.crowded(s.c) || !s.Vain() {
		return false
	}
	if s.rounds == 0 {
		s.c.sock.Stand(false)
	}
	s.rounds++
	if s.rounds%pollRounds == 0 && s.c.ep.poller.Poll() > 0 {
		s.c.ep.cfg.Progress.HandOver()
	}
	return true
}

// late reports whether a driver has to come back to its caller.
func (s *spinner) late(now time.Time) bool {
	if s.end.IsZero() {
		s.end = now.Add(driveTime)
	}
	return now.After(s.end)
}
