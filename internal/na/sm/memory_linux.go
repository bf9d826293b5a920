package sm

import (
	"fmt"
	"iter"
	"math/bits"
	"runtime/debug"
	"slices"
	"sync"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// memory is registered memory. It implements [na.Memory].
//
// Peers reach it by its addresses, through the kernel and without this process: registering it changes nothing for
// them, nor does Close. What they may do to it stands in its handle, for them to respect. Registering is what keeps
// Go's memory in its place, and what peers that cannot use the kernel are served from.
type memory struct {
	table  *memories
	segs   [][]byte
	access na.Access
	arena  uint64 // that all of it lies in; 0: in none
	pins   []*hostmem.Pin

	mu   sync.RWMutex // held for reading while a peer is served
	open bool         // +checklocks:mu
}

// AppendHandle implements [na.Memory].
func (m *memory) AppendHandle(b []byte) []byte {
	segs := make([]segment, len(m.segs))
	for i, s := range m.segs {
		segs[i] = segment{hostmem.Addr(s), uint64(len(s))}
	}
	return appendHandle(b, segs, m.access, m.arena)
}

// Close implements [na.Memory] as far as the kernel lets it: peers' system calls that are under way, or come later with
// the old handle, are not stopped. They move memory as long as it is mapped, whatever it is used for by then; so its
// owner closes it when the peers have said that they are done, as a program in C does.
func (m *memory) Close() {
	m.Revoke()
	m.revoke()
}

// Revoke implements [na.Memory]: the memory is served to no peer any more.
func (m *memory) Revoke() { m.table.drop(m) }

// revoke ends serving the memory.
func (m *memory) revoke() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
	for _, p := range m.pins {
		p.Unpin()
	}
}

// part returns the n bytes at addr, nil if no segment of m has all of them.
func (m *memory) part(addr, n uint64) []byte {
	for _, s := range m.segs {
		base, size := hostmem.Addr(s), uint64(len(s))
		if addr >= base && addr-base <= size && n <= size-(addr-base) {
			return s[addr-base:][:n:n]
		}
	}
	return nil
}

// memories are the registered memory of an endpoint. It holds them, so that the collector does not take what peers may
// reach.
type memories struct {
	mu sync.RWMutex
	// +checklocks:mu
	live map[*memory]struct{}
	// +checklocks:mu
	index addressIndex
	// +checklocks:mu
	closed bool

	arenas arenas
	relay  relay
}

// register makes memory reachable. It keeps segs.
func (t *memories) register(segs [][]byte, access na.Access) (*memory, error) {
	const what = "register memory"
	if access < na.ReadOnly || access > na.ReadWrite {
		return nil, &na.Error{Kind: na.Invalid, Op: what, Err: fmt.Errorf("access %d; it is read, write or both", access)}
	}
	m := &memory{table: t, segs: segs, access: access, arena: t.arenas.of(segs), open: true}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &na.Error{Kind: na.Closed, Op: what}
	}
	m.pins = make([]*hostmem.Pin, len(segs))
	for i, s := range segs {
		m.pins[i] = hostmem.PinSlice(s)
	}
	if t.live == nil {
		t.live = make(map[*memory]struct{})
	}
	t.live[m] = struct{}{}
	t.index.add(m)
	return m, nil
}

// freeArena gives an arena back and tells peers that have it.
func (t *memories) freeArena(a *arena) error {
	t.arenas.remove(a)
	t.relay.grants.gone(a.id) // who is being given it has got it then
	return a.close()
}

func (t *memories) drop(m *memory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.live[m]; ok {
		delete(t.live, m)
		t.index.remove(m)
	}
}

// allows returns an error unless the n bytes at addr are registered and may be accessed in that way.
func (t *memories) allows(addr, n uint64, access na.Access) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for m := range t.index.at(addr) {
		if m.access&access != 0 && m.part(addr, n) != nil {
			return nil
		}
	}
	return fmt.Errorf("%d bytes at %#x of this process are not registered for access %d", n, addr, access)
}

