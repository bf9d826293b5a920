package xfer

import (
	"context"
	"crypto/rand"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/internal/hostquota"
)

// laneBook has the transfers of several lanes of a receiver.
type laneBook struct {
	extra int64 // largest number of lanes of one host, without the first ones

	mu sync.Mutex
	// +checklocks:mu
	last uint32 // number of the newest transfer
	// +checklocks:mu
	groups map[uint32]*laneGroup
	// transfers that have ended, the oldest first. A lane of theirs that comes late is refused without a report, because its sender has done nothing wrong.
	// +checklocks:mu
	ended []*laneGroup
	// lanes that were granted, without the first ones
	// +checklocks:mu
	granted map[*hostquota.Account]int64
}

const (
	defaultLanes = 8       // of Receiver.MaxLanes
	leastLane    = 4 << 20 // bytes of a source for each lane, because a connection costs more than it gains for fewer
	mostEnded    = 64      // transfers that have ended and are remembered
	laneShare    = 4       // of the places of a receiver, one host has one in so many for lanes at most
)

// newLaneBook returns the book of a receiver with so many places for transfers.
func newLaneBook(places int64) *laneBook {
	return &laneBook{extra: places / laneShare, groups: map[uint32]*laneGroup{}, granted: map[*hostquota.Account]int64{}}
}

// grant makes the group of a transfer, for at most so many lanes; nil if the transfer gets one lane. The size of a pull is not known yet, so settle gives back the lanes for which its
// file is too small. The further lanes get half of the places that their host could take now at most, so that its other transfers find some, and with few places those of other
// hosts.
func (b *laneBook) grant(a *hostquota.Account, lanes int64, agreed *agreement) *laneGroup {
	b.mu.Lock()
	defer b.mu.Unlock()
	lanes = min(lanes, b.extra-b.granted[a]+1)
	if !agreed.pull {
		lanes = lanesFor(lanes, agreed.size)
	}
	for lanes > 1 && !a.May(hostquota.Connections, 2*(lanes-1)) {
		lanes--
	}
	if lanes < 2 {
		return nil
	}
	b.granted[a] += lanes - 1
	b.last++
	g := newLaneGroup(uint8(lanes), agreed)
	g.account, g.ref.number = a, b.last
	_, _ = rand.Read(g.ref.secret[:]) // never fails (crypto/rand)
	b.groups[b.last] = g
	return g
}

// settle gives the lanes of a pull back that are more than so many, because its file is too small for them. They are not granted any more.
func (b *laneBook) settle(g *laneGroup, lanes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	b.giveLocked(g.account, int64(g.lanes)-int64(lanes))
	g.lanes = uint8(lanes)
}

// giveLocked takes so many lanes of a host off those that were granted.
//
// +checklocks:b.mu
func (b *laneBook) giveLocked(a *hostquota.Account, lanes int64) {
	if b.granted[a] -= lanes; b.granted[a] == 0 {
		delete(b.granted, a)
	}
}

// lanesFor returns the number of lanes for so many bytes, of those that may be had.
func lanesFor(lanes, size int64) int64 { return min(lanes, size/leastLane) }

// newLaneGroup makes the group of a transfer of so many lanes, of which agreed is the agreement of the first.
func newLaneGroup(lanes uint8, agreed *agreement) *laneGroup {
	g := &laneGroup{lanes: lanes, agreed: agreed.size, size: agreed.size, digest: agreed.digest, pull: agreed.pull, chunks: make([]int64, lanes),
		piece: int64(max(agreed.buffers/2, 1)) * int64(agreed.chunk), cancels: map[uint8]context.CancelCauseFunc{}}
	g.changed.L = &g.mu
	return g
}

// find returns the group of a reference; nil if there is none. over says that its transfer has ended.
func (b *laneBook) find(ref *laneRef) (g *laneGroup, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g = b.groups[ref.number]
	if g == nil {
		if i := slices.IndexFunc(b.ended, func(g *laneGroup) bool { return g.ref.number == ref.number }); i >= 0 {
			g, over = b.ended[i], true
		}
	}
	if g == nil || !ref.opens(&g.ref.secret) {
		return nil, false
	}
	return g, over
}

// remove ends the group of a transfer.
func (b *laneBook) remove(g *laneGroup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.groups, g.ref.number)
	if len(b.ended) == mostEnded {
		b.ended = slices.Delete(b.ended, 0, 1)
	}
	b.ended = append(b.ended, &laneGroup{ref: g.ref}) // without its file
	b.giveLocked(g.account, int64(g.lanes)-1)
}

