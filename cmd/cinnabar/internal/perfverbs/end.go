package perfverbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// batch is how many completions are polled for, and how many receives are posted, at a time.
const batch = 16

// polls is how many polls without a completion are made between two looks at the context.
const polls = 1024

// side is one side of a measurement with one peer. It belongs to one goroutine.
type side struct {
	*link.Link
	o       *options
	attr    verbs.DeviceAttr
	inline  int      // bytes of messages that go inline, by the device's limit
	words   []uint32 // the memory of target
	target  *verbs.MR
	source  *verbs.MR // the memory to send from and to fetch to
	peer    verbs.Region
	control *control

	sender   sender
	behind   [1]verbs.SendWR // a read that is answered when all before it is done
	sent     uint64          // messages of the ping-pong
	heard    uint64          // and answers
	reading  uint64          // the request that still reads the source's memory, if it has not completed
	received uint64          // receives completed
	rounds   atomic.Uint64   // round trips of the client's latency
	owed     int             // of them, not posted again
	receives []verbs.RecvWR  // equal requests
	batch    [batch]verbs.WC
}

// newSide makes a side with its receives posted, and checks the options against the device's limits.
func newSide(dev *verbs.Device, o *options) (*side, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	if err := o.fits(&attr); err != nil {
		return nil, err
	}
	e := &side{o: o, attr: attr, inline: min(o.inlineLimit(), attr.MaxInline)}
	receives := 1
	if o.op.received() {
		receives = min(4*max(o.depth, batch), attr.MaxQPWR) // many more than the peer has outstanding
	}
	if e.Link, err = link.New(dev, link.Config{Sends: o.depth, Receives: receives, OneCQ: true, Inline: e.inline}); err != nil {
		return nil, err
	}
	if err := e.prepare(receives); err != nil {
		return nil, errors.Join(err, e.Release())
	}
	if o.events {
		e.SendCQ.SetSpin(0) // sleep at once
	}
	return e, nil
}

// fits compares the options with the device's limits.
func (o *options) fits(a *verbs.DeviceAttr) error {
	switch {
	case o.depth > a.MaxQPWR:
		return cli.Usagef("--depth %d: device %s takes at most %d requests at a time", o.depth, a.Name, a.MaxQPWR)
	case o.op == opWriteImm && !a.Caps.Has(verbs.CapWriteImm):
		return fmt.Errorf("--op %s: device %s cannot do that; take write or send", o.op, a.Name)
	case o.op == opAtomic && !a.Caps.Has(verbs.CapAtomics):
		return fmt.Errorf("--op %s: device %s has no atomics; take another --op", o.op, a.Name)
	}
	for _, p := range a.Ports {
		if uint64(o.largest()) > p.MaxMsgSize {
			return cli.Usagef("--size %s: port %d of device %s takes messages of at most %s", o.sizeText, p.Num, a.Name, cli.SizeText(int64(p.MaxMsgSize)))
		}
	}
	return nil
}

// prepare registers memory and posts the receives. Messages lie at the end of the memory, so that the last byte of a message of
// any size is in the last word.
func (e *side) prepare(receives int) (err error) {
	access := verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
	if e.o.op == opAtomic {
		access |= verbs.RemoteAtomic
	}
	n := (e.o.largest() + wordLen - 1) / wordLen * wordLen
	e.words = make([]uint32, n/4)
	if e.target, err = verbs.RegSlice(e.PD, e.words, access); err != nil {
		return err
	}
	e.Regions = append(e.Regions, e.target)
	if e.source, err = e.Alloc(int(n), verbs.LocalWrite|e.attr.ReadSink); err != nil {
		return err
	}
	e.sender = sender{qp: e.QP, depth: uint64(e.o.depth)}
	if !e.o.op.received() {
		return nil
	}
	var sgl []verbs.SGE // a write with immediate brings its own address
	if e.o.op == opSend {
		sgl = []verbs.SGE{e.target.SGE(0, e.target.Len())}
	}
	e.receives = make([]verbs.RecvWR, batch)
	for i := range e.receives {
		e.receives[i].SGL = sgl
	}
	e.owed = receives
	return e.repay(1)
}

// repay posts receives again, as soon as so many are owed.
func (e *side) repay(least int) error {
	for e.owed >= least {
		n := min(e.owed, len(e.receives))
		if err := e.PostRecv(e.receives[:n]...); err != nil {
			return err
		}
		e.owed -= n
	}
	return nil
}

// meet connects with the other side over x, which begins as an exchange and goes on as the conversation. known
// reports that the other side speaks the exchange's language at all.
func (e *side) meet(ctx context.Context, x net.Conn, active bool) (known bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, meetTimeout, errors.New("the other side does not get ready; see its messages"))
	defer cancel()
	cfg := e.connecting(active)
	if at, ok := x.LocalAddr().(*net.TCPAddr); ok && !active && e.o.dataPort != 0 {
		cfg.Listen = netip.AddrPortFrom(at.AddrPort().Addr().Unmap(), e.o.dataPort) // the address that the client has connected to
	}
	c, info, err := cfg.Connect(ctx, x, e.QP)
	e.Conn = c
	known = info.Settings != nil
	if _, differ := errors.AsType[*oob.SettingsError](err); differ {
		return known, fmt.Errorf("%w; give both sides the same options", err)
	}
	if err != nil {
		return known, cli.Reason(ctx, err)
	}
	if e.peer = info.Region; e.peer.Size < uint64(e.target.Len()) {
		return known, fmt.Errorf("the other side offers %d bytes of memory instead of %d", e.peer.Size, e.target.Len())
	}
	return known, nil
}

