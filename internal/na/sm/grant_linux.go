package sm

import (
	"errors"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// grants are what peers have been given of an endpoint's arenas, and over which connections, so that they learn when
// an arena is gone.
type grants struct {
	mu sync.Mutex // also held while sending to a connection of given, which never waits
	// +checklocks:mu
	given map[*net.UnixConn][]uint64
}

var (
	errGranted = errors.New("a second request for an arena that is granted")
	errUnread  = errors.New("the peer does not read what became of arenas")
)

// give answers a request for an arena.
func (g *grants) give(c *net.UnixConn, from *arenas, id uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := from.get(id)
	if a == nil {
		return sendGrant(c, grant{what: grantRefused, id: id}, nil)
	}
	if slices.Contains(g.given[c], id) {
		return errGranted
	}
	if g.given == nil {
		g.given = make(map[*net.UnixConn][]uint64)
	}
	g.given[c] = append(g.given[c], id)
	return sendGrant(c, grant{what: grantGiven, id: id, base: a.base, size: uint64(len(a.mem))}, unix.UnixRights(int(a.file.Fd())))
}

// sendGrant sends a grant, for which the socket has room unless the peer has left hundreds unread. It does not wait for
// room, because the owner of memory that is being freed waits for the lock that the caller holds.
func sendGrant(c *net.UnixConn, g grant, rights []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	b := appendGrant(nil, g)
	var n int
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		n, sendErr = unix.SendmsgN(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err == nil && sendErr == nil && n < len(b) {
		sendErr = errUnread
	}
	return errors.Join(err, sendErr)
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
		if sendGrant(c, grant{what: grantGone, id: id}, nil) != nil {
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
