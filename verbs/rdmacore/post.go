//go:build rdma && linux && cgo

package rdmacore

import (
	"errors"
	"syscall"

	"cinnabar/verbs/driver"
)

// wcOps gives the completion's operation for each opcode.
var wcOps = [...]driver.WCOp{
	driver.OpWrite: driver.WCWrite, driver.OpWriteImm: driver.WCWrite, driver.OpSend: driver.WCSend,
	driver.OpSendImm: driver.WCSend, driver.OpRead: driver.WCRead, driver.OpCompareSwap: driver.WCCompareSwap,
	driver.OpFetchAdd: driver.WCFetchAdd,
}

// requiredCaps are the abilities that an opcode needs of the device.
var requiredCaps = [...]driver.Caps{
	driver.OpWriteImm: driver.CapWriteImm, driver.OpSendImm: driver.CapSendImm, driver.OpRead: 0,
	driver.OpCompareSwap: driver.CapAtomics, driver.OpFetchAdd: driver.CapAtomics,
}

// maxQPN is the highest number of a queue pair.
const maxQPN = 1<<24 - 1

// sendFlags are the flags that a request can have.
const sendFlags = driver.Fence | driver.Signaled | driver.Solicited | driver.Inline

// PostSend implements driver.QP. The program's requests cross to C in batches.
func (q *qp) PostSend(wrs []driver.SendWR) (int, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if s := driver.QPState(q.state.Load()); q.gone {
		return 0, driver.Errorf("post send", driver.ErrClosed, "the queue pair is closed")
	} else if s < driver.StateRTS {
		return 0, driver.Errorf("post send", driver.ErrInvalid, "the queue pair is in %s; sends are possible once it is connected", s)
	} else if s == driver.StateErr && q.pd.dev.removal.isGone() {
		return 0, q.pd.dev.removedErr("post send")
	}
	if q.pd.dev.iwarp() && driver.QPState(q.state.Load()) == driver.StateErr {
		return q.flushSends(wrs)
	}
	token := q.token.Load()
	for n := 0; n < len(wrs); {
		taken, stop := q.collect(wrs[n:], token)
		posted, err := q.send.post(q.h)
		q.pd.dev.stats.crossings.Add(1)
		q.pd.dev.stats.sends.Add(uint64(posted))
		if err != nil {
			head := q.sq.head.Load()
			q.dests.drop(head-uint32(taken-posted), head)
			q.sq.head.Store(head - uint32(taken-posted))
			return n + posted, postError("post send", err)
		}
		if n += taken; stop != nil {
			return n, stop
		}
	}
	return len(wrs), nil
}

// collect fills the batch and returns how many requests it took. stop is what
// is wrong with the next one; nil if there is none or it waits for the next batch.
func (q *qp) collect(wrs []driver.SendWR, token uint64) (taken int, stop error) {
	for i := range wrs {
		wr := &wrs[i]
		if stop = q.checkSend(wr); stop != nil {
			return i, stop
		}
		pos := q.sq.head.Load()
		if pos-q.sq.tail.Load() >= q.sq.depth {
			return i, sendFull(q.sq.depth)
		}
		to, err := q.dests.take(pos, wr)
		if err != nil {
			return i, err
		}
		if !q.send.add(wr, makeToken(kindSend, token, pos), to) {
			q.dests.drop(pos, pos+1)
			return i, nil
		}
		q.sq.put(pos, wr.ID, wcOps[wr.Op])
		q.sq.head.Store(pos + 1)
	}
	return len(wrs), nil
}

// postMarker posts the request of drain, for which there is always room.
func (q *qp) postMarker() error {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.gone {
		return driver.Errorf("disconnect", driver.ErrClosed, "the queue pair is closed")
	}
	pos := q.sq.head.Load()
	marker := driver.SendWR{Op: driver.OpWrite, Flags: driver.Signaled | driver.Fence} // siw completes writes before reads that were posted earlier
	q.send.add(&marker, makeToken(kindMarker, q.token.Load(), pos), 0)
	q.sq.skip(pos)
	q.sq.head.Store(pos + 1)
	if _, err := q.send.post(q.h); err != nil {
		q.sq.head.Store(pos)
		return postError("disconnect", err)
	}
	return nil
}

