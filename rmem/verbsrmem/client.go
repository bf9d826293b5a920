package verbsrmem

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"cinnabar/rmem"
	"cinnabar/rmem/internal/link"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// network is the part of package rmem that serves this one.
var network = link.Rmem.(interface {
	NewClient(ctx context.Context, t link.Transport) (*rmem.Client, error)
	NewLender(cfg rmem.Config, register func([]byte) link.Memory) (link.Lender[rmem.Stats], rmem.Config, error)
})

// records bounds the requests that a client may have under way, on both sides.
var records = flow.Config{Records: 16, Bytes: 4096, Inline: 2048, KeepAlive: silence}

// silence is how long a client waits for a server's device that does not answer, and a server for that of a client by default.
const silence = time.Minute

// copyBelow is the size in bytes from which on the caller's memory is registered for a transfer instead of being copied.
const copyBelow = 64 << 10

// transport is a connection to a [Server].
type transport struct {
	c    *flow.Conn
	addr netip.AddrPort

	exact bool         // a write completes when the peer has it
	sink  verbs.Access // rights of the memory to which a read stores its data

	turn chan struct{} // capacity 1: held while a request is under way

	// stages are for small transfers, each of which takes one for as long as the device may use it. It is a channel, so that
	// a transfer returns when its context ends although others hang.
	stages chan *stage
	staged int // how many were made

	discard [1]verbs.SGE // of flow.Conn.Discard, for the read behind a write
}

// stage is registered memory for one small transfer. It holds the list of its one piece too, because a list made for each transfer
// would be allocated.
type stage struct {
	mr  *verbs.MR
	sgl [1]verbs.SGE
}

// smallTransfers is how many small transfers are under way at a time.
const smallTransfers = 4

// Dial makes a client of the [Server] that listens on addr. Reads and writes are one-sided: the server's program takes no part.
// Atomics are requests. An operation that is under way when its context ends also ends the connection: it returns the context's
// cause, and concurrent and later operations fail with [flow.ErrGivenUp]. The connection, and with it the client, ends with an
// error that names the cause when the device refuses an access, as that to a freed region, and when the server's device is silent
// for a minute. Handles of such regions are for [rmem.Client.Open] of clients of the same server over verbs.
func Dial(ctx context.Context, dev *verbs.Device, addr netip.AddrPort) (*rmem.Client, error) {
	t, err := connect(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	return network.NewClient(ctx, t)
}

// connect connects to the server at addr, and makes the memory regions for small transfers.
func connect(ctx context.Context, dev *verbs.Device, addr netip.AddrPort) (*transport, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	c, err := flow.Dial(ctx, dev, addr, records)
	if err != nil {
		return nil, err
	}
	t := &transport{c: c, addr: addr, exact: attr.Caps&verbs.CapExactStatus != 0, sink: verbs.LocalWrite | attr.ReadSink, turn: make(chan struct{}, 1), stages: make(chan *stage, smallTransfers)}
	t.discard[0] = c.Discard()
	for range smallTransfers {
		mr, err := c.PD().RegMR(make([]byte, copyBelow), t.sink)
		if err != nil {
			return nil, errors.Join(&rmem.Error{Op: "dial", Server: t.Server(), Err: err}, t.Close(rmem.ErrClosed))
		}
		t.stages <- &stage{mr: mr}
		t.staged++
	}
	return t, nil
}

// Close ends the connection first, so that operations under way return before their memory is closed here.
func (t *transport) Close(cause error) error {
	t.c.Abort(cause)
	var err error
	for range t.staged {
		s := <-t.stages // all stages come back, because the end of the connection ends the transfers
		err = errors.Join(err, s.mr.Close())
	}
	return errors.Join(err, t.c.Close())
}

func (t *transport) Server() string { return "verbs://" + t.addr.String() }

func (t *transport) Done() <-chan struct{} { return t.c.Done() }

// Exchange has one request under way at a time, because responses come in the order of requests. If it is given up, the
// connection is closed, because a later request would get its response.
func (t *transport) Exchange(ctx context.Context, request []byte, decode func([]byte) error) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t.turn }()
	if err := t.c.Send(ctx, request); err != nil {
		return err
	}
	err := t.Receive(ctx, decode)
	if err != nil && ctx.Err() != nil {
		t.c.Abort(flow.GivenUp(context.Cause(ctx)))
	}
	return err
}

func (t *transport) Receive(ctx context.Context, decode func([]byte) error) error {
	rec, err := t.c.Recv(ctx)
	if err != nil {
		return err
	}
	return errors.Join(decode(rec.Bytes()), rec.Release())
}

func (t *transport) Remote(addr uint64, key uint32) link.Remote {
	return &window{t: t, at: verbs.RemoteAddr{Addr: addr, RKey: key}}
}

// window is a region's memory, reached by RDMA reads and writes.
type window struct {
	t  *transport
	at verbs.RemoteAddr
}

func (v *window) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return v.move(ctx, verbs.OpRead, p, off)
}

func (v *window) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return v.move(ctx, verbs.OpWrite, p, off)
}

// longest is how many bytes one work request moves: little enough to let others pass, such as the question whether the peer
// is alive.
const longest = 64 << 20

// move reads or writes p, which lies in the region.
func (v *window) move(ctx context.Context, op verbs.Opcode, p []byte, off int64) (done int, err error) {
	if len(p) <= copyBelow {
		return v.small(ctx, op, p, off)
	}
	access := verbs.LocalWrite
	if op == verbs.OpRead {
		access = v.t.sink
	}
	mr, err := v.t.c.PD().RegMR(p, access)
	if err != nil {
		return 0, err
	}
	for done < len(p) && err == nil {
		n := min(longest, len(p)-done)
		if err = v.do(ctx, op, []verbs.SGE{mr.SGE(done, n)}, off+int64(done)); err == nil {
			done += n
		}
	}
	return done, errors.Join(err, mr.Close())
}

// small moves p through registered memory of the client, which costs a copy and no registration.
func (v *window) small(ctx context.Context, op verbs.Opcode, p []byte, off int64) (int, error) {
	var s *stage
	select {
	case s = <-v.t.stages:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-v.t.c.Done():
		return 0, v.t.c.Err()
	}
	defer func() { v.t.stages <- s }()
	if op == verbs.OpWrite {
		copy(s.mr.Bytes(), p)
	}
	s.sgl[0] = s.mr.SGE(0, len(p))
	if err := v.do(ctx, op, s.sgl[:], off); err != nil {
		return 0, err
	}
	if op == verbs.OpRead {
		copy(p, s.mr.Bytes())
	}
	return len(p), nil
}

// do executes one operation. A write is over when its bytes are in the peer's memory. Some devices complete a write earlier (t.exact is
// false). There do posts a read of one byte behind the write, because the peer answers it only after it has placed the written bytes. sgl has
// one entry, and its array is in use until do returns.
func (v *window) do(ctx context.Context, op verbs.Opcode, sgl []verbs.SGE, off int64) error {
	to := v.at
	to.Addr += uint64(off)
	wr := verbs.SendWR{Op: op, SGL: sgl, Remote: to}
	if op == verbs.OpWrite && !v.t.exact {
		return v.t.c.Do(ctx, wr, verbs.SendWR{Op: verbs.OpRead, SGL: v.t.discard[:], Remote: to})
	}
	return v.t.c.Do(ctx, wr)
}