// laneGroup is one transfer of several lanes at the side that stores: a receiver, or a puller. It asks the file for the ranges that it needs, cuts them into pieces, and gives each
// lane a few of them at a time, so that a lane that is faster than the others carries more. A server of files has a laneGroup for each pull too, for the source that its lanes read
// (servedLanes); it uses none of the states.
//
//	opening     the first lane makes the file, and stores the head
//	spreading   pieces are given to the lanes, and stored
//	closing     all lanes but the first have ended; the file gets its name
//	done        a lane that comes now has nothing to carry
//	failed      one lane has failed, and all others end with its reason
type laneGroup struct {
	account *hostquota.Account // of the host whose lanes were granted; nil at a puller
	ref     laneRef
	lanes   uint8 // that were granted; of a pull it is set again, with mu, when the size of the file is known
	agreed  int64 // size of the file in the agreement of the first lane; -1: a pull
	digest  Digest
	pull    bool
	piece   int64 // bytes of a piece, half of the buffers of the first lane
	steps   atomic.Uint64
	shared  *sharedProgress // nil: none

	// files guards the file, of which one goroutine at a time calls the methods, but WriteAt if anyOrder. It is locked before mu.
	files sync.RWMutex
	// set before the first lane's Choose; nil after Commit and Discard
	// +checklocks:files
	file     Chooser
	anyOrder bool // set with file, before started, and not changed after
	// returns the reason for the end of the file's context for an error that says only that; set with anyOrder
	ended func(error) error

	mu      sync.Mutex
	changed sync.Cond // of anything below
	// +checklocks:mu
	taken, opened uint64 // bits of the lanes that were requested, and of those that have sent their OPEN
	// ends the transfer of a lane
	// +checklocks:mu
	cancels map[uint8]context.CancelCauseFunc
	// the lane's name, which that of each other lane must equal
	// +checklocks:mu
	name string
	// bits of the lanes beside the first that were given a piece
	// +checklocks:mu
	carried uint64
	// lanes beside the first that have joined and not ended
	// +checklocks:mu
	left int
	// chunks of each lane beside the first; those of a lane that succeeds are there before the first lane goes on to its end
	// +checklocks:mu
	chunks []int64
	// the file itself, without the locks; nil: it was not made yet
	// +checklocks:mu
	inner File
	// bytes of the file; -1: a pull of which the file is not open
	// +checklocks:mu
	size int64
	// +checklocks:mu
	head int64
	// the head is stored
	// +checklocks:mu
	started bool
	// ranges of data that no lane has
	// +checklocks:mu
	queue []Range
	// sums and removals for the first lane
	// +checklocks:mu
	sums []Range
	// +checklocks:mu
	removals []Removal
	// pieces that the lanes have, in ascending order
	// +checklocks:mu
	under []*lanePiece
	// one lane asks the file for more
	// +checklocks:mu
	asking bool
	// the file had nothing when it was asked last, and stored was so much
	// +checklocks:mu
	idle bool
	// +checklocks:mu
	asked int64
	// bytes, and answers of sums, that were stored
	// +checklocks:mu
	stored int64
	// bytes of data that the file wants beyond the head
	// +checklocks:mu
	data int64
	// the file wants no more
	// +checklocks:mu
	last bool
	// +checklocks:mu
	done bool
	// +checklocks:mu
	failed *failure
	// at a server of files
	// +checklocks:mu
	served servedLanes
}

// lanePiece is a range of data that one lane carries.
type lanePiece struct{ at, end int64 }

// claim takes the number of a lane.
func (g *laneGroup) claim(lane uint8) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if lane == 0 || lane >= g.lanes || g.taken>>lane&1 != 0 {
		return failf(CodeProtocol, "the request is for lane %d of a transfer of %d lanes; the lane was not granted, or another connection has it", int(lane)+1, g.lanes)
	}
	g.taken |= 1 << lane
	return nil
}

// enter keeps the function that ends the transfer of a lane, and calls it if another lane has failed already.
func (g *laneGroup) enter(lane uint8, cancel context.CancelCauseFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancels[lane] = cancel
	if g.failed != nil {
		cancel(g.failed)
	}
}

// open makes the file of the first lane. ctx is that of f.
func (g *laneGroup) open(ctx context.Context, name string, f File) *laneFile {
	c, ok := f.(Chooser)
	if !ok {
		c = &everything{File: f}
	}
	w, ok := f.(AnyOrder)
	g.files.Lock()
	defer g.files.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.file, g.anyOrder = c, ok && w.AnyOrder()
	g.ended = func(err error) error { return reasonOf(ctx, err) }
	g.name, g.inner = name, f
	return &laneFile{g: g}
}

