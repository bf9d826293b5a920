package ofitcp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
)

// memory is registered memory. Peers' accesses bracket their use of it with enter and exit, from the moment that a
// request is found right until its last byte has moved.
type memory struct {
	ep     *Endpoint
	buf    []byte // nil if the memory is lent
	key    uint64
	access na.Access

	users rundown.Guard // accesses under way; closed by Revoke and Withdraw

	revoke  sync.Once
	revoked time.Time // set by revoke

	size uint64 // bytes; equal to the length of buf, except in lent memory and in kept memory without read access, which have no buf
	lent *lentPieces
	late lateMemory
}

// enter begins an access; false means that the memory is closed.
func (m *memory) enter() bool { return m.users.Acquire() }

func (m *memory) exit() { m.users.Release() }

// contains reports whether n bytes at off lie within the memory.
func (m *memory) contains(off, n uint64) bool {
	return off <= m.size && n <= m.size-off
}

// Revoke implements [na.Memory].
func (m *memory) Revoke() {
	m.revoke.Do(func() {
		m.revoked = time.Now()
		m.users.Close()
		m.ep.mem.drop(m)
		m.ep.late.forget(m)
	})
}

// Idle implements [na.IdleMemory].
func (m *memory) Idle() bool { return m.users.Users() == 0 }

// Close implements [na.Memory].
func (m *memory) Close() {
	m.Revoke()
	if !m.Idle() {
		m.drain()
	}
}

// drainStall is for how long no byte may move, in either direction, on the connection of a peer that has an access to
// closed memory under way. After [na.DrainTime] the connection is closed in any case.
const drainStall = time.Second

var errStalled = errors.New("the peer was reading or writing memory that is closed, and did not go on")

// drain waits until no access is under way, and cuts the connections of peers that do not let theirs end.
func (m *memory) drain() {
	timer := time.NewTimer(0) // at once: other memory may have been waited for since this one was revoked
	defer timer.Stop()
	seen := make(map[*conn]uint64)
	for {
		select {
		case <-m.users.Idle():
			return
		case <-timer.C:
		}
		left := na.DrainTime - time.Since(m.revoked)
		for _, c := range m.ep.connections() {
			if !c.usesMemory(m) {
				continue
			}
			moved := c.moved()
			if last, ok := seen[c]; ok && last == moved || left <= 0 {
				c.fail(na.Unreachable, errStalled)
			}
			seen[c] = moved
		}
		timer.Reset(drainStall)
		if 0 < left && left < drainStall {
			timer.Reset(left)
		}
	}
}

// Sizes and offsets of a memory handle (NA OFI's na_ofi_mem_desc), all integers little endian.
//
//	 0  key        8
//	 8  length     8
//	16  pieces     8   k
//	24  access     1
//	25  zero       7
//	32  k times: base address 8, length 8
const (
	handleHead  = 32
	handlePiece = 16
	handleLen   = handleHead + handlePiece
	// handleBase is the base address in our handles. Peers never use it, since addresses of the tcp provider are
	// offsets; zero would mean no memory, and the true one is of no use to a peer.
	handleBase = 0x1000
)

// AppendHandle implements [na.Memory].
func (m *memory) AppendHandle(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.key)
	b = binary.LittleEndian.AppendUint64(b, m.size)
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = append(b, byte(m.access), 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, handleBase)
	return binary.LittleEndian.AppendUint64(b, m.size)
}

// remote is a peer's memory, by its handle.
type remote struct {
	key    uint64
	size   uint64
	access na.Access
}

func (r *remote) Len() uint64 { return r.size }

// ParseHandle implements [na.Endpoint].
func (e *Endpoint) ParseHandle(b []byte) (na.RemoteMemory, error) {
	r, err := parseHandle(b)
	if err != nil {
		return nil, &na.Error{Kind: na.Protocol, Op: "read memory handle", Err: err}
	}
	return &r, nil
}

