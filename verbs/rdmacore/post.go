//go:build linux

package rdmacore

import (
	"errors"
	"syscall"

	"cinnabar/internal/verbsrules"
	"cinnabar/verbs"
)

// wcOps gives the completion's operation for each opcode.
var wcOps = [...]verbs.WCOp{
	verbs.OpWrite: verbs.WCWrite, verbs.OpWriteImm: verbs.WCWrite, verbs.OpSend: verbs.WCSend,
	verbs.OpSendImm: verbs.WCSend, verbs.OpRead: verbs.WCRead, verbs.OpCompareSwap: verbs.WCCompareSwap,
	verbs.OpFetchAdd: verbs.WCFetchAdd, verbs.OpSendInvalidate: verbs.WCSend,
	verbs.OpLocalInv: verbs.WCLocalInv, verbs.OpBindMW: verbs.WCBindMW,
}

// requiredCaps has the capabilities for each opcode; the device must have at least one of them. 0: every device has the operation.
var requiredCaps = [...]verbs.Caps{
	verbs.OpWriteImm: verbs.CapWriteImm, verbs.OpSendImm: verbs.CapSendImm, verbs.OpRead: 0,
	verbs.OpCompareSwap: verbs.CapAtomics, verbs.OpFetchAdd: verbs.CapAtomics,
	verbs.OpSendInvalidate: verbs.CapMW2, verbs.OpLocalInv: verbs.CapMW2, verbs.OpBindMW: verbs.CapMW1 | verbs.CapMW2,
}

// maxQPN is the highest number of a queue pair.
const maxQPN = 1<<24 - 1

// sendFlags are the flags that a request can have.
const sendFlags = verbs.Fence | verbs.Signaled | verbs.Solicited | verbs.Inline

// PostSend implements verbs.QPDriver. The program's requests cross to C in batches.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if s := verbs.QPState(q.state.Load()); q.gone {
		return 0, verbs.Errorf("post send", verbs.ErrClosed, "the queue pair is closed")
	} else if s < verbs.StateRTS {
		return 0, verbs.Errorf("post send", verbs.ErrInvalid, "the queue pair is in %s; sends are possible once it is connected", s)
	} else if s == verbs.StateErr && q.pd.dev.removal.isGone() {
		return 0, q.pd.dev.removedErr("post send")
	}
	if q.pd.dev.iwarp() && verbs.QPState(q.state.Load()) == verbs.StateErr {
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

// collect fills the batch and returns the number of requests it took. stop is the
// error of the next one; nil if there is none or it waits for the next batch.
func (q *qp) collect(wrs []verbs.SendWR, token uint64) (taken int, stop error) {
	for i := range wrs {
		wr := &wrs[i]
		if stop = q.checkSend(wr); stop != nil {
			return i, stop
		}
		pos := q.sq.head.Load()
		if pos-q.sq.tail.Load() >= q.sq.depth {
			return i, sendFull(q.sq.depth)
		}
		if wr.Op == verbs.OpBindMW {
			return q.collectBind(i, wr, pos, token)
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
		return verbs.Errorf("disconnect", verbs.ErrClosed, "the queue pair is closed")
	}
	pos := q.sq.head.Load()
	marker := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled | verbs.Fence} // siw completes writes before reads that were posted earlier
	var none ahHandle
	q.send.add(&marker, makeToken(kindMarker, q.token.Load(), pos), none)
	q.sq.skip(pos)
	q.sq.head.Store(pos + 1)
	if _, err := q.send.post(q.h); err != nil {
		q.sq.head.Store(pos)
		return postError("disconnect", err)
	}
	return nil
}

// flushSends gives sends back that are posted in ERR, which siw keeps.
func (q *qp) flushSends(wrs []verbs.SendWR) (int, error) {
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
	return verbs.Errorf("post send", verbs.ErrQueueFull, "%d requests are outstanding; poll their completions, or create the queue pair with a larger MaxSendWR", depth)
}

// checkSend refuses requests that can never be sent. Wrong keys and ranges are no such
// thing: they end the queue pair when their turn comes.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	const op = "post send"
	dev, limit := q.pd.dev, &q.init.Cap
	if int(wr.Op) >= len(requiredCaps) {
		return verbs.Unsupported(op, "operation %s (%d)", wr.Op, wr.Op)
	}
	if err := verbsrules.CheckOpcode(q.init.Type, wr.Op); err != nil {
		return err
	}
	if need := requiredCaps[wr.Op]; need != 0 && dev.attr.Caps&need == 0 {
		return verbs.Unsupported(op, "%s: device %s has no %s", wr.Op, dev.name, need)
	}
	if extra := wr.Flags &^ sendFlags; extra != 0 {
		return verbs.Errorf(op, verbs.ErrInvalid, "flags %#x are unknown", uint32(extra))
	}
	switch wr.Op {
	case verbs.OpBindMW:
		return q.checkBind(wr)
	case verbs.OpLocalInv:
		if len(wr.SGL) > 0 {
			return verbs.Errorf(op, verbs.ErrInvalid, "%s has %d gather entries; it sends nothing", wr.Op, len(wr.SGL))
		}
	default:
	}
	if len(wr.SGL) > limit.MaxSendSGE {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d gather entries, the queue pair was made for %d", len(wr.SGL), limit.MaxSendSGE)
	}
	if wr.Op == verbs.OpRead && len(wr.SGL) > max(dev.attr.MaxSGERead, 1) {
		return verbs.Errorf(op, verbs.ErrInvalid, "%d entries of a read, device %s has %d (DeviceAttr.MaxSGERead)", len(wr.SGL), dev.name, dev.attr.MaxSGERead)
	}
	var total uint64
	for i := range wr.SGL {
		total += uint64(wr.SGL[i].Length)
	}
	if err := q.checkDatagram(wr, total); err != nil {
		return err
	}
	atomic, inline := wr.Op == verbs.OpCompareSwap || wr.Op == verbs.OpFetchAdd, wr.Flags&verbs.Inline != 0
	switch {
	case total > dev.maxMessage:
		return verbs.Errorf(op, verbs.ErrInvalid, "a message of %d bytes; the port takes %d at most, split it", total, dev.maxMessage)
	case inline && (atomic || wr.Op == verbs.OpRead):
		return verbs.Errorf(op, verbs.ErrInvalid, "%s cannot be inline: its memory is written to", wr.Op)
	case inline && total > uint64(limit.MaxInline):
		return verbs.Errorf(op, verbs.ErrInvalid, "%d inline bytes, the queue pair was made for %d", total, limit.MaxInline)
	case atomic && total != 8:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s returns 8 bytes, the list has room for %d", wr.Op, total)
	case atomic && wr.Remote.Addr%8 != 0:
		return verbs.Errorf(op, verbs.ErrInvalid, "%s at %#x; the address must be a multiple of 8", wr.Op, wr.Remote.Addr)
	}
	return nil
}

