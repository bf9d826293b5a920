package cinnabar

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
	"cinnabar/internal/sglist"
	"cinnabar/stats"
)

// direction is one of the two ways of a transfer, seen from the process that starts it.
type direction struct {
	op     string
	core   hg.Direction
	remote Mode // the right that the remote memory must give
	local  Mode // the right that the local memory must give
}

var (
	pull = &direction{op: "pull", core: hg.Pull, remote: ReadOnly, local: WriteOnly}
	push = &direction{op: "push", core: hg.Push, remote: WriteOnly, local: ReadOnly}
)

// part is the range of one transfer: n bytes of the remote memory from off on, which lie within it.
type part struct {
	r      RemoteBulk
	d      *direction
	off, n int64
}

// move is one transfer. Until release it holds a count of Engine.gate and one of the life of the local Bulk.
//
//	newMove --prepare--> ready --start--> under way --wait--> over --release--> in the pool
type move struct {
	part
	t    *hg.Transfer
	to   na.Addr        // the peer's address, set by start or launch
	lost error          // the failure to resolve the peer's name, after which t is not started
	e    *Engine        // the engine; its gate counts the move; nil: not counted
	life *rundown.Guard // the Bulk's life, which counts the move; nil: the local memory is not a Bulk's
	segs [][]byte       // the local memory, n bytes
	over na.Event       // set by TransferDone

	record  *opRecord // nil until admitted
	pending pendingOp // see opRecord
	bounded bool      // see opRecord

	times stats.Timing // for the engine's monitor
}

// newMove takes a move from those that the engine keeps to be used again: its own, since a move has a channel, and one
// that was made in a bubble of testing/synctest must stay there.
func newMove(ctx context.Context, p part) *move {
	var m *move
	if spare := p.spare(); spare != nil {
		m, _ = spare.Get().(*move)
	}
	if m == nil {
		m = &move{segs: make([][]byte, 0, 4)}
	}
	m.part = p
	_, m.bounded = ctx.Deadline()
	if m.bounded && scopeFrom(ctx) != nil {
		m.bounded = false // because a peer that moves nothing would hold the handler until its deadline, however far that is away
	}
	return m
}

// spare returns the pool of the engine's moves for reuse; nil if the remote memory belongs to no engine.
func (p *part) spare() *sync.Pool {
	if p.r.ep == nil || p.r.ep.e == nil {
		return nil
	}
	return &p.r.ep.e.moves
}

// prepare makes n bytes of b from localOff on the local memory, and makes the checks that need no traffic.
func (m *move) prepare(b *Bulk, localOff int64) error {
	if err := b.use(m.d.op); err != nil {
		return err
	}
	m.life = b.life
	if !b.mem.mode.allows(m.d.local) {
		return permission(m.d.op, "", "local", b.mem.mode, m.d.local)
	}
	m.segs = sglist.Merge(sglist.Slice(m.segs, b.mem.segs, b.off+localOff, m.n))
	return m.admit()
}

// admit checks the remote side and enters the gate of its engine.
func (m *move) admit() error {
	if err := m.r.check(m.d); err != nil {
		return err
	}
	if err := m.r.ep.e.begin(); err != nil {
		return m.fail(err)
	}
	m.e = m.r.ep.e
	m.t = m.e.core.NewTransfer()
	m.record = m.e.ops.begin(&opRecord{op: m.d.op, ep: m.r.ep, bytes: m.n, pending: m.pending, transfer: m.t, bounded: m.bounded})
	return nil
}

// start starts a transfer; wait waits for its end. It blocks while a name is resolved.
func (m *move) start(ctx context.Context) {
	m.observe(ctx, stats.Event{Bytes: m.n})
	if m.e.cfg.Monitor != nil {
		m.times = stats.Timing{Began: time.Now()}
		defer func() { m.times.Sent = time.Now() }()
	}
	to, err := m.r.ep.reach(ctx)
	if err != nil {
		m.lost = m.fail(err)
		m.over.Set()
		return
	}
	s := scopeFrom(ctx)
	if s == nil || !s.readsFor(to) {
		m.launch(to, m)
		return
	}
	s.ref.BeginMoving()
	defer s.ref.EndMoving()
	m.launch(to, m) // copies the bytes that the network takes at once
}

// launch starts the transfer with the peer at address to, and notifies done of its end.
func (m *move) launch(to na.Addr, done hg.TransferNotifier) {
	m.to = to
	m.t.Notify(done)
	m.t.Start(m.d.core, to, m.r.h.d, uint64(m.r.off+m.off), m.segs, uint64(m.n))
}

