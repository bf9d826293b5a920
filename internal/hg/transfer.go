package hg

import (
	"context"
	"errors"
	"sync/atomic"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/sglist"
)

// Direction is the direction of a transfer as seen from the process that starts it.
type Direction uint8

const (
	Pull Direction = iota // from the described memory: HG_BULK_PULL
	Push                  // to it: HG_BULK_PUSH
)

func (d Direction) String() string {
	if d == Push {
		return "push"
	}
	return "pull"
}

// Transfer moves bytes between described memory and slices of this process (HG_Bulk_transfer). It is made by
// [Class.NewTransfer], started once, and given back by Free.
//
//	idle --Start--> started: one operation of the transport, or a copy within this process --> done --Free--> idle
//
// As for a [Call], holds decide when it is done.
type Transfer struct {
	c   *Class
	dir Direction
	to  na.Addr
	via na.Addr // the peer that a waiter drives; nil within this process

	notify TransferNotifier
	op     na.Op
	frags  []na.Fragment // kept for reuse
	done   na.Event

	state   opState
	failure *Error       // the error of a transfer with flagFailed
	cancel  *Error       // the error of a transfer with flagCancelled
	base    atomic.Int64 // the value of op.Progress when the transfer began

	n      int64 // bytes moved; valid when done
	result error // valid when done
}

// TransferNotifier is called at the end of a transfer.
type TransferNotifier interface {
	// TransferDone is called once, on a goroutine that makes progress or that of Start or Cancel. It must not block. It
	// may call Free.
	TransferDone(t *Transfer)
}

var (
	errNoDesc     = errors.New("no descriptor")
	errNotBound   = errors.New("no address: neither given nor bound to the descriptor")
	errRange      = errors.New("range lies beyond the end of the described memory")
	errLocalSize  = errors.New("local memory and size of the transfer differ")
	errNoHandle   = errors.New("a segment of the descriptor has no handle of the network")
	errRevoked    = errors.New("the memory is not exposed any more")
	errNotShared  = errors.New("the peer was reached over shared memory, and the descriptor has no handle of shared memory and no address; its sender can bind it (Bulk.Bound)")
	errFirewalled = errors.New("the owner of the memory is behind a firewall and has no connection to this process")
)

// NewTransfer returns an idle transfer.
func (c *Class) NewTransfer() *Transfer {
	t, _ := c.transfers.Get().(*Transfer)
	if t == nil {
		t = c.makeTransfer()
	}
	t.again()
	return t
}

// makeTransfer returns a transfer from outside the pool.
func (c *Class) makeTransfer() *Transfer {
	t := &Transfer{c: c}
	t.op.Done = (*transferOp)(t)
	return t
}

// again makes a transfer that has ended, or is new, ready for Start.
func (t *Transfer) again() {
	t.op.Blocking = false
	t.forget()
	t.state.prepare()
}

// Block allows Start to do the work itself, some milliseconds of it, because its caller waits for the end at once. It is called before
// Start.
func (t *Transfer) Block() { t.op.Blocking = true }

// Notify makes the end of the transfer run f.TransferDone, in place of a Wait. It is called before Start.
func (t *Transfer) Notify(f TransferNotifier) { t.notify = f }

// Start moves n bytes between the described memory, from offset off on, and local, which must have n bytes together.
// The owner of the memory is reached at from, or if that is nil at the address bound to the descriptor. Rights and
// ranges are checked before anything moves. The local memory belongs to the transfer until the end. Errors show at the
// end.
//
// Data inside the descriptor serves a pull without traffic. If the owner is this process itself, memory is copied.
func (t *Transfer) Start(dir Direction, from na.Addr, d *Desc, off uint64, local [][]byte, n uint64) {
	t.dir, t.to = dir, from
	t.begin()
	if code, err := t.check(d, off, local, n); err != nil {
		t.fail(code, err)
	} else if n > 0 {
		t.route(d, off, local, n)
	} else {
		t.finish(0)
	}
	t.release(0)
}

// check returns an error for a transfer that the descriptor does not allow, or that has wrong lengths.
func (t *Transfer) check(d *Desc, off uint64, local [][]byte, n uint64) (codes.Code, error) {
	if d == nil {
		return codes.InvalidArg, errNoDesc
	}
	right := uint32(wire.BulkReadOnly)
	if t.dir == Push {
		right = wire.BulkWriteOnly
	}
	if d.Flags()&right == 0 {
		return codes.Permission, &na.Error{Kind: na.Denied, Op: t.dir.String()}
	}
	if off > d.Len() || n > d.Len()-off {
		return codes.InvalidArg, errRange
	}
	var sum uint64
	for _, b := range local {
		sum += uint64(len(b))
	}
	if sum != n {
		return codes.InvalidArg, errLocalSize
	}
	if t.c.closed.Load() {
		return codes.Canceled, errClosed
	}
	return wire.Success, nil
}

