package fault

import (
	"slices"
	"time"

	"cinnabar/verbs"
)

// patience is how many polls in a row may find nothing before a completion that
// waits for others goes on without them.
const patience = 64

// cq is a completion queue. Everything after quit is guarded by the injector's
// mutex.
type cq struct {
	in      *Injector
	inner   verbs.CQDriver
	context any
	event   chan struct{} // capacity 1
	quit    chan struct{} // closed by Close, ends the goroutine of pass

	polls   int
	idle    int         // polls in a row that found nothing
	ready   []verbs.WC  // to be handed out
	lanes   []*lane     // queues with late completions
	given   map[*qp]int // completions handed out, by queue pair
	total   int         // and in all
	overrun bool
	qps     []*qp // once for each direction
}

// lane holds the late completions of one work queue, in order.
type lane struct {
	q    *qp
	recv bool
	late []lateWC
}

// lateWC is a completion that waits for a poll count or for other queue pairs.
type lateWC struct {
	wc     verbs.WC
	due    int // the queue's clock
	others int // completions of other queue pairs handed out in all; 0: counts not
}

// CreateCQ makes a queue and the goroutine that passes its events on: the layer
// has events of its own, and a program reads one channel.
func (d *device) CreateCQ(depth int, cqContext any) (verbs.CQDriver, error) {
	if err := d.in.failure(AtCreateCQ, 0); err != nil {
		return nil, err
	}
	inner, err := d.inner.CreateCQ(depth, cqContext)
	if err != nil {
		return nil, err
	}
	c := &cq{in: d.in, inner: inner, context: cqContext, event: make(chan struct{}, 1), quit: make(chan struct{}), given: make(map[*qp]int)}
	d.in.mu.Lock()
	d.in.cqs = append(d.in.cqs, c)
	d.in.mu.Unlock()
	d.in.wg.Go(c.pass)
	return c, nil
}

// pass forwards the events of the queue below until Close.
func (c *cq) pass() {
	for {
		select {
		case <-c.inner.Event():
			c.signal()
		case <-c.quit:
			return
		}
	}
}

func (c *cq) signal() {
	select {
	case c.event <- struct{}{}:
	default: // one unread event is enough
	}
}

func (c *cq) Event() <-chan struct{} { return c.event }
func (c *cq) Depth() int             { return c.inner.Depth() }
func (c *cq) Resize(depth int) error { return c.inner.Resize(depth) }

// Moderate passes on. It delays only events of the device below, not those that the layer raises.
func (c *cq) Moderate(count int, period time.Duration) error { return c.inner.Moderate(count, period) }

// SetTimestamps passes on. A completion that the layer makes has no stamp; a delayed one keeps the stamp of the device below.
func (c *cq) SetTimestamps(on bool) error { return c.inner.SetTimestamps(on) }

// Close releases the queue and ends its goroutine.
func (c *cq) Close() error {
	if err := c.inner.Close(); err != nil {
		return err
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	select {
	case <-c.quit:
	default:
		close(c.quit)
	}
	c.ready, c.lanes, c.given = nil, nil, nil
	return nil
}

// use and drop count a queue pair in and out.
func (c *cq) use(q *qp) { c.qps = append(c.qps, q) }

func (c *cq) drop(q *qp) {
	if i := slices.Index(c.qps, q); i >= 0 {
		c.qps = slices.Delete(c.qps, i, i+1)
	}
	for _, l := range c.lanes {
		if l.q == q {
			for _, w := range l.late {
				c.ready = append(c.ready, w.wc)
			}
			l.late = nil
		}
	}
}

// clock is the time on this queue, in polls.
func (c *cq) clock() int { return c.polls + c.in.clock }

// Arm passes on. If something becomes ready by polling alone, the event comes at
// once, so that a program which parks goes on polling.
func (c *cq) Arm(solicitedOnly bool) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.tick()
	breaking := slices.ContainsFunc(c.qps, func(q *qp) bool { return q.breaking })
	if err := c.inner.Arm(solicitedOnly && !breaking); err != nil {
		return err
	}
	late := slices.ContainsFunc(c.lanes, func(l *lane) bool { return len(l.late) > 0 })
	if c.overrun || late || slices.ContainsFunc(c.qps, (*qp).waiting) {
		c.signal()
	}
	return nil
}

// Poll takes completions from below, changes them as the plan says, and hands out
// those that are ready. It takes no more than fit wc, so that the depth of the
// queue keeps its meaning.
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.polls++
	c.tick()
	n := c.hand(wc)
	var err error
	if n < len(wc) && !c.overrun {
		below := make([]verbs.WC, len(wc)-n)
		var m int
		m, err = c.inner.Poll(below)
		for i := range m {
			c.take(below[i])
		}
		c.release()
		n += c.hand(wc[n:])
		if m == 0 && n == 0 {
			c.idle++
		} else {
			c.idle = 0
		}
	}
	if n > 0 || len(wc) == 0 {
		return n, nil
	}
	if c.overrun {
		return 0, verbs.Errorf("poll", verbs.ErrCQOverrun, "completions were lost, as the fault plan asked")
	}
	return 0, err
}