// innerFile returns the file itself; nil: it was not made yet.
func (g *laneGroup) innerFile() File {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inner
}

// hasFailed reports whether a lane has failed.
func (g *laneGroup) hasFailed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed != nil
}

// join makes the file of a lane beside the first. The first lane may not have made its own file yet. chunks returns the number of chunks that have come on the lane.
func (g *laneGroup) join(lane uint8, name string, chunks func() int64) (File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed != nil {
		return nil, g.failed
	}
	if !g.done {
		g.left++
		g.opened |= 1 << lane
	}
	return &laneFile{g: g, lane: lane, name: name, late: g.done, chunks: chunks}, nil
}

// fail ends all lanes with the failure of one. A later failure replaces the reason if it is more likely the cause, because a lane may notice a consequence before another lane reports
// the cause.
func (g *laneGroup) fail(why *failure) {
	g.mu.Lock()
	if g.failed != nil || g.done {
		if g.failed != nil && why.consequence() < g.failed.consequence() {
			g.failed = why
		}
		g.mu.Unlock()
		return
	}
	g.failed = why
	for _, cancel := range g.cancels {
		cancel(why)
	}
	g.changed.Broadcast()
	g.mu.Unlock()
}

// end notes the end of the transfer of a lane. One that has not sent its OPEN has no part of the file.
func (g *laneGroup) end(lane uint8, chunks int64, err error) {
	g.mu.Lock()
	delete(g.cancels, lane)
	g.chunks[lane] = chunks
	counts := lane == 0 || g.opened>>lane&1 != 0
	g.mu.Unlock()
	if err == nil || !counts {
		return
	}
	f := asFailure(err)
	if lane > 0 {
		f = laneFailure(lane, g.lanes, f)
	}
	g.fail(f)
}

// result completes the result of the first lane.
func (g *laneGroup) result(res *Result, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	res.Lanes = bits.OnesCount64(g.carried) + 1
	for _, n := range g.chunks[1:] {
		res.Chunks += n
	}
	if err == nil {
		res.Kept = g.size - g.head - g.data
	}
}

// moreLocked asks the file for further ranges. mu is released meanwhile.
//
// +checklocks:g.mu
func (g *laneGroup) moreLocked() error {
	g.asking, g.asked = true, g.stored
	g.mu.Unlock()
	w, err := g.want()
	g.mu.Lock()
	g.asking = false
	g.changed.Broadcast()
	if err != nil {
		return err
	}
	g.removals = w.Removals
	for _, r := range w.Ranges {
		if r.Sum {
			g.sums = append(g.sums, r)
			continue
		}
		g.queue = append(g.queue, r)
		g.data += r.Length
	}
	g.idle, g.last = len(w.Ranges)+len(w.Removals) == 0, w.Last
	if w.Last {
		g.shared.advance(g.size - g.head - g.data)
	}
	return nil
}

// want asks the file.
func (g *laneGroup) want() (Wanted, error) {
	g.files.Lock()
	defer g.files.Unlock()
	if g.file == nil {
		return Wanted{}, errLaneOver()
	}
	return g.file.Want()
}

// errLaneOver returns the error of a lane of which the transfer has ended. The reason is that of another lane.
func errLaneOver() error {
	return failf(CodeCanceled, "the transfer of this lane is over")
}

// takeLocked takes the next piece out of the queue.
//
// +checklocks:g.mu
func (g *laneGroup) takeLocked() (*lanePiece, Range) {
	r := &g.queue[0]
	n := min(r.Length, g.piece)
	got := Range{Offset: r.Offset, Length: n}
	if r.Offset, r.Length = r.Offset+n, r.Length-n; r.Length == 0 {
		g.queue = g.queue[1:]
	}
	p := &lanePiece{got.Offset, got.Offset + n}
	g.under = append(g.under, p)
	return p, got
}

// most returns the number of pieces that a lane has at a time.
func (g *laneGroup) most() int {
	if g.anyOrder {
		return piecesAnyOrder
	}
	return piecesInOrder
}

// mayAskLocked reports whether the file may be asked for more.
//
// +checklocks:g.mu
func (g *laneGroup) mayAskLocked() bool {
	return g.started && !g.last && !g.asking && len(g.queue)+len(g.sums)+len(g.removals) == 0 && !(g.idle && g.stored == g.asked)
}

