package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sglist"
	"cinnabar/stats"
)

// Bulk is memory of this process that peers may read or write: one or many segments, which count as one run of bytes. Its counterpart
// in C is an hg_bulk_t that HG_Bulk_create returns. A program makes one with [Engine.Expose], [Engine.Alloc] or [Engine.ExposeFile],
// sends its [Bulk.Handle] to peers, and closes it.
//
// A Bulk keeps its segments alive until Close. The network reads and writes them in place, without a call of the program. The program
// may read the bytes of a peer after the Pull that fetched them has returned, or after the RPC in which the peer announces its Push has
// arrived. An earlier read is a data race, which the race detector does not report because it does not see the writes of other processes.
//
// All methods are safe for concurrent use, Close among them.
type Bulk struct {
	mem    *memory        // shared by a Bulk and its views
	life   *rundown.Guard // counts the operations on mem; shared by a Bulk and its views
	off, n int64          // offset and size of the view in mem
	err    error          // the reason why the view is void, which every method returns; nil: it is valid
	own    *ownedBulk     // has this Bulk; nil: it is a view
}

// ownedBulk is a Bulk that is not a view. Its parts are one allocation, because a pool needs a Bulk for each use of a buffer.
//
//	open --Close----> closed
//	  \ --Recycle--> recycled: the next ownedBulk has the memory
type ownedBulk struct {
	Bulk
	guard rundown.Guard // the Guard that life of the Bulk and of its views points to
	leak  *leakWatch
	state atomic.Uint32 // bulkOpen, bulkClosed or bulkRecycled
}

// The states of an ownedBulk.
const (
	bulkOpen = iota
	bulkClosed
	bulkRecycled
)

// memory is one registration: the segments and their keys in the network.
type memory struct {
	memoryKind
	e       *Engine
	segs    [][]byte
	core    *hg.Bulk
	mapping *mapping // has the segments; nil: the program owns them

	fixed bool // the segments are mapped for reading only

	made atomic.Uintptr // the program counter of the call that made it, 0 if not known

	// Links in Engine.exposed, guarded by its mu.
	prev *memory
	next *memory

	close    sync.Once
	closeErr error

	mu invariants.Mutex
	// +checklocks:mu
	views map[span]*hg.Bulk // registrations of parts, made by Handle
}

// memoryKind is the description of a memory, without its keys.
type memoryKind struct {
	mode     Mode
	size     int64 // bytes in all segments together
	segments int
}

// mapping is memory that the engine has mapped. Registrations share it.
type mapping struct {
	free func() error // returns the memory to the system or to the network
	log  *slog.Logger

	// holds counts the references: one of each memory, and one of each registration that is kept for the server of an abandoned
	// call. The release of the last reference calls free.
	holds atomic.Int32
}

// errBulkClosed is the cause of errors of a Bulk after [Bulk.Close] or [Bulk.Recycle].
var errBulkClosed = errors.New("the bulk is closed, or was recycled when it was given back to its pool")

// span is a part of a memory.
type span struct{ off, n int64 }

// Expose lets peers access segments as mode allows until the Bulk is closed. The number of segments is 1 to 1,048,576; some or
// all of them may be empty. A handle leaves out empty segments, except for one segment if all are empty. A handle takes up to
// 72 bytes for each segment; the peer fetches a handle that does not fit into a message like any other long argument.
//
// The segments stay the caller's property, and the caller may go on using them. Peers access them at any time, without synchronization
// with the caller.
//
// The segments may lie anywhere: in the Go heap, in an array on the stack (which then moves to the heap), in mapped
// memory. Mapped memory must stay mapped until Close has returned.
func (e *Engine) Expose(mode Mode, segments ...[]byte) (*Bulk, error) {
	m, err := e.expose(mode, segments, nil)
	if err != nil {
		return nil, err
	}
	return m.newBulk(), nil
}

// Alloc exposes size bytes of zeroed memory of its own, outside the Go heap and aligned to pages: the best memory for
// transfers, since the collector has nothing to do with it. [Bulk.Bytes] returns it. It is given back to the system by
// Close, after which the program must not touch it any more, not even read it.
func (e *Engine) Alloc(mode Mode, size int64) (*Bulk, error) {
	mapped, free, err := e.mapMemory(size)
	if err != nil {
		return nil, err
	}
	m, err := e.expose(mode, [][]byte{mapped}, free)
	if err != nil {
		return nil, err
	}
	return m.newBulk(), nil
}

