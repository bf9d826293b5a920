package verbsrmem

import (
	"errors"
	"sync"

	"cinnabar/internal/hostquota"
	"cinnabar/rmem/internal/link"
	"cinnabar/verbs"
)

const lent = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite // atomics are requests, and no peer may invalidate a key

// mostOpen is how many regions of other clients one connection may have open.
const mostOpen = 1 << 12

// opener is a connection over verbs, with the keys that it has been given. Each connection has a protection domain of its own,
// in which a region is registered when the connection allocates or opens it, so that a key is worth nothing on another
// connection.
type opener struct {
	pd      *verbs.PD
	account *hostquota.Account

	mu sync.Mutex
	// +checklocks:mu
	open map[*lentMemory]struct{}
	// +checklocks:mu
	others int // of open, regions that other connections have allocated
	// +checklocks:mu
	gone bool
}

func newOpener(pd *verbs.PD, a *hostquota.Account) *opener {
	o := &opener{pd: pd, account: a}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open = map[*lentMemory]struct{}{}
	return o
}

// enter counts a further region, or returns the cause for refusing it.
func (o *opener) enter(m *lentMemory, own bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return link.ErrEnded
	}
	if !own {
		if o.others >= mostOpen || o.account.Take(hostquota.Regions, 1) != nil {
			return link.ErrTooManyOpen
		}
		o.others++
	}
	o.open[m] = struct{}{}
	return nil
}

// leave takes back the region that enter has counted.
func (o *opener) leave(m *lentMemory, own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, m)
	if !own {
		o.others--
		o.account.Give(hostquota.Regions, 1)
	}
}

// close ends all registrations of the connection.
func (o *opener) close() (err error) {
	o.mu.Lock()
	o.gone = true
	open := make([]*lentMemory, 0, len(o.open))
	for m := range o.open {
		open = append(open, m)
	}
	o.mu.Unlock()
	for _, m := range open {
		err = errors.Join(err, m.forget(o))
	}
	return err
}

// lentMemory is a region's memory over verbs, registered once for each connection that has it open.
type lentMemory struct {
	buf []byte

	mu sync.Mutex // before the lock of an opener
	// +checklocks:mu
	keys map[*opener]key
	// +checklocks:mu
	closed bool
}

// key is a registration of a region for one connection.
type key struct {
	mr  *verbs.MR
	own bool // the connection has allocated the region
}

// Locate registers the memory for conn, which is an *opener, unless it is registered there already.
func (m *lentMemory) Locate(conn any) (addr uint64, rkey uint32, err error) {
	by := conn.(*opener)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, 0, link.ErrEnded
	}
	k, ok := m.keys[by]
	if !ok {
		k.own = m.keys == nil // the connection that allocates memory is the first
		if err := by.enter(m, k.own); err != nil {
			return 0, 0, err
		}
		if k.mr, err = by.pd.RegMR(m.buf, lent); err != nil {
			by.leave(m, k.own)
			return 0, 0, err
		}
		if m.keys == nil {
			m.keys = map[*opener]key{}
		}
		m.keys[by] = k
	}
	to := k.mr.Remote()
	return to.Addr, to.RKey, nil
}

// forget ends the registration for a connection. It returns when the peer does not reach the memory any more, also if
// Close is ending the registration.
func (m *lentMemory) forget(o *opener) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.keys[o]
	if !ok {
		return nil
	}
	delete(m.keys, o)
	err := k.mr.Close()
	o.leave(m, k.own)
	return err
}

// Close ends the registrations for all connections.
func (m *lentMemory) Close() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for o, k := range m.keys {
		err = errors.Join(err, k.mr.Close())
		o.leave(m, k.own) // not before, because the end of the connection waits for registrations that it still has
	}
	clear(m.keys)
	return err
}
