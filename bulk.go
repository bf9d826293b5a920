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
	slot   *slot          // the slot of a pool's buffer; nil: not from a pool
	owner  bool           // Close revokes mem; false for views and for buffers of a pool
}

// memory is one registration: the segments and their keys in the network.
type memory struct {
	e    *Engine
	mode Mode
	segs [][]byte
	size int64
	core *hg.Bulk
	free func() error // returns the segments to the system or to their pool; nil: the program owns them

	// holds counts the references to the segments, if free is not nil: one of the exposure, and one of each registration that
	// is kept for the server of an abandoned call. The release of the last reference calls free.
	holds atomic.Int32

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

// errBulkClosed is the cause of errors of a Bulk after [Bulk.Close], which for a buffer of a pool gives it back.
var errBulkClosed = errors.New("the bulk is closed or was given back to its pool")

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
	b := m.bulk()
	m.made.Store(watch(b, b.life, e.log, m))
	return b, nil
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
	b := m.bulk()
	m.made.Store(watch(b, b.life, e.log, m))
	return b, nil
}

// bulk makes the Bulk that owns m.
func (m *memory) bulk() *Bulk { return &Bulk{mem: m, life: new(rundown.Guard), n: m.size, owner: true} }

// String describes the memory without its keys.
func (m *memory) String() string {
	return fmt.Sprintf("%v bulk of %d bytes in %d segments", m.mode, m.size, len(m.segs))
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
	m := &memory{e: e, mode: mode, free: free}
	m.holds.Store(1)
	if err := m.register(segs); err != nil {
		return nil, joined(err, m.unhold())
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

// Close ends the exposure: it refuses new transfers, revokes the keys, so that no peer begins to reach the memory any more,
// and waits for the transfers that this process started on b, and for accesses of peers under way. An access that a peer
// does not let go on for a second, or that is under way still after five, ends with its connection.
// Close does not wait until peers have no more use for the memory; the program and its peers agree on that by messages of their own.
//
// There is one exception over ofi+tcp, because that protocol can refuse an access only by ending the connection, and all other
// calls on it would fail. A call is abandoned when its context ends or the program cancels it before the response comes; the
// server does not learn that. If the request of an abandoned call carried a handle of this memory, that server may still access
// it until it responds, its connection ends, or Config.LateAccess has passed: its reads return the contents at the time of Close,
// and its writes are discarded. For that time the engine keeps a copy of a readable Bulk of the program's slices, or of
// a pool's buffer, so that the program may reuse them at once, and returns memory of its own to the system only afterwards. Without room
// within Config.MaxMemory the engine keeps nothing. Accesses of all other peers are refused.
//
// Further calls return the same. A view's Close does nothing, that of a pool's buffer gives it back as
// [BulkPool.Release] does, once.
func (b *Bulk) Close() error {
	switch {
	case b.slot != nil:
		b.slot.giveBack(b)
		return nil
	case !b.owner:
		return nil
	}
	b.life.Close()
	b.mem.revokeKeys()
	<-b.life.Idle()
	return b.mem.revoke()
}

// revoke makes the memory unreachable for peers and releases it. No operation of this process uses it any more.
func (m *memory) revoke() error {
	m.close.Do(func() {
		m.revokeKeys()
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
		m.closeErr = m.unhold()
	})
	return m.closeErr
}

// revokeKeys refuses new accesses of peers, except those of the servers of abandoned calls ([Bulk.Close]). It does not wait for
// accesses under way.
func (m *memory) revokeKeys() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var hold func() func()
	if m.free != nil {
		hold = m.hold
	}
	for _, v := range m.views {
		v.Withdraw(hold)
	}
	m.core.Withdraw(hold)
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

// hold takes a reference to the segments, which release drops.
func (m *memory) hold() (release func()) {
	m.holds.Add(1)
	return func() {
		if err := m.unhold(); err != nil {
			m.e.log.Error("memory that was kept for the server of an abandoned call cannot be released", logError, err)
		}
	}
}

// unhold drops a reference to the segments. The last one returns segments that the program does not own to the system or to
// their pool.
func (m *memory) unhold() error {
	if m.free == nil || m.holds.Add(-1) > 0 {
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

// lost has the attributes of the log line about a Bulk or a pool that became garbage before the program closed it.
type lost struct {
	log  *slog.Logger
	what fmt.Stringer
	pc   uintptr // where it was made
}

// label names a handle that is no memory, such as a pool.
type label string

func (l label) String() string { return string(l) }

// watch logs a report if handle, which the caller's caller is about to return, becomes garbage before life has ended. It
// returns the program counter at which the program made the handle, 0 if it is not known.
//
// The memory stays exposed until the engine closes, and its views usable, because a peer may hold a handle of it and the
// program its slices.
func watch[T any](handle *T, life *rundown.Guard, log *slog.Logger, what fmt.Stringer) uintptr {
	var pc [1]uintptr
	if runtime.Callers(3, pc[:]) == 0 {
		return 0
	}
	if !log.Enabled(context.Background(), slog.LevelWarn) {
		return pc[0]
	}
	runtime.AddCleanup(handle, func(l lost) {
		if !life.Closed() {
			l.report()
		}
	}, lost{log, what, pc[0]})
	return pc[0]
}

func (l lost) report() {
	l.log.Warn("never closed: its memory stays exposed until the engine closes", "what", l.what.String(), logMade, place(l.pc))
}

// place says where in the program pc is.
func place(pc uintptr) string {
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return f.Function + " at " + f.File + ":" + strconv.Itoa(f.Line)
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