func parseHandle(b []byte) (remote, error) {
	if len(b) < handleLen {
		return remote{}, fmt.Errorf("%d bytes; a handle has %d at least", len(b), handleLen)
	}
	r := remote{
		key:    binary.LittleEndian.Uint64(b),
		size:   binary.LittleEndian.Uint64(b[8:]),
		access: na.Access(b[24]),
	}
	pieces := binary.LittleEndian.Uint64(b[16:])
	if pieces == 0 || pieces > uint64(len(b)) || uint64(len(b)) != handleHead+pieces*handlePiece {
		return remote{}, fmt.Errorf("%d pieces in a handle of %d bytes", pieces, len(b))
	}
	if r.access < na.ReadOnly || r.access > na.ReadWrite {
		return remote{}, fmt.Errorf("access %d; it is 1, 2 or 3", r.access)
	}
	var sum uint64
	for p := b[handleHead:]; len(p) > 0; p = p[handlePiece:] {
		n := binary.LittleEndian.Uint64(p[8:])
		if sum+n < sum {
			return remote{}, fmt.Errorf("pieces longer than memory can be")
		}
		sum += n
	}
	if sum != r.size {
		return remote{}, fmt.Errorf("pieces of %d bytes in memory of %d", sum, r.size)
	}
	return r, nil
}

// Register implements [na.Endpoint].
func (e *Endpoint) Register(mem []byte, access na.Access) (na.Memory, error) {
	if len(mem) == 0 {
		return nil, &na.Error{Kind: na.Invalid, Op: "register memory", Err: fmt.Errorf("0 bytes; there must be 1 at least")}
	}
	if access < na.ReadOnly || access > na.ReadWrite {
		return nil, &na.Error{Kind: na.Invalid, Op: "register memory", Err: fmt.Errorf("access %d; it is read, write or both", access)}
	}
	m := &memory{ep: e, buf: mem, access: access, size: uint64(len(mem))}
	if !e.mem.add(m) {
		return nil, &na.Error{Kind: na.Closed, Op: "register memory"}
	}
	return m, nil
}

// memoryTable finds registered memory by key. It holds the memory, so that the collector keeps all memory that peers may reach.
type memoryTable struct {
	shards [memoryShards]memoryShard
}

const memoryShards = 16 // a power of two

type memoryShard struct {
	mu invariants.RWMutex
	// +checklocks:mu
	byKey map[uint64]*memory
	// +checklocks:mu
	closed bool
}

// shard is where key belongs: keys are random, so any bits of them will do.
func (t *memoryTable) shard(key uint64) *memoryShard { return &t.shards[key%memoryShards] }

// add gives m a random key that no other memory has: peers must not guess it, nor reach memory by the key of closed
// memory. False: the endpoint is closed.
func (t *memoryTable) add(m *memory) bool {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		m.key = binary.LittleEndian.Uint64(b[:])
		if m.key == 0 {
			continue
		}
		if added, closed := t.shard(m.key).add(m); added || closed {
			return added
		}
	}
}

func (s *memoryShard) add(m *memory) (added, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, true
	}
	if s.byKey[m.key] != nil {
		return false, false
	}
	if s.byKey == nil {
		s.byKey = make(map[uint64]*memory)
	}
	s.byKey[m.key] = m
	return true, false
}

func (t *memoryTable) drop(m *memory) {
	s := t.shard(m.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[m.key] == m {
		delete(s.byKey, m.key)
	}
}

// close drops all memory.
func (t *memoryTable) close() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.closed = true
		clear(s.byKey)
		s.mu.Unlock()
	}
}

// find returns the memory under key, nil if there is none.
func (t *memoryTable) find(key uint64) *memory {
	s := t.shard(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKey[key]
}

// replace puts k into the table under the key that it shares with m. It returns false if the endpoint is closed.
func (t *memoryTable) replace(m, k *memory) bool {
	s := t.shard(m.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.byKey[k.key] = k
	return true
}

// enter begins an access by the peer of c to the range v. The error says which check failed: key, rights, range or lifetime.
func (t *memoryTable) enter(c *conn, v iov, access na.Access) (*memory, error) {
	m := t.find(v.key)
	switch {
	case m == nil || m.late.kept && !c.ep.late.serves(c, m):
		if err := c.ep.late.explain(c, v.key, m); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("key %#x stands for no memory", v.key)
	case m.access&access == 0:
		return nil, fmt.Errorf("access %d to memory registered with access %d", access, m.access)
	case !m.contains(v.addr, v.len):
		return nil, fmt.Errorf("%d bytes at offset %d of memory of %d bytes", v.len, v.addr, m.size)
	case !m.enter():
		if k := t.find(v.key); k != nil && k != m { // Withdraw has replaced m since find
			return t.enter(c, v, access)
		}
		return nil, fmt.Errorf("key %#x stands for memory that was closed", v.key)
	}
	return m, nil
}

// access is a piece of registered memory that a peer reads or writes.
type access struct {
	m   *memory
	off uint64
	n   uint64
}

// bytes returns the piece. The memory is not lent.
func (a access) bytes() []byte { return a.m.buf[a.off : a.off+a.n : a.off+a.n] }
