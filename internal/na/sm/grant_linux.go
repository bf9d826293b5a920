package sm

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// grants are what peers have been given of an endpoint's arenas, and over which connections, so that they learn when
// an arena is gone.
type grants struct {
	mu sync.Mutex // also held while writing to a connection of given
	// +checklocks:mu
	given map[*net.UnixConn][]uint64
}

// grantWait is how long a peer may take for what it is told, which the socket holds for it in thousands.
const grantWait = time.Second

var errGranted = errors.New("a second request for an arena that is granted")

// give answers a request for an arena.
func (g *grants) give(c *net.UnixConn, from *arenas, id uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := from.get(id)
	if a == nil {
		return tell(c, grant{what: grantRefused, id: id}, nil)
	}
	if slices.Contains(g.given[c], id) {
		return errGranted
	}
	if g.given == nil {
		g.given = make(map[*net.UnixConn][]uint64)
	}
	g.given[c] = append(g.given[c], id)
	return tell(c, grant{what: grantGiven, id: id, base: a.base, size: uint64(len(a.mem))}, unix.UnixRights(int(a.file.Fd())))
}

func tell(c *net.UnixConn, g grant, rights []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(grantWait)); err != nil {
		return err
	}
	_, _, err := c.WriteMsgUnix(appendGrant(nil, g), rights, nil)
	return err
}

// gone tells all who have been given an arena that it is no more. It comes after the arena has left the table, so that
// nobody is given it afterwards.
func (g *grants) gone(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c, ids := range g.given {
		if !slices.Contains(ids, id) {
			continue
		}
		g.given[c] = slices.DeleteFunc(ids, func(i uint64) bool { return i == id })
		if tell(c, grant{what: grantGone, id: id}, nil) != nil {
			_ = c.Close() // which tells the peer that all are gone, and ends serve
		}
	}
}

// drop forgets a connection.
func (g *grants) drop(c *net.UnixConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.given, c)
}