// newBulk makes the first Bulk of m. Its caller is a function that the program has called, and that returns the Bulk.
func (m *memory) newBulk() *Bulk {
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	m.made.Store(pc[0])
	return m.bulk(watchLeak(leakReport{m.e.log, m.memoryKind, pc[0]}))
}

// bulk makes a Bulk of m that is not a view.
func (m *memory) bulk(leak *leakWatch) *Bulk {
	o := &ownedBulk{leak: leak}
	o.Bulk = Bulk{mem: m, life: &o.guard, n: m.size, own: o}
	return &o.Bulk
}

func (k memoryKind) String() string {
	return fmt.Sprintf("%v bulk of %d bytes in %d segments", k.mode, k.size, k.segments)
}

// allocator is a network that has memory of its own which is better for transfers than any other. It may run out of it.
type allocator interface {
	Alloc(size int) (mem []byte, free func() error, err error)
}

// mapMemory maps size bytes and returns how to give them back; there is nothing to map for 0.
func (e *Engine) mapMemory(size int64) (mem []byte, free func() error, err error) {
	if size == 0 {
		return nil, nil, nil
	}
	if size < 0 || size != int64(int(size)) {
		return nil, nil, argumentError("alloc", "", "", "%d bytes: sizes go from 0 to %d", size, int64(^uint(0)>>1))
	}
	if a, ok := e.net.(allocator); ok {
		if mem, free, err = a.Alloc(int(size)); err == nil {
			return mem, free, nil
		}
	}
	if mem, err = hostmem.Map(int(size)); err != nil {
		return nil, nil, &Error{Op: "alloc", Code: codes.NoMem, Err: err}
	}
	return mem, func() error { return hostmem.Unmap(mem) }, nil
}

// expose registers segs. free, if not nil, is called when the registration ends, and at once if there will be none.
func (e *Engine) expose(mode Mode, segs [][]byte, free func() error) (*memory, error) {
	m := &memory{memoryKind: memoryKind{mode: mode}, e: e}
	if free != nil {
		m.mapping = &mapping{free: free, log: e.log}
		m.mapping.holds.Store(1)
	}
	if err := m.register(segs); err != nil {
		return nil, joined(err, m.mapping.release())
	}
	return m, nil
}

// joined is err, and also if there is that too.
func joined(err, also error) error {
	if also == nil {
		return err
	}
	return errors.Join(err, also)
}

func (m *memory) register(segs [][]byte) error {
	if !m.mode.valid() {
		return argumentError("expose", "", "", "%v: the mode is ReadOnly, WriteOnly or ReadWrite", m.mode)
	}
	if err := m.e.begin(); err != nil {
		return errorFrom("expose", "", "", err)
	}
	defer m.e.end()
	m.segs = slices.Clone(hg.NotEmpty(segs))
	m.segments = len(m.segs)
	for _, s := range m.segs {
		m.size += int64(len(s))
	}
	if m.e.cfg.Monitor == nil {
		return m.registerCore()
	}
	// The monitor gets the background context, because registration does not wait and so has none.
	ev := stats.Event{Kind: stats.EventExpose, Info: stats.CallInfo{RPC: "expose", Peer: m.e.self, Parent: wire.NoParent}, Bytes: m.size}
	m.e.observe(context.Background(), ev)
	ev.End, ev.Times.Began = true, time.Now()
	ev.Err = m.registerCore()
	ev.Times.Ended = time.Now()
	m.e.observe(context.Background(), ev)
	return ev.Err
}

// registerCore registers the memory with the core, and adds it to the engine's list of exposed memory.
func (m *memory) registerCore() error {
	core, err := m.e.core.Expose(m.segs, m.mode.access())
	if err != nil {
		return errorFrom("expose", "", "", err)
	}
	m.core = core
	m.e.exposed.add(m)
	return nil
}

// Slice is the part of b that starts at offset off and has n bytes: a view, which costs nothing, needs no Close and dies
// with b. If there is no such part, every use of the view fails with an [*Error] of [codes.InvalidArg] that says so.
func (b *Bulk) Slice(off, n int64) *Bulk {
	view := &Bulk{mem: b.mem, life: b.life, err: b.err}
	if view.err == nil {
		view.err = checkSlice(off, n, b.n)
	}
	if view.err == nil {
		view.off, view.n = b.off+off, n
	}
	return view
}

// checkSlice returns an error unless the n bytes from off on lie within size bytes. The values may come from a peer.
func checkSlice(off, n, size int64) error {
	if off < 0 || n < 0 || off > size || n > size-off {
		return argumentError("slice", "", "", "%d bytes from offset %d lie outside the %d bytes of the bulk", n, off, size)
	}
	return nil
}

