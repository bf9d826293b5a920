//go:build linux

package rdmacore

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cinnabar/verbs"
)

// errOverrun is prepared, since Poll does not allocate.
var errOverrun error = &verbs.Error{Op: "poll", Kind: verbs.ErrCQOverrun,
	Detail: "completions were lost; make the queue as deep as all requests that can be outstanding"}

// cq is a completion queue with a completion channel of its own.
type cq struct {
	dev     *device
	h       cqHandle
	channel channelHandle
	serial  uint64
	context any
	watch   *watcher // of the events; it has a goroutine if followed is true
	seat    seat
	events  chan struct{} // capacity 1: the channel of Event
	overrun atomic.Bool
	// followed says that events are read for Event or for the bell, also while no goroutine is in Park.
	followed atomic.Bool

	mu    sync.Mutex
	batch pollBatch // guarded by mu
	// Completions that were taken off the queue on behalf of others than its
	// reader, oldest first.
	// +checklocks:mu
	stash []verbs.WC
	// Tokens of requests posted in ERR, which some drivers keep: they come back
	// when the library has nothing more.
	// +checklocks:mu
	late []uint64
	// +checklocks:mu
	depth int
	// closed and made anew at each event, for Disconnect, which waits beside the reader
	// +checklocks:mu
	bell chan struct{}
	// +checklocks:mu
	closed bool
}

func (d *device) CreateCQ(depth int, context any) (verbs.CQDriver, error) {
	const op = "create completion queue"
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if depth < 1 || depth > d.attr.MaxCQE {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "depth %d; 1 to %d are possible", depth, d.attr.MaxCQE)
	}
	c := &cq{dev: d, context: context, events: make(chan struct{}, 1), bell: make(chan struct{})}
	d.mu.Lock()
	c.serial = d.nextSerial()
	d.cqs[c.serial] = c
	d.mu.Unlock()
	if err := c.open(depth); err != nil {
		d.mu.Lock()
		delete(d.cqs, c.serial)
		d.mu.Unlock()
		return nil, roomError(op, err)
	}
	return c, nil
}

// open makes channel and queue, or nothing.
func (c *cq) open(depth int) error {
	ch, fd, err := createChannel(c.dev.ctx)
	if err != nil {
		return err
	}
	h, granted, err := createCQ(c.dev.ctx, depth, c.serial, ch)
	if err != nil {
		return errors.Join(err, destroyChannel(ch))
	}
	c.mu.Lock()
	c.h, c.channel, c.depth = h, ch, granted
	c.mu.Unlock()
	if c.watch, err = newWatcher(fd, c.readEvent); err != nil {
		return errors.Join(err, destroyCQ(h), destroyChannel(ch))
	}
	if err := c.seat.open(fd); err != nil {
		c.watch.close()
		return errors.Join(err, destroyCQ(h), destroyChannel(ch))
	}
	return nil
}

// readEvent takes one event off the completion channel.
func (c *cq) readEvent() error {
	if err := nextCQEvent(c.channel); err != nil {
		return err
	}
	c.notify()
	return nil
}

// follow makes the watcher read events from now on.
func (c *cq) follow() {
	if !c.followed.Load() {
		c.followed.Store(true) // before the watcher reads an event, because Park calls notify only then
		c.watch.start()
	}
}

// notify wakes the reader of Event, the goroutine in Park and all goroutines that wait at the bell.
func (c *cq) notify() {
	c.seat.rouse()
	select {
	case c.events <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.bell)
	c.bell = make(chan struct{})
}

func (c *cq) Event() <-chan struct{} {
	c.follow()
	return c.events
}

// vendorSiw is the vendor of the kernel's siw (SIW_VENDOR_ID). A queue of it that
// is armed for solicited messages alone never rings: siw does not look at the
// message's bit (siw_rqe_complete). So it is armed for all: one event too many
// beats a program that waits for ever.
const vendorSiw = 0x626d74

func (c *cq) Arm(solicitedOnly bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return verbs.Errorf("arm", verbs.ErrClosed, "the completion queue is closed")
	}
	if c.dev.removal.isGone() {
		return nil // there will be no event; Poll says why
	}
	if err := armCQ(c.h, solicitedOnly && c.dev.attr.VendorID != vendorSiw); err != nil {
		return &verbs.Error{Op: "arm", Err: err}
	}
	return nil
}

// Poll implements verbs.CQDriver.
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.stash)
	if n > 0 {
		c.stash = append(c.stash[:0], c.stash[n:]...)
	}
	for n < len(wc) {
		got, more, err := c.pollLocked(wc[n:])
		n += got
		if err != nil && n == 0 {
			return 0, err
		}
		if !more {
			break
		}
	}
	if n < len(wc) && len(c.late) > 0 {
		n += c.lateLocked(wc[n:])
	}
	if n == 0 && len(wc) > 0 {
		if err := c.broken(); err != nil {
			return 0, err
		}
	}
	c.dev.stats.completions.Add(uint64(n))
	return n, nil
}

// broken says why no completion will come any more, nil if one may.
func (c *cq) broken() error {
	switch {
	case c.overrun.Load():
		return errOverrun
	case c.dev.removal.isGone():
		return c.dev.removedErr("poll")
	}
	return nil
}

