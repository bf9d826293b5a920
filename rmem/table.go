package rmem

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"sync"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
)

// graves is how many regions that are gone the server remembers the reason of.
const graves = 4096

// entry is a region at the server.
type entry struct {
	id      uint64
	secret  [16]byte
	size    int64
	session uint64             // of the client that has allocated it
	peer    string             // address of the client that has allocated it, for logs
	account *hostquota.Account // of that host, for as long as its bytes are counted there
	expires time.Time
	timer   *time.Timer // ends the lease, nil without one

	once    bool // others than its owner claim it
	claimed bool // by the client that reads it once, until claimTime ends
	wipe    bool // when it ends
	mem     memory

	mu   sync.RWMutex // held by the server's own accesses for reading, by the end of the region for writing
	gone bool         // guarded by mu
}

// session is a client.
type session struct {
	peer    string
	account *hostquota.Account
	used    int64
	regions map[uint64]*entry
	grace   *time.Timer // ends the session if it is not watched by then; nil if its connection is the session
}

// table has all regions and clients of a server, the quotas that are left for each, and the reason why a region is gone.
// The lock of the lender guards it.
type table struct {
	quota, clientQuota, maxRegionSize int64
	hostQuota                         int64 // 0: hosts have shares

	used     int64
	regions  map[uint64]*entry
	ending   map[*entry]struct{} // taken out of regions; clients may reach their memory until it is closed, so they count
	ended    chan struct{}       // awaitEnds makes it, and release closes it when ending is empty; nil: no awaitEnds waits
	sessions map[uint64]*session
	gone     map[uint64]status
	order    []uint64 // of gone, the oldest first
}

func newTable(cfg Config) table {
	return table{
		quota: cfg.Quota, clientQuota: cfg.ClientQuota, maxRegionSize: cfg.MaxRegionSize, hostQuota: cfg.HostQuota,
		regions: map[uint64]*entry{}, ending: map[*entry]struct{}{}, sessions: map[uint64]*session{}, gone: map[uint64]status{},
	}
}