// tick lets time act: gates open, late completions become ready.
func (c *cq) tick() {
	for _, q := range slices.Clone(c.qps) {
		q.tick()
	}
	c.release()
}

// hand moves ready completions into wc.
func (c *cq) hand(wc []verbs.WC) int {
	n := copy(wc, c.ready)
	c.ready = slices.Delete(c.ready, 0, n)
	for i := range n {
		c.total++
		if q := c.in.byNum[wc[i].QPNum]; q != nil {
			c.given[q]++
		}
	}
	return n
}

// take is one completion from below.
func (c *cq) take(wc verbs.WC) {
	t := tag(wc.ID)
	switch t.kind() {
	case kindSend:
		q := c.in.qps[t.object()]
		c.finish(q, wc, q.sends.takeOrdered(t.seq()), false)
	case kindRecv:
		q := c.in.qps[t.object()]
		c.finish(q, wc, q.recvs.take(t.seq()), true)
	case kindShared:
		c.finish(c.in.byNum[wc.QPNum], wc, c.in.srqs[t.object()].recvs.take(t.seq()), true)
	case kindAgain: // the program has no such request
	}
}

// finish applies the plan to a request that has completed below.
func (c *cq) finish(q *qp, wc verbs.WC, e entry, recv bool) {
	wc.ID = e.id
	if q == nil { // the last completions of a queue pair that was closed
		c.ready = append(c.ready, wc)
		return
	}
	breaks := false
	if wc.Status == verbs.StatusSuccess {
		switch a := e.do.(type) {
		case status:
			if breaks = a.status != verbs.StatusSuccess; !breaks && !recv {
				wc.Op = sendOps[e.op]
			}
			wc.Status = a.status
		case disconnect:
			wc.Status, breaks = verbs.StatusWRFlushErr, true
		case overrun:
			c.fail()
			return
		}
	}
	if !e.silent || wc.Status != verbs.StatusSuccess {
		c.emit(q, recv, wc, e.do)
	}
	if breaks {
		_ = q.breakDown() // fails if Close was faster; then nothing is left to break
	}
}

var sendOps = map[verbs.Opcode]verbs.WCOp{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteImm: verbs.WCWrite,
	verbs.OpSend: verbs.WCSend, verbs.OpSendImm: verbs.WCSend, verbs.OpSendInvalidate: verbs.WCSend,
	verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd,
}

// fail makes the queue overrun.
func (c *cq) fail() {
	c.overrun = true
	c.in.raise(verbs.DeviceEvent{Type: verbs.EventCQErr, Context: c.context,
		Err: verbs.Errorf("completion queue", verbs.ErrCQOverrun, "as the fault plan asked")})
	for _, q := range slices.Clone(c.qps) {
		_ = q.breakDown() // fails if Close was faster; then nothing is left to break
	}
	c.signal()
}

// emit makes a completion ready, now or late.
func (c *cq) emit(q *qp, recv bool, wc verbs.WC, do Action) {
	l := c.lane(q, recv)
	switch a := do.(type) {
	case delay:
		l.late = append(l.late, lateWC{wc: wc, due: c.clock() + a.polls})
	case reorder:
		l.late = append(l.late, lateWC{wc: wc, due: never, others: c.total - c.given[q] + a.others})
	default:
		if len(l.late) == 0 && !c.overrun {
			c.ready = append(c.ready, wc)
		} else if !c.overrun {
			l.late = append(l.late, lateWC{wc: wc})
		}
	}
}

// lane finds or makes the lane of a work queue.
func (c *cq) lane(q *qp, recv bool) *lane {
	for _, l := range c.lanes {
		if l.q == q && l.recv == recv {
			return l
		}
	}
	l := &lane{q: q, recv: recv}
	c.lanes = append(c.lanes, l)
	return l
}

// release moves late completions to the ready ones when their time has come.
func (c *cq) release() {
	for _, l := range c.lanes {
		for len(l.late) > 0 && c.due(l) {
			c.ready = append(c.ready, l.late[0].wc)
			l.late = l.late[1:]
		}
	}
	c.lanes = slices.DeleteFunc(c.lanes, func(l *lane) bool { return len(l.late) == 0 })
}

// due reports whether the first completion of the lane need not wait any more.
func (c *cq) due(l *lane) bool {
	w := &l.late[0]
	return c.clock() >= w.due || w.due == never && (c.total-c.given[l.q] >= w.others || c.idle >= patience)
}
