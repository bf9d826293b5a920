package xfer

import (
	"slices"
	"sync"
)

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

	// The mutex of the group guards the following.
	pieces      []*lanePiece // in ascending order
	sums        int          // that were asked for and have not come
	committed   bool
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
			return failf(CodeProtocol, "lane %d has a head of %d bytes and wishes %#x; both belong to the first lane", l.lane, o.Head, uint32(o.Wishes))
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
			return w, failf(CodeProtocol, "lane %d is for %q, and the transfer for %q", l.lane, l.name, g.name)
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
			return w, nil
		case g.last && len(g.queue)+len(g.sums)+len(g.removals) == 0:
			return Wanted{Last: true}, nil
		case g.mayAskLocked():
			if err := g.moreLocked(); err != nil {
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
		return 0, failf(CodeOther, "lane %d writes %d bytes at offset %d, which are not of its piece", l.lane, len(b), offset)
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
//
// +checklocksignore: it does not know the lock of exclusive.
func (l *laneFile) Commit() error {
	g := l.g
	g.mu.Lock()
	for l.lane == 0 && g.left > 0 && g.failed == nil {
		g.changed.Wait()
	}
	err := error(nil)
	if g.failed != nil {
		err = g.failed
	}
	if err == nil && !l.late {
		if l.committed = true; l.lane > 0 {
			g.left--
		} else {
			g.done = true
		}
		g.changed.Broadcast()
	}
	g.mu.Unlock()
	if err != nil || l.lane > 0 {
		return err
	}
	return l.exclusive(func(c Chooser) error {
		err := c.Commit()
		if err == nil {
			g.file = nil
		}
		return err
	})
}

// Discard implements [File]. That of the first lane drops the file; that of another makes the transfer fail, if it has not.
func (l *laneFile) Discard() error {
	g := l.g
	if l.lane > 0 {
		if !l.late {
			g.fail(failf(CodeCanceled, "lane %d of %d has ended early", l.lane, g.lanes))
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

// Interrupt implements [Interrupter].
func (l *laneFile) Interrupt() {
	g := l.g
	g.mu.Lock()
	l.interrupted = true
	g.changed.Broadcast()
	g.mu.Unlock()
	f := l.g.innerFile()
	if in, ok := f.(Interrupter); ok && (l.lane == 0 || g.hasFailed()) {
		g.broke.Do(in.Interrupt)
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