// route chooses between the data in the descriptor, a copy, and the network.
func (t *Transfer) route(d *Desc, off uint64, local [][]byte, n uint64) {
	if t.dir == Pull && d.Eager() != nil {
		sglist.Copy(local, [][]byte{d.Eager()[off:]})
		t.c.count.eagerCopies.Add(1)
		t.finish(int64(n))
		return
	}
	if code, err := t.resolve(d); err != nil {
		t.fail(code, err)
		return
	}
	if t.c.self.Equal(t.to) {
		t.copyLocal(d, off, local, n)
		return
	}
	if code, err := t.choose(d); err != nil {
		t.fail(code, err)
		return
	}
	remotes, code, err := t.c.remotesOf(d)
	if err != nil {
		t.fail(code, err)
		return
	}
	t.frags = split(t.frags[:0], d, remotes, off, local, n)
	t.via = t.to
	t.launch()
}

// resolve sets t.to to the address in the descriptor if the caller has given none.
func (t *Transfer) resolve(d *Desc) (codes.Code, error) {
	if t.to != nil {
		return wire.Success, nil
	}
	if d.Bound() == nil {
		return codes.InvalidArg, errNotBound
	}
	a, err := t.c.Owner(d)
	if err != nil {
		return codes.ProtocolError, err
	}
	t.to = a
	if d.Flags()&wire.BulkFirewall != 0 && a.Done() == nil && !t.c.self.Equal(a) {
		return codes.HostFirewall, errFirewalled
	}
	return wire.Success, nil
}

// Owner returns the address in a descriptor, which is bound.
func (c *Class) Owner(d *Desc) (na.Addr, error) {
	if near := d.shared().BoundShared(); c.shared != nil && near != nil {
		return c.shared.ParseAddrs(d.Bound(), near)
	}
	return c.ep.ParseAddr(d.Bound())
}

// choose sets t.to to the address in one of the two networks of a transport with shared memory. That is shared memory if the descriptor
// has its handles. If the descriptor has none, and the address is one of shared memory alone, the address in the descriptor is used.
func (t *Transfer) choose(d *Desc) (codes.Code, error) {
	s := t.c.shared
	if s == nil {
		return wire.Success, nil
	}
	if a := s.Part(t.to, d.shares()); a != nil {
		t.to = a
		return wire.Success, nil
	}
	if d.Bound() == nil {
		return codes.InvalidArg, errNotShared
	}
	a, err := s.ParseAddr(d.Bound())
	if err != nil {
		return codes.ProtocolError, err
	}
	t.to = a
	return wire.Success, nil
}

// launch starts the operation of the transport. The caller holds the transfer.
func (t *Transfer) launch() {
	if !t.state.take(opMove, 1) {
		return
	}
	if t.dir == Pull {
		t.c.count.reads.Add(1)
		t.c.ep.Get(&t.op, t.to, t.frags)
	} else {
		t.c.count.writes.Add(1)
		t.c.ep.Put(&t.op, t.to, t.frags)
	}
	if w := t.state.load(); w.has(flagCancelled) && w.has(opMove) { // cancelled meanwhile: Interrupt may have missed the operation
		t.c.ep.Cancel(&t.op)
	}
}

// transferOp completes the operation of the transport.
type transferOp Transfer

// Complete implements [na.Completer].
func (p *transferOp) Complete(op *na.Op) {
	t := (*Transfer)(p)
	if t.dir == Pull {
		t.c.count.bytesRead.Add(uint64(op.N))
	} else {
		t.c.count.bytesWritten.Add(uint64(op.N))
	}
	if op.Err != nil {
		t.n = op.N
		t.fail(codeOf(op.Err), op.Err)
	} else {
		t.finish(op.N)
	}
	t.release(opMove)
}

// Wait waits for the end and returns how many bytes were moved, and Err. When ctx ends before, it behaves as
// [Call.Wait].
func (t *Transfer) Wait(ctx context.Context) (int64, error) {
	if t.c.await(ctx, t.via, &t.done) {
		return t.n, t.result
	}
	code, cause := endOf(ctx)
	t.abort(code, cause)
	if settle(&t.done) {
		return t.n, t.result
	}
	return 0, newError("transfer", t.to, code, cause)
}

// Cancel ends the transfer early, with code Canceled, unless it is complete. Any goroutine may call it between Start and
// Free. After the end the local memory is not touched any more. Its content is undefined.
func (t *Transfer) Cancel() { t.abort(codes.Canceled, nil) }

// Err returns why the transfer failed, an [*Error], or nil; it is valid after the end.
func (t *Transfer) Err() error { return t.result }

// N returns how many bytes were moved; it is valid after the end.
func (t *Transfer) N() int64 { return t.n }

// Free gives the transfer back, as [Call.Free] does.
func (t *Transfer) Free() {
	phase := t.state.free()
	if phase == phasePooled {
		panic("hg: transfer freed twice")
	}
	if phase != phaseStarted {
		t.recycle()
	}
}