// newID returns a number that cannot be guessed, and is not 0.
func newID() uint64 {
	var b [8]byte
	for {
		fillRandom(b[:])
		if id := binary.LittleEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// fillRandom fills b with bytes that a peer cannot guess.
func fillRandom(b []byte) { _, _ = rand.Read(b) } // it never fails

// begin begins a session, which is counted for its host.
func (t *table) begin(by *caller) uint64 {
	id := newID()
	t.sessions[id] = &session{peer: by.peer, account: by.account, regions: map[uint64]*entry{}}
	return id
}

// admit reports whether a client may have size more bytes, and then counts them for its host; else it puts the reason into r.
func (t *table) admit(r *response, s *session, size int64) bool {
	switch {
	case s == nil:
		r.Status = uint32(statusSession)
	case size <= 0 || size > t.maxRegionSize:
		r.Status, r.Limit = uint32(statusSize), t.maxRegionSize
	case size > t.quota-t.used:
		r.Status, r.Limit, r.Left = uint32(statusQuota), t.quota, t.quota-t.used
	case size > t.clientQuota-s.used:
		r.Status, r.Limit, r.Left = uint32(statusClientQuota), t.clientQuota, t.clientQuota-s.used
	case t.hostQuota > 0 && size > t.hostQuota-s.account.Used(hostquota.Memory):
		r.Status, r.Limit, r.Left = uint32(statusHostQuota), t.hostQuota, max(0, t.hostQuota-s.account.Used(hostquota.Memory))
	default:
		return t.charge(r, s.account, size)
	}
	return false
}

// charge counts a region of size bytes for its host, or says in r that the host has its share.
func (t *table) charge(r *response, a *hostquota.Account, size int64) bool {
	if a.Take(hostquota.Regions, 1) != nil {
		r.Status, r.Limit = uint32(statusRegions), mostRegions
		return false
	}
	if a.Take(hostquota.Memory, size) != nil {
		a.Give(hostquota.Regions, 1)
		r.Status, r.Limit = uint32(statusHostShare), a.Used(hostquota.Memory)
		return false
	}
	return true
}

// discharge gives back the bytes that charge has counted.
func discharge(a *hostquota.Account, size int64) {
	a.Give(hostquota.Memory, size)
	a.Give(hostquota.Regions, 1)
}

// reserve takes bytes from the quotas for a region that is being made. A lease does not free a client from its quota
// while its session lasts.
func (t *table) reserve(s *session, size int64) { t.used += size; s.used += size }

// refund gives bytes back that reserve took. The session may have ended.
func (t *table) refund(session uint64, size int64) {
	t.used -= size
	if s := t.sessions[session]; s != nil {
		s.used -= size
	}
}

// find returns the region id, or says in r why there is none.
func (t *table) find(r *response, id uint64) *entry {
	e := t.regions[id]
	if e == nil {
		r.Status = uint32(statusUnknown)
		if why, ok := t.gone[id]; ok {
			r.Status = uint32(why)
		}
	}
	return e
}

// own is find for its owner.
func (t *table) own(r *response, q *request) *entry {
	e := t.find(r, q.ID)
	if e != nil && !e.ownedBy(q) {
		r.Status = uint32(statusNotOwner)
		return nil
	}
	return e
}

// ownedBy reports whether a request comes from an owner.
func (e *entry) ownedBy(q *request) bool {
	return subtle.ConstantTimeCompare(e.secret[:], q.Secret[:]) == 1
}

// open is find for requests that use the region's memory without a claim.
func (t *table) open(r *response, q *request) *entry {
	e := t.find(r, q.ID)
	if e != nil && e.once && !e.ownedBy(q) {
		r.Status = uint32(statusOnce)
		return nil
	}
	return e
}

// source is find for the region that is copied from, about which a request says nothing but its number.
func (t *table) source(r *response, q *request) *entry {
	e := t.find(r, q.SourceID)
	if e != nil && e.once {
		r.Status = uint32(statusOnce)
		return nil
	}
	return e
}

// enter adds a region. Its client may have ended.
func (t *table) enter(e *entry) {
	t.used += e.size
	t.regions[e.id] = e
	if s := t.sessions[e.session]; s != nil {
		s.used += e.size
		s.regions[e.id] = e
	}
}

// remove takes e out of regions, remembers why, and reports whether e was there. If so, the caller closes the memory and then calls release: e counts
// until then, because clients may still reach the memory.
func (t *table) remove(e *entry, why status) bool {
	if t.regions[e.id] != e {
		return false
	}
	delete(t.regions, e.id)
	t.ending[e] = struct{}{}
	if s := t.sessions[e.session]; s != nil {
		delete(s.regions, e.id)
	}
	t.gone[e.id] = why
	if t.order = append(t.order, e.id); len(t.order) > graves {
		delete(t.gone, t.order[0])
		t.order = t.order[1:]
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	return true
}

// release gives back the bytes of a region that remove has taken out. It does nothing for a region that is not in ending.
func (t *table) release(e *entry) {
	if _, ok := t.ending[e]; !ok {
		return
	}
	delete(t.ending, e)
	t.refund(e.session, e.size)
	if e.account != nil {
		discharge(e.account, e.size)
		e.account = nil
	}
	if len(t.ending) == 0 && t.ended != nil {
		close(t.ended)
		t.ended = nil
	}
}

// close ends a session and returns the regions that go with it, which are taken out.
func (t *table) close(id uint64) (orphans []*entry) {
	s := t.sessions[id]
	if s == nil {
		return nil
	}
	for _, e := range s.regions {
		if e.timer == nil {
			orphans = append(orphans, e)
		}
	}
	for _, e := range orphans {
		t.remove(e, statusFreed)
	}
	if s.grace != nil {
		s.grace.Stop()
	}
	delete(t.sessions, id)
	s.account.Give(hostquota.Connections, 1)
	return orphans
}

// end closes a region's memory for peers, when no access of the server's own is under way, and wipes it when no peer reaches
// it any more.
func (e *entry) end() error {
	e.leave()
	if !e.wipe {
		return e.mem.Close()
	}
	mem := e.mem.Bytes()
	err := e.mem.Close()
	clear(mem)
	return err
}

// leave has the server's own accesses end.
func (e *entry) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
}

// use runs f on the n bytes from off on, unless the region is gone meanwhile or they are not all in it, which r then says.
func (e *entry) use(r *response, off, n int64, f func([]byte)) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	switch {
	case e.gone:
		r.Status = uint32(statusFreed)
	case off < 0 || n < 0 || off > e.size || n > e.size-off:
		r.Status, r.Limit = uint32(statusRange), e.size
	default:
		f(e.mem.Bytes()[off : off+n])
	}
}

// atomic executes an atomic operation on the 8 bytes at off.
func (e *entry) atomic(r *response, q *request) {
	if q.Offset%8 != 0 {
		r.Status = uint32(statusAligned)
		return
	}
	e.use(r, q.Offset, 8, func(b []byte) {
		var ok bool
		if op(q.Op) == opFetchAdd {
			r.Value, ok = hostmem.Add64(b, q.Value)
		} else {
			r.Value, ok = hostmem.CompareAndSwap64(b, q.Compare, q.Value)
		}
		if !ok {
			r.Status = uint32(statusServer)
		}
	})
}
