package rmem

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// copyBelow is the size in bytes from which on the caller's memory is registered for a transfer instead of being copied.
const copyBelow = 64 << 10

// verbsWire is a connection to a [VerbsServer].
type verbsWire struct {
	c    *flow.Conn
	addr netip.AddrPort

	exact bool // a write is done when the peer has it

	turn chan struct{} // capacity 1: held while a request is under way

	// stages are for small transfers, each of which takes one for as long as the device may use it. It is a channel, so that
	// a transfer returns when its context ends although others hang.
	stages chan *verbs.MR
	staged int // how many were made
}

// smallTransfers is how many small transfers are under way at a time.
const smallTransfers = 4

// DialVerbs makes a client of the [VerbsServer] that listens on addr. Reads and writes are one-sided: the server's program
// takes no part. Atomics are requests. An operation that is under way when its context ends also ends the connection: it returns
// the context's cause, and concurrent and later operations fail with [flow.ErrGivenUp]. The connection, and with it the
// client, ends with an error that says why when an access is refused by the device, as that to a freed region is, and when
// the server's device is silent for a minute. Handles of such regions are for [Client.Open] of clients of the same server
// over verbs.
func DialVerbs(ctx context.Context, dev *verbs.Device, addr netip.AddrPort) (*Client, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	c, err := flow.Dial(ctx, dev, addr, records)
	if err != nil {
		return nil, err
	}
	w := &verbsWire{c: c, addr: addr, exact: attr.Caps&verbs.CapExactStatus != 0, turn: make(chan struct{}, 1), stages: make(chan *verbs.MR, smallTransfers)}
	client := &Client{srv: server{wire: w}, done: make(chan struct{})}
	hello, err := w.greet(ctx)
	if err != nil {
		return nil, errors.Join(client.srv.error("dial", 0, err), w.close())
	}
	client.session, client.maxRegionSize = hello.Session, hello.Limit
	client.stop = func() { _ = w.close() } // a connection that is over can say nothing new
	go func() {
		<-c.Done()
		close(client.done)
	}()
	return client, nil
}

// greet receives the server's first message and makes the memory regions for small transfers.
func (w *verbsWire) greet(ctx context.Context) (*response, error) {
	r, err := w.receive(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.meaning(); err != nil {
		return nil, err
	}
	for range smallTransfers {
		stage, err := w.c.PD().RegMR(make([]byte, copyBelow), verbs.LocalWrite)
		if err != nil {
			return nil, err
		}
		w.stages <- stage
		w.staged++
	}
	return r, nil
}

// close ends the connection first, so that operations under way return before their memory is closed here.
func (w *verbsWire) close() error {
	w.c.Abort(ErrClosed)
	var err error
	for range w.staged {
		stage := <-w.stages // transfers give them back, because the connection has ended
		err = errors.Join(err, stage.Close())
	}
	return errors.Join(err, w.c.Close())
}

func (w *verbsWire) handle(id uint64) Handle {
	return Handle{Server: "verbs://" + w.addr.String(), ID: id}
}

// ask sends a request and waits for the answer. Answers come in the order of requests, so one is under way at a time; if it
// is given up the connection is of no use any more.
func (w *verbsWire) ask(ctx context.Context, q *request) (*response, error) {
	if op(q.Op) == opBye {
		return &response{}, nil // the end of the connection says it
	}
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-w.turn }()
	b, err := plans().request.Append(nil, q)
	if err != nil {
		return nil, err
	}
	if err := w.c.Send(ctx, b); err != nil {
		return nil, err
	}
	r, err := w.receive(ctx)
	if err != nil && ctx.Err() != nil {
		w.c.Abort(flow.GivenUp(context.Cause(ctx)))
	}
	return r, err
}

func (w *verbsWire) receive(ctx context.Context) (*response, error) {
	rec, err := w.c.Recv(ctx)
	if err != nil {
		return nil, err
	}
	var r response
	_, err = plans().response.Decode(rec.Bytes(), &r)
	if err := errors.Join(err, rec.Release()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return &r, nil
}

func (w *verbsWire) reach(r *response) (reachable, error) {
	if r.Addr == 0 || r.Addr+uint64(r.Size) < r.Addr {
		return nil, ErrProtocol
	}
	return &window{w: w, at: verbs.RemoteAddr{Addr: r.Addr, RKey: r.Key}}, nil
}

// window is a region's memory, reached by RDMA reads and writes.
type window struct {
	w  *verbsWire
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
	mr, err := v.w.c.PD().RegMR(p, verbs.LocalWrite)
	if err != nil {
		return 0, err
	}
	for done < len(p) && err == nil {
		n := min(longest, len(p)-done)
		if err = v.do(ctx, op, mr.SGE(done, n), off+int64(done)); err == nil {
			done += n
		}
	}
	return done, errors.Join(err, mr.Close())
}

// small moves p through registered memory of the client, which costs a copy and no registration.
func (v *window) small(ctx context.Context, op verbs.Opcode, p []byte, off int64) (int, error) {
	var stage *verbs.MR
	select {
	case stage = <-v.w.stages:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-v.w.c.Done():
		return 0, v.w.c.Err()
	}
	defer func() { v.w.stages <- stage }()
	if op == verbs.OpWrite {
		copy(stage.Bytes(), p)
	}
	if err := v.do(ctx, op, stage.SGE(0, len(p)), off); err != nil {
		return 0, err
	}
	if op == verbs.OpRead {
		copy(p, stage.Bytes())
	}
	return len(p), nil
}

// do executes one operation. A write is done when its bytes are there: on devices that say so earlier, a read of one of them
// is behind it, which is answered only then.
func (v *window) do(ctx context.Context, op verbs.Opcode, sge verbs.SGE, off int64) error {
	to := v.at
	to.Addr += uint64(off)
	wr := verbs.SendWR{Op: op, SGL: []verbs.SGE{sge}, Remote: to}
	if op == verbs.OpWrite && !v.w.exact {
		return v.w.c.Do(ctx, wr, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{v.w.c.Discard()}, Remote: to})
	}
	return v.w.c.Do(ctx, wr)
}
