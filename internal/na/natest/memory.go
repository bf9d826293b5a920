package natest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cinnabar/internal/na"
)

// memory is registered memory. Accesses happen with the network's lock held, so none is under way when Close has it.
type memory struct {
	ep     *Endpoint
	key    uint64
	mem    []byte
	access na.Access
}

var errEmpty = errors.New("empty memory")

// Register implements [na.Endpoint].
func (ep *Endpoint) Register(mem []byte, access na.Access) (na.Memory, error) {
	if len(mem) == 0 {
		return nil, &na.Error{Kind: na.Invalid, Op: "register", Err: errEmpty}
	}
	ep.net.mu.Lock()
	defer ep.net.mu.Unlock()
	if ep.closed {
		return nil, &na.Error{Kind: na.Closed, Op: "register"}
	}
	ep.key++
	m := &memory{ep, ep.key, mem, access}
	ep.memory[m.key] = m
	return m, nil
}

// Registered returns how many pieces of memory peers can reach.
func (ep *Endpoint) Registered() int {
	ep.net.mu.Lock()
	defer ep.net.mu.Unlock()
	return len(ep.memory)
}

// Revoke implements [na.Memory].
func (m *memory) Revoke() { m.Close() }

// Close implements [na.Memory].
func (m *memory) Close() {
	m.ep.net.mu.Lock()
	defer m.ep.net.mu.Unlock()
	delete(m.ep.memory, m.key)
}

// handleSize is that of Mercury's handles of one piece of memory over ofi+tcp.
const handleSize = 48

// AppendHandle implements [na.Memory].
func (m *memory) AppendHandle(b []byte) []byte {
	for _, w := range []uint64{m.key, uint64(len(m.mem)), 1, uint64(m.access), m.key << 12, uint64(len(m.mem))} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// remote is a peer's memory. It implements [na.RemoteMemory].
type remote struct{ key, size uint64 }

func (r *remote) Len() uint64 { return r.size }

// ParseHandle implements [na.Endpoint].
func (ep *Endpoint) ParseHandle(b []byte) (na.RemoteMemory, error) {
	if len(b) != handleSize || binary.LittleEndian.Uint64(b[16:]) != 1 {
		return nil, &na.Error{Kind: na.Protocol, Op: "parse handle", Err: fmt.Errorf("% x", b)}
	}
	return &remote{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}, nil
}

// rangeLocked returns the memory that a fragment means, nil if the peer does not allow it. The network's lock is held.
func (ep *Endpoint) rangeLocked(f na.Fragment, need na.Access) []byte {
	r := f.Remote.(*remote)
	m := ep.memory[r.key]
	if m == nil || m.access&need == 0 || f.Offset > uint64(len(m.mem)) || uint64(len(f.Local)) > uint64(len(m.mem))-f.Offset {
		return nil
	}
	return m.mem[f.Offset:][:len(f.Local)]
}