// Len is the number of bytes in all segments together.
func (b *Bulk) Len() int64 { return b.n }

// pieces returns the parts of segments that lie in b, one if b is empty and none if it is closed.
func (b *Bulk) pieces() [][]byte {
	if b.use("access") != nil {
		return nil
	}
	defer b.life.Release()
	if b.n == 0 {
		return [][]byte{{}}
	}
	return sglist.Slice(nil, b.mem.segs, b.off, b.n)
}

// Bytes returns the memory itself if it lies in one piece, as that of [Engine.Alloc] does, and nil otherwise or after Close. The part
// of one segment, which [Bulk.Slice] makes, lies in one piece. Memory of Alloc must not be touched after Close.
func (b *Bulk) Bytes() []byte {
	if segs := sglist.Merge(b.pieces()); len(segs) == 1 {
		return segs[0]
	}
	return nil
}

// Close ends the exposure of the memory: it refuses new transfers, and revokes the keys, so that no peer can begin an access any more.
// It then waits for the transfers that this process started on b, and for the accesses that peers have begun. If no byte moves for a second
// on the connection of such a peer, or its access lasts for more than five seconds, Close ends that connection.
// Close does not ask whether peers still need the memory; the program and its peers agree on that by messages of their own.
//
// There is one exception over ofi+tcp, because that protocol can refuse an access only by ending the connection, and all other
// calls on it would fail. A call is abandoned when its context ends or the program cancels it before the response comes; its
// server does not learn that. If the request of an abandoned call carried a handle of this memory, the server of that call may still
// access the memory until the server responds, its connection ends, or Config.LateAccess has passed: reads of the server return the
// contents at the time of Close, and its writes are discarded. For that time the engine keeps a copy of a readable Bulk of the program's
// slices, so that the program may reuse them at once, and does not return memory of Alloc to the system. If Config.MaxMemory leaves no
// room, the engine keeps neither. Accesses of all other peers are refused.
//
// Over ofi+verbs that exception holds with three differences, because a device cannot replace memory by a copy: a read of the server
// returns the bytes that are in the memory at the time of the read; the engine keeps neither memory of the program that peers may write
// nor memory of the program outside Go's heap; and all peers that have a handle can access kept memory. So a program must not store
// secrets in a slice that it has exposed to an abandoned call, until Config.LateAccess has passed; with a negative LateAccess the engine
// keeps nothing. If a server accesses closed memory that the engine has not kept, the device ends the connection.
//
// Further calls of Close return the result of the first one. Close of a view, and of a Bulk that was recycled, does nothing.
func (b *Bulk) Close() error {
	o := b.own
	if o == nil || !o.state.CompareAndSwap(bulkOpen, bulkClosed) && o.state.Load() == bulkRecycled {
		return nil
	}
	hold := b.mem.mapping.keeper()
	b.life.Close()
	b.mem.revokeKeys(hold)
	<-b.life.Idle()
	o.leak.stop()
	return b.mem.revoke(hold)
}

// Recycle ends b and returns a new Bulk of the same memory, for its next user. Pools of buffers call it
// (package cinnabar/regmem/pool). It waits for the transfers that this process started on b, as Close does; afterwards every use of b and
// of its views fails, and Close of b does nothing.
//
// The memory stays exposed, and keeps its keys and its bytes, so a peer that has a handle of b can use it on. There is one exception: if
// an abandoned call carried such a handle, the memory gets new keys. The server of that call then reads a copy of the contents at the
// time of Recycle, and its writes are discarded, as after [Bulk.Close].
//
// If Recycle fails, the memory is closed. A view cannot be recycled.
func (b *Bulk) Recycle() (*Bulk, error) {
	o := b.own
	if o == nil {
		return nil, argumentError("recycle", "", "", "it is a view; recycle the Bulk that Slice made it of")
	}
	if !o.state.CompareAndSwap(bulkOpen, bulkRecycled) {
		return nil, &Error{Op: "recycle", Code: codes.InvalidArg, Err: errBulkClosed}
	}
	b.life.Close()
	if b.life.Users() > 0 { // otherwise Idle would make a channel for nothing
		<-b.life.Idle()
	}
	m := b.mem
	if m.isLate() {
		var err error
		if m, err = m.renew(); err != nil {
			o.leak.stop()
			return nil, err
		}
	}
	return m.bulk(o.leak), nil
}

// Done returns the channel that [Engine.Done] of b's engine returns. When it is closed, no peer reaches the memory any more.
func (b *Bulk) Done() <-chan struct{} { return b.mem.e.Done() }