// TransferDone implements [hg.TransferNotifier].
func (m *move) TransferDone(*hg.Transfer) { m.over.Set() }

// wait returns how many bytes were moved.
func (m *move) wait(ctx context.Context) (int64, error) {
	inTime := m.over.IsSet() || m.settle(ctx)
	n, err := m.result()
	if !inTime && codeOf(err) == codes.Canceled {
		err = &Error{Op: m.d.op, Addr: m.r.ep.String(), Code: codes.Of(ctx.Err()), Err: context.Cause(ctx)}
	}
	if m.e.cfg.Monitor != nil {
		m.times.Ended = time.Now()
		m.observe(ctx, stats.Event{End: true, Bytes: n, Err: err, Times: m.times})
	}
	return n, err
}

// settle waits until the transfer is over. If ctx ends first it cancels it and reports false, when it is over: however
// long the transport takes to let go of the memory, which [na.Endpoint] promises that it does. If a handler waits, its
// worker is free meanwhile.
func (m *move) settle(ctx context.Context) bool {
	if s := scopeFrom(ctx); s != nil {
		if s.readsFor(m.to) {
			s.ref.PauseMoving()
			defer s.ref.ResumeMoving()
		} else {
			s.pause()
			defer s.resume()
		}
	}
	m.e.net.Drive(m.to, &m.over)
	wake := m.over.Park()
	if wake == nil {
		return true
	}
	select {
	case <-wake:
		return true
	case <-ctx.Done():
		m.t.Cancel()
		<-wake
		return false
	}
}

// result returns the outcome of a transfer that is over. The count is 0 if it failed, since the network does not report which bytes it
// has moved.
func (m *move) result() (int64, error) {
	if m.lost != nil {
		return 0, m.lost
	}
	if err := m.t.Err(); err != nil {
		return 0, m.fail(err)
	}
	return m.t.N(), nil
}

func (m *move) fail(err error) error { return errorFrom(m.d.op, "", m.r.ep.String(), err) }

// observe passes ev to the engine's monitor, if it has one.
func (m *move) observe(ctx context.Context, ev stats.Event) {
	if m.e.cfg.Monitor == nil {
		return
	}
	ev.Kind = stats.EventTransfer
	ev.Info = stats.CallInfo{RPC: m.d.op, Peer: m.r.ep, Parent: wire.NoParent}
	if s := scopeFrom(ctx); s != nil {
		ev.Info.Parent = s.id
	}
	m.e.observe(ctx, ev)
}

// release gives everything back. The transfer is over, or was never started.
func (m *move) release() {
	m.letGo()
	if m.record != nil {
		m.record.end()
	}
	if m.t != nil {
		m.t.Free()
	}
	if m.e != nil {
		m.e.end()
	}
	spare := m.spare()
	m.part, m.t, m.to, m.lost, m.e, m.record, m.pending = part{}, nil, nil, nil, nil, nil, nil
	m.over.Reset()
	if spare != nil {
		spare.Put(m)
	}
}

// letGo gives the local memory back: from here on its owner may close it.
func (m *move) letGo() {
	m.segs = m.segs[:cap(m.segs)]
	clear(m.segs) // join may have shortened it
	m.segs = m.segs[:0]
	if m.life != nil {
		m.life.Release()
		m.life = nil
	}
}

// permission is the refusal of a transfer by the mode of the memory on one side.
func permission(op, addr, side string, has, needs Mode) error {
	verb := "read"
	if needs == WriteOnly {
		verb = "written"
	}
	return &Error{Op: op, Addr: addr, Code: codes.Permission, Err: fmt.Errorf("the %s bulk is %v and would be %s", side, has, verb)}
}

// pendingMove is a move without a waiting goroutine: its completion ends a [Pending].
//
// Cancelling may come at any time and from anywhere, also after the completion. So the last of its users
// releases the move: the operation itself and the calls of abort.
type pendingMove struct {
	p     Pending[int64]
	m     *move
	group na.GroupDriver // receives for the transfer, from to; nil if the transfer ends by itself, or a goroutine waits for it
	to    na.Addr
	halt  context.CancelFunc // cancels a move that a goroutine waits for; nil: there is none
	refs  atomic.Int32       // the operation, and each abort that is under way

	n   int64 // the results of result
	err error
}