// connecting returns how the two sides connect.
func (e *side) connecting(active bool) oob.Config {
	return oob.Config{
		Active: active, Region: e.target.Region(), Settings: e.o.settings(),
		Param: verbs.ConnParam{
			ResponderResources: e.attr.MaxQPRDAtom, InitiatorDepth: min(e.o.depth, e.attr.MaxQPInitRDAtom),
			RetryCount: 7, RNRRetry: verbs.MaxRNRRetry,
		},
	}
}

// load prepares the requests of a size.
func (e *side) load(size int64) {
	n, off := int(size), e.target.Len()-int(size)
	wr := verbs.SendWR{Op: operations[e.o.op].code, SGL: []verbs.SGE{e.source.SGE(off, n)}, Remote: e.peer.Add(uint64(off)), CompareAdd: 1}
	if n <= e.inline {
		wr.Flags |= verbs.Inline
	}
	e.sender.load(wr, e.o.group(size))
	e.behind[0] = verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{e.source.SGE(0, wordLen)}, Remote: e.peer.RemoteAddr}
}

// reap waits for completions and accounts for them.
func (e *side) reap(ctx context.Context) error {
	n, err := e.next(ctx)
	if err != nil {
		return err
	}
	return e.take(n)
}

// poll accounts for the completions that are there.
func (e *side) poll() error {
	n, err := e.SendCQ.Poll(e.batch[:])
	if err != nil {
		return err
	}
	return e.take(n)
}

// take accounts for the first n completions of the batch.
func (e *side) take(n int) error {
	for i := range e.batch[:n] {
		wc := &e.batch[i]
		switch err := wc.Err(); {
		case err != nil:
			return e.Cause(err)
		case wc.Op.IsRecv():
			if err := link.CheckArrival(wc, e.o.op.arrival()); err != nil {
				return err
			}
			e.received++
			e.owed++
		default:
			e.sender.done = wc.ID
		}
	}
	e.control.progress.Store(e.sender.done + e.received)
	return e.repay(batch)
}

// next waits for completions: asleep with --events, polling otherwise.
func (e *side) next(ctx context.Context) (int, error) {
	if e.o.events {
		n, err := e.SendCQ.Wait(ctx, e.batch[:])
		if err != nil {
			err = cli.Reason(ctx, err)
		}
		return n, err
	}
	for ctx.Err() == nil {
		for range polls {
			if n, err := e.SendCQ.Poll(e.batch[:]); n > 0 || err != nil {
				return n, err
			}
		}
		runtime.Gosched()
	}
	return 0, context.Cause(ctx)
}

// settle waits until all requests of this side have completed.
func (e *side) settle(ctx context.Context) error {
	for e.sender.done < e.sender.posted {
		if err := e.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sender posts equal requests and accounts for them. Only the last one of a group makes a completion; its id is
// the number of all requests that are done with it.
type sender struct {
	qp           *verbs.QP
	depth        uint64
	group        []verbs.SendWR // the last one is signaled
	posted, done uint64
}

// load makes a group of n requests like wr.
func (s *sender) load(wr verbs.SendWR, n int) {
	s.group = make([]verbs.SendWR, n)
	for i := range s.group {
		s.group[i] = wr
	}
	s.group[n-1].Flags |= verbs.Signaled
}

// full reports whether n more requests may find no room.
func (s *sender) full(n uint64) bool { return s.posted-s.done+n > s.depth }

// fill posts requests while there is room, up to the total of goal.
func (s *sender) fill(goal uint64) error {
	for s.posted < goal {
		n := min(uint64(len(s.group)), goal-s.posted)
		if s.full(n) {
			return nil
		}
		if err := s.post(s.group[uint64(len(s.group))-n:]); err != nil {
			return err
		}
	}
	return nil
}

// one posts a single request. It makes a completion if it is the last one of a group or takes the last room, and always
// with signal.
func (s *sender) one(signal bool) error {
	last := len(s.group) - 1
	if signal || s.posted%uint64(len(s.group)) == uint64(last) || s.full(2) {
		return s.post(s.group[last:])
	}
	return s.post(s.group[:1])
}

// post posts a part of the group.
func (s *sender) post(wrs []verbs.SendWR) error {
	s.posted += uint64(len(wrs))
	wrs[len(wrs)-1].ID = s.posted
	if n, err := s.qp.PostSend(wrs); err != nil {
		return fmt.Errorf("post request %d of %d: %w", n+1, len(wrs), err)
	}
	return nil
}