// renew revokes the keys of m, and registers the same segments under new ones. If it fails, it releases the segments. No operation of
// this process uses m any more.
func (m *memory) renew() (*memory, error) {
	next := &memory{memoryKind: memoryKind{mode: m.mode}, e: m.e, mapping: m.mapping, fixed: m.fixed}
	next.made.Store(m.made.Load())
	if next.mapping != nil {
		next.mapping.holds.Add(1)
	}
	segs := m.segs
	if m.e.cfg.onDevice { // a device cannot keep a copy for the servers of abandoned calls, so they would read bytes of the next user
		m.endKeys()
	}
	err := m.revoke(nil) // without a keeper, so that the servers of abandoned calls read a copy, because the next user changes the memory
	if err == nil {
		err = next.register(segs)
	}
	if err != nil {
		return nil, joined(err, next.mapping.release())
	}
	return next, nil
}

// revoke makes the memory unreachable for peers and releases it. No operation of this process uses it any more. keep is as for
// revokeKeys.
func (m *memory) revoke(keep func() (release func())) error {
	m.close.Do(func() {
		m.revokeKeys(keep)
		m.mu.Lock()
		views := m.views
		m.views = nil
		m.mu.Unlock()
		for _, v := range views {
			v.Close()
		}
		m.core.Close()
		m.e.exposed.remove(m)
		m.segs = nil
		m.closeErr = m.mapping.release()
	})
	return m.closeErr
}

// revokeKeys refuses new accesses of peers, except those of the servers of abandoned calls ([Bulk.Close]), which read the memory itself
// while they hold a reference that keep has returned, or a copy if keep is nil. It does not wait for accesses under way.
func (m *memory) revokeKeys(keep func() (release func())) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.views {
		v.Withdraw(keep)
	}
	m.core.Withdraw(keep)
}

// endKeys refuses new accesses of all peers.
func (m *memory) endKeys() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.views {
		v.Revoke()
	}
	m.core.Revoke()
}

// isLate reports whether the server of an abandoned call may still access the memory.
func (m *memory) isLate() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.views {
		if v.Late() {
			return true
		}
	}
	return m.core.Late()
}

// keeper returns the function that takes a reference to the mapping and returns the function that drops it; nil if m is nil, because
// the engine cannot keep memory of the program.
func (m *mapping) keeper() func() (release func()) {
	if m == nil {
		return nil
	}
	return func() func() {
		m.holds.Add(1)
		return func() {
			if err := m.release(); err != nil {
				m.log.Error("memory that was kept for the server of an abandoned call cannot be released", logError, err)
			}
		}
	}
}

// release drops a reference to the mapping. The last one returns the memory to the system or to the network. A nil mapping has nothing
// to release.
func (m *mapping) release() error {
	if m == nil || m.holds.Add(-1) > 0 {
		return nil
	}
	if err := m.free(); err != nil {
		return &Error{Op: "close bulk", Code: codes.Fault, Err: err}
	}
	return nil
}

// use begins an operation on the memory and fails after Close. The caller ends the operation with life.Release.
func (b *Bulk) use(op string) error {
	if b.err != nil {
		return b.err
	}
	if !b.life.Acquire() {
		return &Error{Op: op, Code: codes.InvalidArg, Err: errBulkClosed}
	}
	return nil
}

// Mode is the accesses that peers have to exposed memory: read, write or both. A transfer needs the right on both sides: a pull reads the
// remote memory and writes the local one, so the remote Bulk must be readable and the local one writable; a push the other way round.
// The side that starts a transfer checks both before it sends a byte; the owner of the memory checks again.
type Mode uint8

// The modes. Their values travel in handles.
const (
	ReadOnly  Mode = 1 // peers may read: HG_BULK_READ_ONLY
	WriteOnly Mode = 2 // peers may write: HG_BULK_WRITE_ONLY
	ReadWrite Mode = 3 // peers may do both: HG_BULK_READWRITE
)

// String returns "read-only", "write-only" or "read-write"; "no access" for the 0 in a peer's handle that grants nothing.
func (m Mode) String() string {
	switch m {
	case 0:
		return "no access"
	case ReadOnly:
		return "read-only"
	case WriteOnly:
		return "write-only"
	case ReadWrite:
		return "read-write"
	}
	return "mode " + strconv.Itoa(int(m))
}

// valid reports whether memory can be exposed with m.
func (m Mode) valid() bool { return m >= ReadOnly && m <= ReadWrite }

// allows reports whether all rights of want are in m.
func (m Mode) allows(want Mode) bool { return m&want == want }

// access is m as the network layer calls it; the values are the same.
func (m Mode) access() na.Access { return na.Access(m) }
