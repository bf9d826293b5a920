package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/rundown"
	"cinnabar/verbs"
)

// pd is a protection domain. It has an identity and a count, nothing more.
type pd struct {
	dev      *device
	children atomic.Int64 // regions, queue pairs, shared receive queues
	closed   atomic.Bool
}

func (p *pd) Close() error {
	if n := p.children.Load(); n > 0 {
		return verbs.Errorf("close protection domain", verbs.ErrBusy, "%d objects of it are open; close them first", n)
	}
	if p.closed.CompareAndSwap(false, true) {
		p.dev.pds.Add(-1)
	}
	return nil
}

func (p *pd) CreateAH(verbs.AHAttr) (verbs.AddressHandle, error) {
	return nil, verbs.Unsupported("create address handle", "iWARP has no unreliable datagrams")
}

// supportedAccess are the rights that regions of this device know.
const supportedAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic | verbs.RemoteInvalidate | verbs.MWBind

// mr is a registered region.
//
// The device holds it only while it copies: enter and exit bracket each
// system call and each access. Close waits for those, so that it returns when
// the memory is the caller's again; requests that still name the region fail
// when their turn comes.
type mr struct {
	pd     *pd
	buf    []byte
	base   uint64 // address of the first byte in work requests of this side: iova if the program has chosen it, else the virtual address
	iova   uint64 // address of the first byte in work requests of peers
	access verbs.Access
	lkey   uint32
	rkey   uint32

	users   rundown.Guard // closed by Close
	writers atomic.Int64  // Writes and atomics of peers that are being stored; see exposure
	locked  bool

	windows int // memory windows that are bound to the region; guarded by keyTable.mu

	// Of the part of a region to which a window is bound, see mw.
	window *mw
	parent *mr   // the region
	conn   *conn // only the peer of this connection may use it
	// unbound is true from the end of the binding on, when the device may still access the memory; guarded by keyTable.mu.
	unbound bool
}

// enter begins a use of the memory; false means that the region is closed.
func (m *mr) enter() bool { return m.users.Acquire() }

func (m *mr) exit() { m.users.Release() }

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }
func (m *mr) IOVA() uint64 { return m.iova }

func (m *mr) Close() error {
	const op = "close memory region"
	switch windows, open := m.pd.dev.keys.drop(m); {
	case windows > 0:
		return verbs.Errorf(op, verbs.ErrBusy, "%d memory windows are bound to it; invalidate or close them first", windows)
	case !open:
		return verbs.Errorf(op, verbs.ErrClosed, "closed before")
	}
	<-m.users.Idle()
	if m.access&peerAccess != 0 {
		exposed.drop(m)
	}
	if m.locked {
		_ = hostmem.Unlock(m.buf) // a failure leaves the pages locked until they are unmapped, which does no harm
	}
	m.pd.children.Add(-1)
	return nil
}

// pageMask covers the part of an address within its page.
const pageMask = 4096 - 1

// randomIOVA returns a random address for a region at the virtual address addr, because true addresses would reveal to peers
// where this process has its memory, and those of neighbouring regions could be derived from each other. The part within
// the page stays, so that alignment does. The range does not wrap around, for any size of the region.
func randomIOVA(addr uint64) uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return binary.BigEndian.Uint64(b[:])>>1&^pageMask | addr&pageMask
}

// local translates the range of n bytes at the address addr in a work request of this side, n > 0, into an offset.
func (m *mr) local(addr, n uint64) (int, bool) { return m.offset(addr, m.base, n) }

// remote does so for an address that a peer names.
func (m *mr) remote(addr, n uint64) (int, bool) { return m.offset(addr, m.iova, n) }

func (m *mr) offset(addr, base, n uint64) (int, bool) {
	off := addr - base
	if addr < base || off > uint64(len(m.buf)) || n > uint64(len(m.buf))-off {
		return 0, false
	}
	return int(off), true
}

// seg is a resolved piece of a gather or scatter list.
type seg struct {
	m   *mr
	off int
	n   int
}

func (s seg) bytes() []byte { return s.m.buf[s.off : s.off+s.n : s.off+s.n] }

func (p *pd) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	const op = "register memory"
	if p.closed.Load() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the protection domain is closed")
	}
	if bad := access &^ (supportedAccess | verbs.OptionalAccess); bad != 0 {
		return nil, verbs.Unsupported(op, "access flags %s; this device has %s", bad, supportedAccess)
	}
	if access&peerWrites != 0 && access&verbs.LocalWrite == 0 {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "%s needs local-write as well (ibv_reg_mr(3))", access)
	}
	if len(r.Bytes) == 0 {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "0 bytes; a region has at least 1")
	}
	m := &mr{pd: p, buf: r.Bytes, base: r.Addr, access: access}
	if m.iova = r.IOVA; r.HasIOVA {
		m.base = r.IOVA
	} else {
		m.iova = randomIOVA(r.Addr)
	}
	if p.dev.cfg.LockMemory {
		if err := lockRegion(r.Bytes); err != nil {
			return nil, err
		}
		m.locked = true
	}
	p.children.Add(1)
	if access&peerAccess != 0 {
		exposed.add(m)
	}
	p.dev.keys.add(m)
	return m, nil
}

