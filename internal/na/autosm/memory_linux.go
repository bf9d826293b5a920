package autosm

import "cinnabar/internal/na"

// memory is memory that is registered with both endpoints. It implements [na.SharedHandle] and [na.LateMemory].
type memory struct{ near, network na.Memory }

var (
	_ na.SharedHandle   = (*memory)(nil)
	_ na.LateMemory     = (*memory)(nil)
	_ na.SharedHandle   = (*handle)(nil)
	_ na.PieceRegistrar = (*Endpoint)(nil)
)

// Register implements [na.Endpoint].
func (e *Endpoint) Register(mem []byte, access na.Access) (na.Memory, error) {
	network, err := e.network.Register(mem, access)
	if err != nil {
		return nil, err
	}
	near, err := e.near.Register(mem, access)
	if err != nil {
		network.Close()
		return nil, err
	}
	return &memory{near, network}, nil
}

// handle is a piece of memory of RegisterPieces. It implements [na.SharedHandle].
type handle struct{ near, network na.Handle }

// AppendHandle implements [na.Handle].
func (h *handle) AppendHandle(b []byte) []byte { return h.network.AppendHandle(b) }

// AppendSharedHandle implements [na.SharedHandle].
func (h *handle) AppendSharedHandle(b []byte) []byte { return h.near.AppendHandle(b) }

// RegisterPieces implements [na.PieceRegistrar]. Only the network may register pieces together. mems has the memory of both networks.
func (e *Endpoint) RegisterPieces(segs [][]byte, access na.Access) (mems []na.Memory, handles []na.Handle, err error) {
	pieces, ok := e.network.(na.PieceRegistrar)
	if !ok {
		return na.RegisterEach(e, segs, access)
	}
	mems, network, err := pieces.RegisterPieces(segs, access)
	if err != nil {
		return nil, nil, err
	}
	near, handles, err := na.RegisterEach(e.near, segs, access)
	if err != nil {
		for _, m := range mems {
			m.Close()
		}
		return nil, nil, err
	}
	for i := range handles {
		handles[i] = &handle{near: handles[i], network: network[i]}
	}
	return append(mems, near...), handles, nil
}

// AppendHandle implements [na.Memory].
func (m *memory) AppendHandle(b []byte) []byte { return m.network.AppendHandle(b) }

// AppendSharedHandle implements [na.SharedHandle].
func (m *memory) AppendSharedHandle(b []byte) []byte { return m.near.AppendHandle(b) }

// Revoke implements [na.Memory].
func (m *memory) Revoke() {
	m.near.Revoke()
	m.network.Revoke()
}

// Close implements [na.Memory]. It revokes both keys first, so that it waits for the accesses of both networks no longer than for those
// of one.
func (m *memory) Close() {
	m.Revoke()
	m.near.Close()
	m.network.Close()
}

// Late implements [na.LateMemory].
func (m *memory) Late() bool {
	l, ok := m.network.(na.LateMemory)
	return ok && l.Late()
}

// Withdraw implements [na.LateMemory]. Shared memory refuses an access without ending the connection, so only the network keeps the memory.
func (m *memory) Withdraw(hold func() (release func())) {
	m.near.Revoke()
	if l, ok := m.network.(na.LateMemory); ok {
		l.Withdraw(hold)
	} else {
		m.network.Revoke()
	}
}

// remote is a peer's memory. near is nil if there is no handle of shared memory.
type remote struct{ near, network na.RemoteMemory }

// Len implements [na.RemoteMemory].
func (r *remote) Len() uint64 {
	if r.near == nil {
		return r.network.Len()
	}
	return min(r.near.Len(), r.network.Len())
}

// ParseHandle implements [na.Endpoint].
func (e *Endpoint) ParseHandle(b []byte) (na.RemoteMemory, error) { return e.ParseHandles(b, nil) }

// ParseHandles implements [na.SharedMemory].
func (e *Endpoint) ParseHandles(network, shared []byte) (na.RemoteMemory, error) {
	r := &remote{}
	var err error
	if r.network, err = e.network.ParseHandle(network); err != nil {
		return nil, err
	}
	if len(shared) > 0 {
		if r.near, err = e.near.ParseHandle(shared); err != nil {
			return nil, err
		}
	}
	return r, nil
}