// pollLocked makes one crossing. more is false when the library had no more.
//
// +checklocks:c.mu
func (c *cq) pollLocked(wc []verbs.WC) (n int, more bool, err error) {
	if c.closed {
		return 0, false, verbs.Errorf("poll", verbs.ErrClosed, "the completion queue is closed")
	}
	want := min(len(wc), batchSize)
	c.dev.stats.polls.Add(1)
	got, err := c.batch.poll(c.h, want)
	if err != nil {
		return 0, false, &verbs.Error{Op: "poll", Err: err}
	}
	var q *qp
	var last uint64
	for i := range got {
		kind, serial, pos := splitToken(c.batch.token(i))
		wc[n] = c.batch.at(i)
		if kind == kindShared {
			if s := c.dev.findSRQ(serial); s != nil {
				wc[n].ID = s.release(pos)
				n++
				c.noteFailure(&wc[n-1])
			}
			continue
		}
		if q == nil || serial != last {
			q, last = c.dev.findQP(serial), serial
		}
		if q != nil && q.complete(kind, pos, &wc[n]) { // else closed or reset meanwhile: its completions are gone
			n++
		}
	}
	return n, got == want, nil
}

// lateLocked flushes requests that the device was not asked to take.
//
// +checklocks:c.mu
func (c *cq) lateLocked(wc []verbs.WC) (n int) {
	used := 0
	for _, t := range c.late {
		if n == len(wc) {
			break
		}
		used++
		kind, serial, pos := splitToken(t)
		if q := c.dev.findQP(serial); q != nil && q.flush(kind, pos, &wc[n]) {
			n++
		}
	}
	c.late = append(c.late[:0], c.late[used:]...)
	return n
}

// purge forgets the gathered completions of a queue pair that is closed or reset.
func (c *cq) purge(num uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stash = slices.DeleteFunc(c.stash, func(wc verbs.WC) bool { return wc.QPNum == num })
}

// noteFailure reports a failed receive from a shared queue to its queue pair.
func (c *cq) noteFailure(wc *verbs.WC) {
	if wc.Status == verbs.StatusSuccess {
		return
	}
	if q := c.dev.findNum(wc.QPNum); q != nil {
		q.broken(wc.Err())
	}
}

// gather polls all completions into the stash, for a Disconnect that waits for
// its own completion among the reader's, and returns the next bell.
func (c *cq) gather() <-chan struct{} {
	c.follow()
	c.mu.Lock()
	defer c.mu.Unlock()
	var wc [batchSize]verbs.WC
	for more := true; more; {
		var n int
		n, more, _ = c.pollLocked(wc[:]) // the reader gets the error when he polls
		c.stash = append(c.stash, wc[:n]...)
	}
	return c.bell
}

// addLate keeps the token of a request that the device was not asked to take.
func (c *cq) addLate(token uint64) {
	c.mu.Lock()
	c.late = append(c.late, token)
	c.mu.Unlock()
	c.notify()
}

// Resize implements verbs.CQDriver.
func (c *cq) Resize(depth int) error {
	const op = "resize completion queue"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the completion queue is closed")
	}
	granted, err := resizeCQ(c.h, depth)
	switch {
	case err == nil:
		c.depth = granted
		return nil
	case errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP):
		return verbs.Unsupported(op, "the driver of %s cannot; make the queue deep enough at once", c.dev.name)
	case errors.Is(err, syscall.EINVAL):
		return verbs.Errorf(op, verbs.ErrInvalid, "depth %d; more completions are waiting, or the device allows fewer", depth)
	}
	return &verbs.Error{Op: op, Err: err}
}

// Moderate implements verbs.CQDriver.
func (c *cq) Moderate(count int, period time.Duration) error {
	const op = "moderate completion queue"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return verbs.Errorf(op, verbs.ErrClosed, "the completion queue is closed")
	}
	switch err := moderateCQ(c.h, count, period); {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP):
		return verbs.Unsupported(op, "the driver of %s cannot delay events; poll several completions for each event instead", c.dev.name)
	case errors.Is(err, syscall.EINVAL):
		return verbs.Errorf(op, verbs.ErrInvalid, "device %s refuses %d completions with a period of %v; choose smaller values", c.dev.name, count, period)
	default:
		return &verbs.Error{Op: op, Err: err}
	}
}

// SetTimestamps implements verbs.CQDriver.
func (c *cq) SetTimestamps(bool) error {
	return verbs.Unsupported("set time stamps", "device %s is polled with ibv_poll_cq, whose completions carry no time; read the clock after CQ.Poll", c.dev.name)
}

func (c *cq) Depth() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.depth
}

func (c *cq) Close() error {
	const op = "close completion queue"
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	c.watch.close()
	c.seat.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.dev.released(destroyCQ(c.h)); err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	c.closed = true
	c.dev.mu.Lock()
	delete(c.dev.cqs, c.serial)
	c.dev.mu.Unlock()
	if err := c.dev.released(destroyChannel(c.channel)); err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	return nil
}