// checkDatagram refuses a datagram that has no destination, or is longer than a
// packet: the device would say that it was sent, and send nothing.
func (q *qp) checkDatagram(wr *verbs.SendWR, size uint64) error {
	const op = "post send"
	if q.dests == nil {
		return nil
	}
	a, ok := wr.AH.(*ah)
	switch limit := q.maxDatagram.Load(); {
	case wr.AH == nil:
		return verbs.Errorf(op, verbs.ErrInvalid, "AH is nil; a datagram needs an address handle, see PD.CreateAH")
	case !ok || a.pd != q.pd:
		return verbs.Errorf(op, verbs.ErrInvalid, "the address handle is of another protection domain than the queue pair")
	case wr.RemoteQPN > maxQPN:
		return verbs.Errorf(op, verbs.ErrInvalid, "RemoteQPN is %#x, over 24 bits", wr.RemoteQPN)
	case size > limit:
		return verbs.Errorf(op, verbs.ErrInvalid, "a datagram of %d bytes; it must fit a packet of the port, with an MTU of %d (PortAttr.ActiveMTU)", size, limit)
	}
	return nil
}

// PostRecv implements verbs.QPDriver.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "post receive"
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	state := verbs.QPState(q.state.Load())
	switch {
	case q.gone:
		return 0, verbs.Errorf(op, verbs.ErrClosed, "the queue pair is closed")
	case q.srq != nil:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "the queue pair receives from a shared queue; post there")
	case state == verbs.StateReset:
		return 0, verbs.Errorf(op, verbs.ErrInvalid, "the queue pair is in RESET; move it to INIT first")
	case state == verbs.StateErr && q.pd.dev.removal.isGone():
		return 0, q.pd.dev.removedErr(op)
	case state == verbs.StateErr:
		return q.flushReceives(wrs)
	}
	token := q.token.Load()
	for n := 0; n < len(wrs); {
		taken, stop := q.collectRecv(wrs[n:], token)
		posted, err := q.recv.post(q.h)
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
func (q *qp) collectRecv(wrs []verbs.RecvWR, token uint64) (taken int, stop error) {
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
		q.rq.put(pos, wr.ID, verbs.WCRecv)
		q.rq.head.Store(pos + 1)
	}
	return len(wrs), nil
}

// flushReceives gives receives back that are posted in ERR. Software drivers
// keep them for ever, since they look at a receive queue only when a packet comes.
func (q *qp) flushReceives(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		if err := checkRecv(&wrs[i], q.init.Cap.MaxRecvSGE); err != nil {
			return i, err
		}
		pos := q.rq.head.Load()
		if pos-q.rq.tail.Load() >= q.rq.depth {
			return i, recvFull(int(q.rq.depth))
		}
		q.rq.put(pos, wrs[i].ID, verbs.WCRecv)
		q.rq.head.Store(pos + 1)
		q.recvCQ.addLate(makeToken(kindRecv, q.token.Load(), pos))
	}
	return len(wrs), nil
}

func checkRecv(wr *verbs.RecvWR, maxSGE int) error {
	if len(wr.SGL) > maxSGE {
		return verbs.Errorf("post receive", verbs.ErrInvalid, "%d scatter entries, the queue was made for %d", len(wr.SGL), maxSGE)
	}
	return nil
}

func recvFull(depth int) error {
	return verbs.Errorf("post receive", verbs.ErrQueueFull, "%d receives are posted; poll completions, or create the queue with a larger MaxRecvWR", depth)
}

// postError names the library's refusals.
func postError(op string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOMEM):
		return &verbs.Error{Op: op, Kind: verbs.ErrQueueFull, Err: err}
	case errors.Is(err, syscall.EINVAL):
		return &verbs.Error{Op: op, Kind: verbs.ErrInvalid, Err: err}
	case errors.Is(err, syscall.EACCES):
		return credentialsError(op, err)
	}
	return &verbs.Error{Op: op, Err: err}
}