// startPending begins the transfer between b and r and returns the operation, which may be over already.
func startPending(ctx context.Context, r RemoteBulk, d *direction, b *Bulk) *Pending[int64] {
	n, err := r.common(d, b)
	pm := &pendingMove{m: newMove(ctx, part{r: r, d: d, n: n})}
	pm.p.op = pm
	pm.m.pending = &pm.p
	pm.refs.Store(1)
	if err == nil {
		err = pm.m.prepare(b, 0)
	}
	if err != nil {
		pm.finish(0, err)
		return &pm.p
	}
	to := r.ep.reached()
	if to == nil || pm.m.e.cfg.Monitor != nil {
		pm.runApart(ctx)
	} else {
		if g := pm.m.e.group; g != nil && g.DrivesTransfers(to) {
			pm.group, pm.to = g, to // before launch, after which the move may be over and belong to another transfer
		}
		pm.m.launch(to, pm)
		pm.p.watch(ctx)
	}
	return &pm.p
}

// runApart makes the transfer on a goroutine of its own, because a monitor or the resolution of a name may block.
func (pm *pendingMove) runApart(ctx context.Context) {
	ctx, pm.halt = context.WithCancel(ctx)
	go func() {
		defer pm.halt()
		pm.m.start(ctx)
		pm.finish(pm.m.wait(ctx))
	}()
}

// TransferDone implements [hg.TransferNotifier].
func (pm *pendingMove) TransferDone(*hg.Transfer) {
	pm.finish(pm.m.result()) // that it was a context which cancelled it, Pending knows
}

func (pm *pendingMove) finish(n int64, err error) {
	pm.n, pm.err = n, err
	pm.m.letGo()
	pm.unref()
	pm.p.end()
}

// abort implements operation. It has no effect on a transfer that is over.
func (pm *pendingMove) abort() {
	if pm.halt != nil {
		pm.halt()
		return
	}
	if !pm.ref() {
		return
	}
	pm.m.t.Cancel()
	pm.unref()
}

// driven implements operation.
func (pm *pendingMove) driven() (na.GroupDriver, na.Addr) { return pm.group, pm.to }

// result implements operation.
func (pm *pendingMove) result() (int64, error) { return pm.n, pm.err }

// ref keeps the move from being released, and reports false if it has been.
func (pm *pendingMove) ref() bool {
	for {
		n := pm.refs.Load()
		if n == 0 {
			return false
		}
		if pm.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (pm *pendingMove) unref() {
	if pm.refs.Add(-1) == 0 {
		pm.m.release()
	}
}

// chunkedTransfer is a transfer in chunks. The oldest chunk is waited for first, since a connection serves them in order.
type chunkedTransfer struct {
	r      RemoteBulk
	d      *direction
	b      *Bulk
	chunk  int64
	total  int64
	next   int64   // where the next chunk begins
	done   int64   // bytes from the start that have all been moved
	limit  int     // of chunks under way
	flying []*move // chunks under way, oldest first
}

func (t *chunkedTransfer) run(ctx context.Context) (int64, error) {
	for t.done < t.total {
		err := t.fill(ctx)
		if err == nil {
			err = t.waitOldest(ctx)
		}
		if err != nil {
			t.abandon(ctx)
			return t.done, err
		}
	}
	return t.done, nil
}

// fill starts as many chunks as may be under way.
func (t *chunkedTransfer) fill(ctx context.Context) error {
	for t.next < t.total && len(t.flying) < t.limit {
		n := min(t.chunk, t.total-t.next)
		m := newMove(ctx, part{t.r, t.d, t.next, n})
		if err := m.prepare(t.b, t.next); err != nil {
			m.release()
			return err
		}
		m.start(ctx)
		t.flying = append(t.flying, m)
		t.next += n
	}
	return nil
}

func (t *chunkedTransfer) waitOldest(ctx context.Context) error {
	m := t.flying[0]
	n, err := m.wait(ctx)
	m.release()
	t.flying = append(t.flying[:0], t.flying[1:]...)
	t.done += n
	return err
}

// abandon cancels the chunks in flight and waits until the network does not use their memory any more.
func (t *chunkedTransfer) abandon(ctx context.Context) {
	for _, m := range t.flying {
		if m.lost == nil {
			m.t.Cancel()
		}
	}
	for _, m := range t.flying {
		_, _ = m.wait(ctx) // the first chunk's error is the news
		m.release()
	}
}