// Rereg registers the region anew, with other keys, and closes the old one. Work requests that name the old one fail when their turn comes.
func (m *mr) Rereg(c verbs.MRReinit) (verbs.MRDriver, error) {
	p, r, access := m.pd, verbs.MRInit{Bytes: m.buf, Addr: hostmem.Addr(m.buf), IOVA: m.iova, HasIOVA: m.base == m.iova}, m.access
	if c.PD != nil {
		own, ok := c.PD.(*pd)
		if !ok || own.dev != p.dev {
			return nil, verbs.Errorf("re-register memory", verbs.ErrInvalid, "the protection domain belongs to another device; give one of the region's device")
		}
		p = own
	}
	if c.Memory != nil {
		r = *c.Memory
	}
	if c.ChangeAccess {
		access = c.Access
	}
	next, err := p.RegMR(r, access)
	if err != nil {
		return nil, err
	}
	if err := m.Close(); err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// lockRegion locks the pages of b. Its error has the limit that was reached.
func lockRegion(b []byte) error {
	const op = "register memory"
	err := hostmem.Lock(b)
	if err == nil {
		return nil
	}
	if !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EAGAIN) {
		return &verbs.Error{Op: op, Detail: fmt.Sprintf("lock %d bytes", len(b)), Err: err}
	}
	limit := "unknown"
	if cur, _, ok := hostmem.LockLimit(); ok {
		limit = fmt.Sprintf("%d bytes", cur)
	}
	return &verbs.Error{Op: op, Kind: verbs.ErrLockLimit, Err: err, Detail: fmt.Sprintf(
		"%d bytes cannot be locked, the limit of this process is %s; raise it with `ulimit -l unlimited` in the shell, "+
			"`memlock` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, or --ulimit memlock=-1 for a container, "+
			"or register less at a time", len(b), limit)}
}

// keyTable finds regions by their keys. Local and remote keys are separate random
// numbers, because a peer that knows one must not learn the other.
type keyTable struct {
	mu sync.RWMutex
	// +checklocks:mu
	local map[uint32]*mr
	// +checklocks:mu
	remote map[uint32]*mr
	// the open windows by the key that RKey returns, which is in remote too while the window is bound by it
	// +checklocks:mu
	windows map[uint32]*mw
	// ring of the latest revoked remote keys
	// +checklocks:mu
	revoked [rememberedKeys]revokedKey
	// index in revoked of the next revoked key
	// +checklocks:mu
	next int
}

// revokedKey is a remote key that was valid in a protection domain until a moment ago.
type revokedKey struct {
	key uint32
	pd  *pd
	at  time.Time
}

const (
	// rememberedKeys is the number of revoked keys that a device remembers. Older ones count as guesses.
	rememberedKeys = 256
	// revokedLately is the time after its revocation in which an access by a key does not count as a guess.
	revokedLately = 5 * time.Second
)

// revokeLocked revokes the remote key of m.
//
// +checklocks:t.mu
func (t *keyTable) revokeLocked(m *mr) {
	if t.remote[m.rkey] != m {
		return
	}
	delete(t.remote, m.rkey)
	if m.access&remoteAccess == 0 {
		return // the program cannot have given such a key to a peer
	}
	t.revoked[t.next] = revokedKey{key: m.rkey, pd: m.pd, at: time.Now()}
	t.next = (t.next + 1) % rememberedKeys
}

// remoteAccess are the rights by which peers use a region.
const remoteAccess = verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic | verbs.RemoteInvalidate

// wasRevoked reports whether key was the key of a region in p until revokedLately ago. An access by such a key is refused but does
// not count as a guess, because the peer may have sent it before the owner's Close.
func (t *keyTable) wasRevoked(p *pd, key uint32, now time.Time) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range t.revoked {
		if r := &t.revoked[i]; r.pd == p && r.key == key && now.Sub(r.at) < revokedLately {
			return true
		}
	}
	return false
}

func (t *keyTable) init() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.local, t.remote, t.windows = make(map[uint32]*mr), make(map[uint32]*mr), make(map[uint32]*mw)
}

func (t *keyTable) add(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.lkey = freeKey(t.local)
	t.local[m.lkey] = m
	m.rkey = t.freeRemoteLocked()
	t.remote[m.rkey] = m
}