// use calls f with the n bytes at addr, if they are registered and may be accessed in that way. They stay registered
// until f returns. The same addresses may be registered several times. Only peers without the kernel's help come here.
func (t *memories) use(addr, n uint64, access na.Access, f func([]byte)) error {
	var failed error = fmt.Errorf("%d bytes at %#x are not registered", n, addr)
	for _, m := range t.at(addr, n) {
		if m.access&access == 0 {
			failed = fmt.Errorf("memory at %#x is registered with access %d, which does not allow it", addr, m.access)
			continue
		}
		if served, err := m.serve(addr, n, f); served || err != nil {
			return err
		}
	}
	return failed
}

// at returns what has the n bytes at addr.
func (t *memories) at(addr, n uint64) (list []*memory) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for m := range t.index.at(addr) {
		if m.part(addr, n) != nil && !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// addressIndex finds registered memory by an address in it. It is an index, not a list, because a program may register a million
// segments one by one, and a peer may ask for as many addresses.
//
// The class of a segment is the power of two at or above its length. Each class divides the address space into parts of its size,
// so a segment lies in one part of its class or in two neighbours, and the index lists its memory under these. A search for an
// address looks into one part of each class in use.
type addressIndex struct {
	parts   map[addressPart][]*memory
	classes [65]int // number of entries of parts, by class
}

// addressPart is the part number n of the address space, of 2^class bytes.
type addressPart struct {
	class uint8
	n     uint64
}

// partsOf returns the parts that a segment lies in.
func partsOf(seg []byte) (first, last addressPart) {
	addr, class := hostmem.Addr(seg), bits.Len64(uint64(len(seg)-1))
	return addressPart{uint8(class), addr >> class}, addressPart{uint8(class), (addr + uint64(len(seg)-1)) >> class}
}

// eachPart calls f for each part that memory lies in, perhaps several times.
func (m *memory) eachPart(f func(addressPart)) {
	for _, s := range m.segs {
		if len(s) == 0 {
			continue
		}
		first, last := partsOf(s)
		f(first)
		if last != first {
			f(last)
		}
	}
}

func (x *addressIndex) add(m *memory) {
	if x.parts == nil {
		x.parts = make(map[addressPart][]*memory)
	}
	m.eachPart(func(p addressPart) {
		list := x.parts[p]
		if len(list) == 0 {
			x.classes[p.class]++
		} else if list[len(list)-1] == m { // listed for the segment before
			return
		}
		x.parts[p] = append(list, m)
	})
}

func (x *addressIndex) remove(m *memory) {
	m.eachPart(func(p addressPart) {
		list := slices.DeleteFunc(x.parts[p], func(o *memory) bool { return o == m })
		switch {
		case len(list) > 0:
			x.parts[p] = list
		case x.parts[p] != nil:
			delete(x.parts, p)
			x.classes[p.class]--
		}
	})
}

// at yields each memory of which a segment may contain the byte at addr, some of them several times.
func (x *addressIndex) at(addr uint64) iter.Seq[*memory] {
	return func(yield func(*memory) bool) {
		for class, n := range x.classes {
			if n == 0 {
				continue
			}
			for _, m := range x.parts[addressPart{uint8(class), addr >> class}] {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// serve calls f with a part of m, and reports whether m is open.
func (m *memory) serve(addr, n uint64, f func([]byte)) (served bool, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.open {
		err = guarded(f, m.part(addr, n))
	}
	return m.open, err
}

// guarded calls f with memory that may be mapped no more. A program that has unmapped it before it closed the
// registration must not end by a fault of a peer's making: that is an error for the peer, as it is from the kernel.
func guarded(f func([]byte), mem []byte) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if v := recover(); v != nil {
			if _, fault := v.(interface{ Addr() uintptr }); !fault {
				panic(v)
			}
			err = fmt.Errorf("some of the %d bytes at %#x are not mapped any more", len(mem), hostmem.Addr(mem))
		}
	}()
	f(mem)
	return nil
}

// close ends all registrations.
func (t *memories) close() {
	t.mu.Lock()
	live := t.live
	t.live, t.index, t.closed = nil, addressIndex{}, true
	t.mu.Unlock()
	ownMemories.remove(t)
	for m := range live {
		m.revoke()
	}
	t.relay.close()
}