// AnyOrder is a [File] that says whether its WriteAt may be called with offsets in any order, and by several goroutines at once. Otherwise a transfer of several
// lanes writes in ascending order, as one of a single lane does, so that a lane waits for those before it.
type AnyOrder interface {
	File
	AnyOrder() bool
}

// The numbers of pieces that a lane has at a time. A lane that must wait for its turn has no more than its buffers can hold.
const (
	piecesInOrder  = 2
	piecesAnyOrder = 4
)

// laneFile is the part of one lane in the file of a laneGroup.
type laneFile struct {
	g    *laneGroup
	lane uint8  // 0: the first
	name string // that the lane's OPEN has
	late bool   // the transfer was complete when the lane has joined

	chunks func() int64 // returns the chunks that have come; nil for the first lane

	// The mutex of the group guards the following.
	pieces      []*lanePiece // in ascending order
	sums        int          // that were asked for and have not come
	interrupted bool
}

// checkLocked returns the reason for which the lane cannot go on.
//
// +checklocks:l.g.mu
func (l *laneFile) checkLocked() error {
	switch {
	case l.g.failed != nil:
		return l.g.failed
	case l.interrupted:
		return errLaneOver()
	}
	return nil
}

// Choose implements [Chooser]. The first lane passes the offer on.
func (l *laneFile) Choose(o Offer) error {
	g := l.g
	if l.lane > 0 {
		if o.Head != 0 || o.Wishes != 0 {
			return failf(CodeProtocol, "lane %d has a head of %d bytes and wishes %#x; both belong to the first lane", int(l.lane)+1, o.Head, uint32(o.Wishes))
		}
		return nil
	}
	g.mu.Lock()
	g.head = o.Head
	g.mu.Unlock()
	g.files.Lock()
	defer g.files.Unlock()
	return g.file.Choose(o)
}

// fail ends all lanes with a failure of the file. It does so before this lane sends the failure to the peer, because the peer repeats it on the other lanes, and that repetition
// would count as the reason otherwise. Later failures of the file do not count, because its methods may fail when its context ends.
func (l *laneFile) fail(err error) {
	if l.g.hasFailed() {
		return
	}
	f := asFailure(err)
	if l.lane > 0 {
		f = laneFailure(l.lane, l.g.lanes, f)
	}
	l.g.fail(f)
}

// Want implements [Chooser]. It waits until the file wants something of the lane.
func (l *laneFile) Want() (w Wanted, err error) {
	if l.late {
		return Wanted{Last: true}, nil
	}
	g := l.g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps.Add(1)
	if l.lane == 0 && !g.started {
		g.started = true
		g.changed.Broadcast()
	}
	for {
		if err := l.checkLocked(); err != nil {
			return w, err
		}
		if g.started && l.lane > 0 && l.name != g.name {
			return w, failf(CodeProtocol, "lane %d is for %q, and the transfer for %q", int(l.lane)+1, l.name, g.name)
		}
		if l.lane == 0 && len(g.sums)+len(g.removals) > 0 {
			w.Removals, w.Ranges = g.removals, g.sums
			l.sums += len(g.sums)
			g.removals, g.sums = nil, nil
			g.changed.Broadcast()
			return w, nil
		}
		switch {
		case len(g.queue) > 0 && len(l.pieces) < g.most():
			p, r := g.takeLocked()
			l.pieces, w.Ranges = append(l.pieces, p), []Range{r}
			if l.lane > 0 {
				g.carried |= 1 << l.lane
			}
			return w, nil
		case g.last && len(g.queue)+len(g.sums)+len(g.removals) == 0:
			return Wanted{Last: true}, nil
		case g.mayAskLocked():
			if err := g.moreLocked(); err != nil {
				err = g.ended(err)
				g.mu.Unlock()
				l.fail(classed(CodeStorage, err))
				g.mu.Lock()
				return w, err
			}
		case len(l.pieces)+l.sums > 0:
			return w, nil // the lane asks again when some of it is stored
		default:
			g.changed.Wait()
		}
	}
}