// freeRemoteLocked returns a remote key that neither a region nor a window has.
//
// +checklocks:t.mu
func (t *keyTable) freeRemoteLocked() uint32 {
	for {
		k := freeKey(t.remote)
		if _, taken := t.windows[k]; !taken {
			return k
		}
	}
}

// freeKey returns a random key that is not in use; 0 is never one.
func freeKey(used map[uint32]*mr) uint32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		k := binary.BigEndian.Uint32(b[:])
		if _, taken := used[k]; k != 0 && !taken {
			return k
		}
	}
}

// drop closes m and revokes its keys, unless windows are bound to it, whose number it returns. open is false if m was closed before.
func (t *keyTable) drop(m *mr) (windows int, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.windows > 0 || !m.users.Close() {
		return m.windows, false
	}
	delete(t.local, m.lkey)
	t.revokeLocked(m)
	return 0, true
}

func (t *keyTable) byLocal(key uint32) *mr {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.local[key]
}

func (t *keyTable) byRemote(key uint32) *mr {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.remote[key]
}

// invalidate revokes a remote key on behalf of the peer of c (Send with Invalidate): that of a window that is bound on c, or that of a region
// with the right RemoteInvalidate. The device cannot know which connections share the key of a region, so the region's owner
// decides. The local key stays.
func (t *keyTable) invalidate(c *conn, key uint32) protection {
	m, bad := t.invalidateKey(c, key)
	if bad == protectionOK && m.window != nil {
		t.drain(m)
	}
	return bad
}

// invalidateKey is invalidate, but the caller drains m if it is the part of a window.
func (t *keyTable) invalidateKey(c *conn, key uint32) (*mr, protection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.remote[key]
	switch {
	case m == nil:
		return nil, badSTag
	case m.pd != c.qp.pd || m.conn != nil && m.conn != c:
		return nil, badDomain
	case m.window != nil:
		t.unbindLocked(m)
		return m, protectionOK
	case m.access&verbs.RemoteInvalidate == 0:
		return nil, badRight
	}
	t.revokeLocked(m)
	return m, protectionOK
}

// count returns the number of registered regions.
func (t *keyTable) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.local)
}

// resolve translates a gather list (write false) or scatter list (write true)
// into segs, which has the capacity for it, and adds up its length. Empty entries are dropped.
func (p *pd) resolve(segs []seg, sgl []verbs.SGE, write bool) ([]seg, uint64, verbs.WCStatus) {
	var total uint64
	status := verbs.StatusSuccess
	for i := range sgl {
		e := &sgl[i]
		total += uint64(e.Length)
		if e.Length == 0 {
			continue
		}
		m := p.dev.keys.byLocal(e.LKey)
		if m == nil || m.pd != p || write && m.access&verbs.LocalWrite == 0 {
			status = verbs.StatusLocProtErr
			continue
		}
		off, ok := m.local(e.Addr, uint64(e.Length))
		if !ok {
			status = verbs.StatusLocProtErr
			continue
		}
		segs = append(segs, seg{m: m, off: off, n: int(e.Length)})
	}
	return segs, total, status
}

// advanceSegs returns the rest of segs after n bytes. It changes segs' entries.
func advanceSegs(segs []seg, n int) []seg {
	for n > 0 && len(segs) > 0 {
		if n < segs[0].n {
			segs[0].off += n
			segs[0].n -= n
			return segs
		}
		n -= segs[0].n
		segs = segs[1:]
	}
	return segs
}

// Registered memory can be a mapped file that is truncated meanwhile, or that lies on a full file system: an access to it is
// then a fault. A system call that accesses it fails. The accesses of this package are guarded, so that only the connection
// fails, because a peer chooses their time.
//
// A guarded function begins with
//
//	defer unguard(debug.SetPanicOnFault(true), &ok)
//
// and reports by ok, which it sets to true, whether the memory was there.

// unguard is deferred by a guarded function. old is the setting to go back to.
func unguard(old bool, ok *bool) {
	debug.SetPanicOnFault(old)
	if v := recover(); v != nil {
		if _, fault := v.(interface{ Addr() uintptr }); !fault {
			panic(v)
		}
		*ok = false
	}
}

// copyGuarded copies between registered memory and other; false means that the memory is not there.
func copyGuarded(dst, src []byte) (n int, ok bool) {
	ok = true
	defer unguard(debug.SetPanicOnFault(true), &ok)
	return copy(dst, src), true
}

// appendGuarded appends a copy of registered memory; false means that the memory is not there.
func appendGuarded(dst, src []byte) (out []byte, ok bool) {
	out = dst
	defer unguard(debug.SetPanicOnFault(true), &ok)
	return append(dst, src...), true
}
