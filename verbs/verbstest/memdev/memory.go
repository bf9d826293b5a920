package memdev

import (
	"cinnabar/verbs"
)

// pd is a protection domain.
type pd struct {
	dev     *Device
	closed  bool
	objects int // open regions, queue pairs and shared receive queues
}

// mr is a registered region.
type mr struct {
	pd         *pd
	region     verbs.MRInit
	access     verbs.Access
	lkey, rkey uint32
	revoked    bool // by send with invalidate: the remote key is dead
	closed     bool
}

// RegMR registers a region under two random keys.
func (p *pd) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	const known = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic |
		verbs.RemoteInvalidate | verbs.OptionalAccess
	if bad := access &^ known; bad != 0 {
		return nil, verbs.Unsupported("register memory", "access %v; the device has no such right", bad)
	}
	if access&(verbs.RemoteWrite|verbs.RemoteAtomic) != 0 && access&verbs.LocalWrite == 0 {
		return nil, verbs.Errorf("register memory", verbs.ErrInvalid, "access %v needs local-write too", access)
	}
	if r.HasIOVA {
		r.Addr = r.IOVA // the device knows the memory by r.Bytes alone
	}
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &mr{pd: p, region: r, access: access, lkey: d.newKey()}
	d.regions[m.lkey] = m
	m.rkey = d.newKey()
	d.regions[m.rkey] = m
	p.objects++
	return m, nil
}

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// Rereg refuses.
func (m *mr) Rereg(verbs.MRReinit) (verbs.MRDriver, error) {
	return nil, verbs.Unsupported("re-register memory", "device mem0 cannot change a region; close it and register another one")
}

// IOVA returns MRInit.IOVA if HasIOVA was set, and otherwise the virtual address.
func (m *mr) IOVA() uint64 { return m.region.Addr }

// Close revokes both keys.
func (m *mr) Close() error {
	d := m.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	delete(d.regions, m.lkey)
	delete(d.regions, m.rkey)
	m.pd.objects--
	return nil
}

// Close releases the domain.
func (p *pd) Close() error {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if p.objects > 0 {
		return verbs.Errorf("close protection domain", verbs.ErrBusy, "%d objects of it are open", p.objects)
	}
	if !p.closed {
		p.closed = true
		p.dev.pds--
	}
	return nil
}

// CreateAH refuses: the device has no datagrams.
func (p *pd) CreateAH(verbs.AHAttr) (verbs.AddressHandle, error) {
	return nil, verbs.Unsupported("create address handle", "the device has reliable connections only")
}

// AllocMW refuses: the device has no memory windows.
func (p *pd) AllocMW(t verbs.MWType) (verbs.MemoryWindow, error) {
	return nil, verbs.Unsupported("allocate memory window", "the device has no memory windows of type %d", t)
}

// slice returns the n bytes at addr in m, or nil if they leave the region.
func (m *mr) slice(addr, n uint64) []byte {
	size := uint64(len(m.region.Bytes))
	off := addr - m.region.Addr
	if off > size || n > size-off {
		return nil
	}
	return m.region.Bytes[off : off+n : off+n]
}

// local resolves a scatter or gather list of p; need has the rights that the device must
// have for it. The result is in buf, one of the device's two. The
// caller holds mu.
func (p *pd) local(buf *[][]byte, sgl []verbs.SGE, need verbs.Access) ([][]byte, bool) {
	segs := (*buf)[:0]
	for _, s := range sgl {
		if s.Length == 0 {
			continue
		}
		m := p.dev.regions[s.LKey]
		if m == nil || m.lkey != s.LKey || m.pd != p || m.access&need != need {
			return nil, false
		}
		b := m.slice(s.Addr, uint64(s.Length))
		if b == nil {
			return nil, false
		}
		segs = append(segs, b)
	}
	*buf = segs
	return segs, true
}

// remote resolves the range that a peer asked for. A length of zero needs no key, as the
// standards have it. The caller holds mu.
func (p *pd) remote(r verbs.RemoteAddr, n uint64, need verbs.Access) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	m := p.dev.regions[r.RKey]
	if m == nil || m.rkey != r.RKey || m.revoked || m.pd != p || m.access&need != need {
		return nil, false
	}
	b := m.slice(r.Addr, n)
	return b, b != nil
}

// length sums the entries of a list.
func length(sgl []verbs.SGE) uint64 {
	var n uint64
	for _, s := range sgl {
		n += uint64(s.Length)
	}
	return n
}

// scatter copies src into the segments in order and returns how many bytes fitted.
func scatter(dst [][]byte, src []byte) int {
	n := 0
	for _, d := range dst {
		n += copy(d, src[n:])
	}
	return n
}

// gather copies the segments into dst in order and returns how many bytes fitted.
func gather(dst []byte, src [][]byte) int {
	n := 0
	for _, s := range src {
		n += copy(dst[n:], s)
	}
	return n
}

// flatten joins segments; one segment is returned as it is.
func flatten(segs [][]byte) []byte {
	if len(segs) == 1 {
		return segs[0]
	}
	b := make([]byte, 0, total(segs))
	for _, s := range segs {
		b = append(b, s...)
	}
	return b
}

func total(segs [][]byte) int {
	n := 0
	for _, s := range segs {
		n += len(s)
	}
	return n
}