// flushSends gives sends back that are posted in ERR, which siw keeps.
func (q *qp) flushSends(wrs []driver.SendWR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if err := q.checkSend(wr); err != nil {
			return i, err
		}
		pos := q.sq.head.Load()
		if pos-q.sq.tail.Load() >= q.sq.depth {
			return i, sendFull(q.sq.depth)
		}
		q.sq.put(pos, wr.ID, wcOps[wr.Op])
		q.sq.head.Store(pos + 1)
		q.sendCQ.addLate(makeToken(kindSend, q.token.Load(), pos))
	}
	return len(wrs), nil
}

func sendFull(depth uint32) error {
	return driver.Errorf("post send", driver.ErrQueueFull, "%d requests are outstanding; poll their completions, or create the queue pair with a larger MaxSendWR", depth)
}

// checkSend refuses what can never be sent. Wrong keys and ranges are no such
// thing: they end the queue pair when their turn comes.
func (q *qp) checkSend(wr *driver.SendWR) error {
	const op = "post send"
	dev, limit := q.pd.dev, &q.init.Cap
	if int(wr.Op) >= len(requiredCaps) {
		return driver.Unsupported(op, "operation %s (%d)", wr.Op, wr.Op)
	}
	if err := driver.CheckOpcode(q.init.Type, wr.Op); err != nil {
		return err
	}
	if need := requiredCaps[wr.Op]; !dev.attr.Caps.Has(need) {
		return driver.Unsupported(op, "%s: device %s has no %s", wr.Op, dev.name, need)
	}
	if extra := wr.Flags &^ sendFlags; extra != 0 {
		return driver.Errorf(op, driver.ErrInvalid, "flags %#x are unknown", uint32(extra))
	}
	if len(wr.SGL) > limit.MaxSendSGE {
		return driver.Errorf(op, driver.ErrInvalid, "%d gather entries, the queue pair was made for %d", len(wr.SGL), limit.MaxSendSGE)
	}
	if wr.Op == driver.OpRead && len(wr.SGL) > max(dev.attr.MaxSGERead, 1) {
		return driver.Errorf(op, driver.ErrInvalid, "%d entries of a read, device %s has %d (DeviceAttr.MaxSGERead)", len(wr.SGL), dev.name, dev.attr.MaxSGERead)
	}
	var total uint64
	for i := range wr.SGL {
		total += uint64(wr.SGL[i].Length)
	}
	if err := q.checkDatagram(wr, total); err != nil {
		return err
	}
	atomic, inline := wr.Op == driver.OpCompareSwap || wr.Op == driver.OpFetchAdd, wr.Flags&driver.Inline != 0
	switch {
	case total > dev.maxMessage:
		return driver.Errorf(op, driver.ErrInvalid, "a message of %d bytes; the port takes %d at most, split it", total, dev.maxMessage)
	case inline && (atomic || wr.Op == driver.OpRead):
		return driver.Errorf(op, driver.ErrInvalid, "%s cannot be inline: its memory is written to", wr.Op)
	case inline && total > uint64(limit.MaxInline):
		return driver.Errorf(op, driver.ErrInvalid, "%d inline bytes, the queue pair was made for %d", total, limit.MaxInline)
	case atomic && total != 8:
		return driver.Errorf(op, driver.ErrInvalid, "%s returns 8 bytes, the list has room for %d", wr.Op, total)
	case atomic && wr.Remote.Addr%8 != 0:
		return driver.Errorf(op, driver.ErrInvalid, "%s at %#x; the address must be a multiple of 8", wr.Op, wr.Remote.Addr)
	}
	return nil
}

// checkDatagram refuses a datagram that has no destination, or is longer than a
// packet: the device would say that it was sent, and send nothing.
func (q *qp) checkDatagram(wr *driver.SendWR, size uint64) error {
	const op = "post send"
	if q.dests == nil {
		return nil
	}
	a, ok := wr.AH.(*ah)
	switch limit := q.maxDatagram.Load(); {
	case wr.AH == nil:
		return driver.Errorf(op, driver.ErrInvalid, "AH is nil; a datagram needs an address handle, see PD.CreateAH")
	case !ok || a.pd != q.pd:
		return driver.Errorf(op, driver.ErrInvalid, "the address handle is of another protection domain than the queue pair")
	case wr.RemoteQPN > maxQPN:
		return driver.Errorf(op, driver.ErrInvalid, "RemoteQPN is %#x, over 24 bits", wr.RemoteQPN)
	case size > limit:
		return driver.Errorf(op, driver.ErrInvalid, "a datagram of %d bytes; it must fit a packet of the port, whose MTU is %d (PortAttr.ActiveMTU)", size, limit)
	}
	return nil
}

