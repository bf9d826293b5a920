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
// Peers access it by its addresses, through the kernel and without this process, so registration and Close change nothing for them.
// Its handle contains the access that peers are to respect. Registration pins Go's memory, and lets the relay serve peers that may not
// use the kernel.
type memory struct {
	table  *memories
	segs   [][]byte
	access na.Access
	arena  uint64 // the arena that contains all of it; 0: none
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

// Close implements [na.Memory] as far as the kernel lets it: system calls of peers that are under way, or use the old handle later,
// are not stopped. They access the addresses as long as these are mapped, even if the memory has another use by then. Therefore the
// owner closes memory when the peers have said that they are done, as a program in C does.
func (m *memory) Close() {
	m.Revoke()
	m.revoke()
}

// Revoke implements [na.Memory]: relays serve the memory to no peer any more.
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

// memories holds the registered memory of an endpoint, so that the collector does not free memory that peers may access.
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

// register registers memory. It keeps segs.
func (t *memories) register(segs [][]byte, access na.Access) (*memory, error) {
	const opName = "register memory"
	if access < na.ReadOnly || access > na.ReadWrite {
		return nil, &na.Error{Kind: na.Invalid, Op: opName, Err: fmt.Errorf("access %d; it is read, write or both", access)}
	}
	m := &memory{table: t, segs: segs, access: access, arena: t.arenas.of(segs), open: true}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &na.Error{Kind: na.Closed, Op: opName}
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

// freeArena frees an arena and notifies the peers that were granted it.
func (t *memories) freeArena(a *arena) error {
	t.arenas.remove(a)
	t.relay.grants.gone(a.id) // waits for a grant of the arena that is under way
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

// use calls f with the n bytes at addr, if they are registered and may be accessed in that way. They stay registered until f returns.
// The same addresses may be registered several times. The relay calls it for peers that may not use the kernel.
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

// at returns the registered memory that contains the n bytes at addr.
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

// guarded calls f with memory that may not be mapped any more. A program that has unmapped memory before it closed the registration
// must not end by a fault that a peer causes: the fault is an error for the peer, as it is from the kernel.
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
