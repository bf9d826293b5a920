package rmem

import (
	"errors"
	"sync"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

const lent = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite // atomics are requests, and no peer may invalidate a key

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
		return errEnded
	}
	if !own {
		if o.others >= mostOpen || o.account.Take(hostquota.Regions, 1) != nil {
			return errOpened
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
	buf    []byte
	mapped bool // buf is not of the Go heap

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

// newLentMemory makes memory. Memory that is to be wiped is of the heap, because it is wiped when all keys are gone.
func newLentMemory(size int64, wipe bool) (memory, error) {
	m := &lentMemory{mapped: size >= mapped && !wipe}
	if !m.mapped {
		m.buf = heapMemory(size)
		return m, nil
	}
	var err error
	m.buf, err = hostmem.Map(int(size))
	return m, err
}

func (m *lentMemory) Bytes() []byte { return m.buf }

// describe registers the memory for the caller's connection, unless it is, and puts address and key into r.
func (m *lentMemory) describe(r *response, by *caller) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errEnded
	}
	k, ok := m.keys[by.conn]
	if !ok {
		k.own = m.keys == nil // the connection that allocates memory is the first
		if err := by.conn.enter(m, k.own); err != nil {
			return err
		}
		var err error
		if k.mr, err = by.conn.pd.RegMR(m.buf, lent); err != nil {
			by.conn.leave(m, k.own)
			return err
		}
		if m.keys == nil {
			m.keys = map[*opener]key{}
		}
		m.keys[by.conn] = k
	}
	to := k.mr.Remote()
	r.Addr, r.Key = to.Addr, to.RKey
	return nil
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

// Close ends the registrations for all connections, and then gives up the memory.
func (m *lentMemory) Close() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for o, k := range m.keys {
		err = errors.Join(err, k.mr.Close())
		o.leave(m, k.own) // not before, because the end of the connection waits for registrations that it still has
	}
	clear(m.keys)
	if m.mapped {
		err = errors.Join(err, hostmem.Unmap(m.buf))
	}
	return err
}
