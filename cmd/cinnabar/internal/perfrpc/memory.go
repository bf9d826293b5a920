package perfrpc

import (
	"context"
	"fmt"
	"sync"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
)

// Limits of perf serve. The request of a client is checked against them before anything is allocated.
const (
	maxHandles   = 4096  // of one client
	maxAll       = 16384 // of all clients: each is a mapping of its own
	maxTransfers = 65536 // of one call

	// transferRoom is the charge to the budget for the state of each transfer of a call, in bytes: a client could
	// make the server hold far more by many small transfers than by their data.
	transferRoom = 1 << 10
)

// handleTable has the handles that the clients of perf serve have announced, and the server's memory for them, within a budget. A
// handle lives until its client is done, announces another of the same number, or loses its connection.
type handleTable struct {
	budget   int64
	watchers sync.WaitGroup // of clients' connections: one for each handle that was entered and not dropped

	mu sync.Mutex
	// +checklocks:mu
	handles map[handleKey]*handle
	// +checklocks:mu
	used int64 // bytes of all handles, those in the making included
	// +checklocks:mu
	count int // of them
	// +checklocks:mu
	closed bool
}

// handleKey names a handle.
type handleKey struct {
	class  int    // of the server
	client string // its address
	number uint32
}

func newHandleTable(budget int64) *handleTable {
	return &handleTable{budget: budget, handles: map[handleKey]*handle{}}
}

// announce makes the memory of a handle, in a call of the client, and enters it.
func (m *handleTable) announce(ctx context.Context, e *cinnabar.Engine, key handleKey, in bwInfo) error {
	charge := charge(in)
	if err := m.reserve(charge); err != nil {
		return err
	}
	h, err := newHandle(e, in)
	if err != nil {
		m.release(charge)
		return err
	}
	old, err := m.enter(ctx, key, h)
	if err != nil {
		old = h
	}
	if old != nil {
		m.drop(old)
	}
	return err
}

// charge returns the cost of a handle in bytes: its memory, and the state of its transfers. Count is within its limit, so that this
// is less than 2^49.
func charge(in bwInfo) int64 {
	return int64(in.Count) * (int64(in.SizeMax) + transferRoom)
}

// reserve takes n bytes of the budget.
func (m *handleTable) reserve(n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.budget-m.used {
		return fmt.Errorf("%w: a handle of %s, with %s in use of the %s that --memory allows", codes.NoMem, cli.SizeText(n), cli.SizeText(m.used), cli.SizeText(m.budget))
	}
	if m.count == maxAll {
		return fmt.Errorf("%w: %d handles are in use, which is the limit; wait for another client to end", codes.NoMem, m.count)
	}
	m.used += n
	m.count++
	return nil
}

func (m *handleTable) release(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	m.count--
}

// enter makes h the handle of key until ctx, which ends with the client's connection, is done. It returns the handle
// that it replaces, nil if there was none.
func (m *handleTable) enter(ctx context.Context, key handleKey, h *handle) (old *handle, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, cinnabar.ErrClosed
	}
	old = m.handles[key]
	m.handles[key] = h
	m.watchers.Add(1)
	h.unwatch = context.AfterFunc(ctx, func() {
		defer m.watchers.Done()
		m.lost(key, h)
	})
	return old, nil
}

// find returns a handle that the client has announced.
func (m *handleTable) find(key handleKey) (*handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.handles[key]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w: handle %d was not announced", codes.InvalidArg, key.number)
}

// lost takes h away because its client is gone.
func (m *handleTable) lost(key handleKey, h *handle) {
	m.mu.Lock()
	there := m.handles[key] == h
	if there {
		delete(m.handles, key)
	}
	m.mu.Unlock()
	if there {
		m.drop(h)
	}
}

// forget gives up all handles that a client has announced to a server, of every number.
func (m *handleTable) forget(key handleKey) {
	m.dropAll(func(k handleKey) bool { return k.class == key.class && k.client == key.client })
}

// close gives up everything; nothing is announced any more. When it returns, all memory is given back.
func (m *handleTable) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.dropAll(func(handleKey) bool { return true })
	m.watchers.Wait()
}

func (m *handleTable) dropAll(which func(handleKey) bool) {
	var dropped []*handle
	m.mu.Lock()
	for k, h := range m.handles {
		if which(k) {
			dropped = append(dropped, h)
			delete(m.handles, k)
		}
	}
	m.mu.Unlock()
	for _, h := range dropped {
		m.drop(h)
	}
}

// drop gives up a handle that is in the table no more. It waits for the call under way.
func (m *handleTable) drop(h *handle) {
	if h.unwatch != nil && h.unwatch() {
		m.watchers.Done()
	}
	h.close()
	m.release(charge(h.info))
}

// handle is the server's half of one handle of a client.
type handle struct {
	info    bwInfo
	unwatch func() bool // ends the watching of the client's connection; nil before it has begun

	// mu is held by the call under way: the protocol has one at a time for each handle, and a second one waits.
	mu sync.Mutex
	// +checklocks:mu
	local *cinnabar.Bulk // where data comes from, or goes to; nil once the handle is given up
}

// newHandle makes the memory that the handle's data comes from, or goes to.
func newHandle(e *cinnabar.Engine, in bwInfo) (*handle, error) {
	mode := cinnabar.WriteOnly
	if in.Op == opPush {
		mode = cinnabar.ReadOnly
	}
	local, err := e.Alloc(mode, int64(in.SizeMax)*int64(in.Count))
	if err != nil {
		return nil, err
	}
	if in.Op == opPush {
		fillAll(local.Bytes(), int64(in.SizeMax), in.Handle)
	}
	return &handle{info: in, local: local}, nil
}

// close gives the memory back.
func (h *handle) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.local.Close() // the memory is gone also after an error
	h.local = nil
}

// serve makes the transfers of one call between remote and the handle's memory, and checks the data that has come.
func (h *handle) serve(ctx context.Context, remote cinnabar.RemoteBulk, size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.local == nil {
		return fmt.Errorf("%w: handle %d is given up", codes.InvalidArg, h.info.Handle)
	}
	if h.info.Op == opPush || !h.info.Checking {
		return h.move(ctx, remote, h.local, size)
	}
	clear(h.local.Bytes()) // so that the check sees only bytes of this call
	if err := h.move(ctx, remote, h.local, size); err != nil {
		return err
	}
	return checkAll(h.local.Bytes(), int64(h.info.SizeMax), size, h.info.Handle)
}

// move makes the transfers of one call: all at once, as hg_perf_bulk_common does.
func (h *handle) move(ctx context.Context, remote cinnabar.RemoteBulk, local *cinnabar.Bulk, size int64) error {
	one, start := cinnabar.RemoteBulk.Push, cinnabar.RemoteBulk.StartPush
	if h.info.Op == opPull {
		one, start = cinnabar.RemoteBulk.Pull, cinnabar.RemoteBulk.StartPull
	}
	if h.info.Count == 1 {
		_, err := one(remote.Slice(0, size), ctx, local.Slice(0, size))
		return err
	}
	step := int64(h.info.SizeMax)
	pending := make([]*cinnabar.Pending[int64], h.info.Count)
	for i := range pending {
		at := int64(i) * step
		pending[i] = start(remote.Slice(at, size), ctx, local.Slice(at, size))
	}
	var failed error
	for _, p := range pending {
		if _, err := p.Wait(); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}
