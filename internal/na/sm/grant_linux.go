package sm

import (
	"errors"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// grants records the connections over which peers were granted the endpoint's arenas, because these peers must learn when an arena is
// freed.
type grants struct {
	mu sync.Mutex // also held while sending to a connection of given, which never waits
	// +checklocks:mu
	given map[*net.UnixConn][]uint64
}

var (
	errGranted = errors.New("a second request for an arena that is granted")
	errUnread  = errors.New("the peer does not read the messages about arenas")
)

// give answers a request for an arena.
func (g *grants) give(c *net.UnixConn, from *arenas, id uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := from.get(id)
	if a == nil {
		return sendGrant(c, grant{kind: grantRefused, id: id}, nil)
	}
	if slices.Contains(g.given[c], id) {
		return errGranted
	}
	if g.given == nil {
		g.given = make(map[*net.UnixConn][]uint64)
	}
	g.given[c] = append(g.given[c], id)
	return sendGrant(c, grant{kind: grantGiven, id: id, base: a.base, size: uint64(len(a.mem))}, unix.UnixRights(int(a.file.Fd())))
}

// sendGrant sends a grant, for which the socket has room unless the peer has left hundreds unread. It does not wait for room, because
// the goroutine that frees memory waits for the lock that the caller holds.
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

// gone notifies the peers that were granted an arena that it is freed. The caller has removed the arena from the table before, so that
// it is not granted afterwards.
func (g *grants) gone(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c, ids := range g.given {
		if !slices.Contains(ids, id) {
			continue
		}
		g.given[c] = slices.DeleteFunc(ids, func(i uint64) bool { return i == id })
		if sendGrant(c, grant{kind: grantGone, id: id}, nil) != nil {
			_ = c.Close() // by which the peer drops all arenas, and serve ends
		}
	}
}

// drop removes a connection.
func (g *grants) drop(c *net.UnixConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.given, c)
}