// PostRecv implements driver.QP.
func (q *qp) PostRecv(wrs []driver.RecvWR) (int, error) {
	const op = "post receive"
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	state := driver.QPState(q.state.Load())
	switch {
	case q.gone:
		return 0, driver.Errorf(op, driver.ErrClosed, "the queue pair is closed")
	case q.srq != nil:
		return 0, driver.Errorf(op, driver.ErrInvalid, "the queue pair receives from a shared queue; post there")
	case state == driver.StateReset:
		return 0, driver.Errorf(op, driver.ErrInvalid, "the queue pair is in RESET; move it to INIT first")
	case state == driver.StateErr && q.pd.dev.removal.isGone():
		return 0, q.pd.dev.removedErr(op)
	case state == driver.StateErr:
		return q.flushReceives(wrs)
	}
	token := q.token.Load()
	for n := 0; n < len(wrs); {
		taken, stop := q.collectRecv(wrs[n:], token)
		posted, err := q.recv.post(q.h, false)
		q.pd.dev.stats.crossings.Add(1)
		q.pd.dev.stats.recvs.Add(uint64(posted))
		if err != nil {
			q.rq.head.Add(-uint32(taken - posted))
			return n + posted, postError(op, err)
		}
		if n += taken; stop != nil {
			return n, stop
		}
	}
	return len(wrs), nil
}

// collectRecv is collect for receives.
func (q *qp) collectRecv(wrs []driver.RecvWR, token uint64) (taken int, stop error) {
	for i := range wrs {
		wr := &wrs[i]
		if stop = checkRecv(wr, q.init.Cap.MaxRecvSGE); stop != nil {
			return i, stop
		}
		pos := q.rq.head.Load()
		if pos-q.rq.tail.Load() >= q.rq.depth {
			return i, recvFull(int(q.rq.depth))
		}
		if !q.recv.add(wr, makeToken(kindRecv, token, pos), q.pd.dev.iwarp()) {
			return i, nil
		}
		q.rq.put(pos, wr.ID, driver.WCRecv)
		q.rq.head.Store(pos + 1)
	}
	return len(wrs), nil
}

// flushReceives gives receives back that are posted in ERR. Software drivers
// keep them for ever, since they look at a receive queue only when a packet comes.
func (q *qp) flushReceives(wrs []driver.RecvWR) (int, error) {
	for i := range wrs {
		if err := checkRecv(&wrs[i], q.init.Cap.MaxRecvSGE); err != nil {
			return i, err
		}
		pos := q.rq.head.Load()
		if pos-q.rq.tail.Load() >= q.rq.depth {
			return i, recvFull(int(q.rq.depth))
		}
		q.rq.put(pos, wrs[i].ID, driver.WCRecv)
		q.rq.head.Store(pos + 1)
		q.recvCQ.addLate(makeToken(kindRecv, q.token.Load(), pos))
	}
	return len(wrs), nil
}

func checkRecv(wr *driver.RecvWR, maxSGE int) error {
	if len(wr.SGL) > maxSGE {
		return driver.Errorf("post receive", driver.ErrInvalid, "%d scatter entries, the queue was made for %d", len(wr.SGL), maxSGE)
	}
	return nil
}

func recvFull(depth int) error {
	return driver.Errorf("post receive", driver.ErrQueueFull, "%d receives are posted; poll completions, or create the queue with a larger MaxRecvWR", depth)
}

// postError names the library's refusals.
func postError(op string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOMEM):
		return &driver.Error{Op: op, Kind: driver.ErrQueueFull, Err: err}
	case errors.Is(err, syscall.EINVAL):
		return &driver.Error{Op: op, Kind: driver.ErrInvalid, Err: err}
	}
	return &driver.Error{Op: op, Err: err}
}