// WriteAt implements [io.WriterAt]. It waits for the pieces before that of the offset, unless the file takes them in any order.
func (l *laneFile) WriteAt(b []byte, offset int64) (int, error) {
	g := l.g
	g.mu.Lock()
	if l.lane == 0 && offset < g.head {
		g.mu.Unlock()
		return l.write(b, offset)
	}
	if len(l.pieces) == 0 || l.pieces[0].at != offset || offset+int64(len(b)) > l.pieces[0].end {
		g.mu.Unlock()
		return 0, failf(CodeOther, "lane %d writes %d bytes at offset %d, which are not of its piece", int(l.lane)+1, len(b), offset)
	}
	p := l.pieces[0]
	for !g.anyOrder && g.under[0] != p && l.checkLocked() == nil {
		g.changed.Wait()
	}
	err := l.checkLocked()
	g.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := l.write(b, offset)
	if err != nil {
		err = g.ended(err)
		l.fail(writeFailure(err, offset+int64(n)))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.at += int64(n); p.at == p.end {
		l.pieces = l.pieces[1:]
		i := slices.Index(g.under, p)
		g.under = slices.Delete(g.under, i, i+1)
	}
	g.stored += int64(n)
	g.changed.Broadcast()
	return n, err
}

// write writes to the file.
//
// +checklocksignore: it does not know locks behind an interface.
func (l *laneFile) write(b []byte, offset int64) (int, error) {
	g := l.g
	g.steps.Add(1)
	lock := sync.Locker(&g.files)
	if g.anyOrder {
		lock = g.files.RLocker()
	}
	lock.Lock()
	defer lock.Unlock()
	f := g.file
	if f == nil {
		return 0, errLaneOver()
	}
	return f.WriteAt(b, offset)
}

// Sum implements [Chooser].
func (l *laneFile) Sum(r Range, sum [SumLen]byte) error {
	g := l.g
	g.steps.Add(1)
	err := l.exclusive(func(c Chooser) error { return c.Sum(r, sum) })
	if err != nil {
		err = g.ended(err)
		l.fail(classed(CodeStorage, err))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l.sums--
	g.stored++
	g.changed.Broadcast()
	return err
}

// Spare implements [Chooser].
func (l *laneFile) Spare(n int) {
	_ = l.exclusive(func(c Chooser) error { c.Spare(n); return nil }) // it fails if the transfer is over
}

// exclusive calls do with the file, while no other goroutine uses it.
func (l *laneFile) exclusive(do func(Chooser) error) error {
	l.g.files.Lock()
	defer l.g.files.Unlock()
	if l.g.file == nil {
		return errLaneOver()
	}
	return do(l.g.file)
}

// Commit implements [File]. That of the first lane waits for the ends of the others, and gives the file its name.
func (l *laneFile) Commit() error {
	g, chunks := l.g, int64(0)
	if l.lane > 0 {
		chunks = l.chunks()
	}
	g.mu.Lock()
	for l.lane == 0 && g.left > 0 && g.failed == nil {
		g.changed.Wait()
	}
	err := error(nil)
	if g.failed != nil {
		err = g.failed
	}
	if err == nil && !l.late {
		if l.lane > 0 {
			g.left--
			g.chunks[l.lane] = chunks
		} else {
			g.done = true
		}
		g.changed.Broadcast()
	}
	g.mu.Unlock()
	if err != nil || l.lane > 0 {
		return err
	}
	g.files.Lock()
	defer g.files.Unlock()
	if g.file == nil {
		return errLaneOver()
	}
	if err = g.file.Commit(); err == nil {
		g.file = nil
	}
	return err
}

// Discard implements [File]. That of the first lane drops the file; that of another makes the transfer fail, if it has not.
func (l *laneFile) Discard() error {
	g := l.g
	if l.lane > 0 {
		if !l.late && !g.hasFailed() {
			g.fail(failf(CodeCanceled, "lane %d of %d has ended early", int(l.lane)+1, g.lanes))
		}
		return nil
	}
	g.files.Lock()
	defer g.files.Unlock()
	f := g.file
	g.file = nil
	if f == nil {
		return nil
	}
	return f.Discard()
}

// interrupt makes the methods return that wait for other lanes, because the lane has ended.
func (l *laneFile) interrupt() {
	g := l.g
	g.mu.Lock()
	defer g.mu.Unlock()
	l.interrupted = true
	g.changed.Broadcast()
}

// interruptible remembers the file of a transfer, if it is that of a lane.
type interruptible struct{ file atomic.Pointer[laneFile] }

// keep returns the result of an Open.
func (i *interruptible) keep(f File, err error) (File, error) {
	if l, ok := f.(*laneFile); ok && err == nil {
		i.file.Store(l)
	}
	return f, err
}

// interrupt interrupts the file of a lane.
func (i *interruptible) interrupt() {
	if l := i.file.Load(); l != nil {
		l.interrupt()
	}
}

// Steps implements [Worker].
func (l *laneFile) Steps() uint64 {
	n := l.g.steps.Load()
	if w, ok := l.g.innerFile().(Worker); ok {
		n += w.Steps()
	}
	return n
}
