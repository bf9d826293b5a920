package xfer

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"cinnabar/verbs"
)

// link is what one transfer has of a device: a protection domain of its own,
// so that no peer can reach another's buffers, one completion queue for both
// directions, the queue pair, and the memory.
//
// The control memory is cut into slots of maxMessage bytes: one for each receive,
// then one for each message that can be under way.
type link struct {
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	ctl  *verbs.MR
	data *verbs.MR // the data buffers, one behind the other
	conn *verbs.Conn

	receives int  // slots for receives
	bare     bool // receives have no memory: they are for immediate data only
	free     []int
	wrs      []verbs.SendWR // posted together
	sges     []verbs.SGE
	recv     [1]verbs.RecvWR
	recvSGE  [1]verbs.SGE
}

// Numbers of slots for a transfer of so many buffers: besides the announcements
// of chunks or the credits there are opening, end and refusal; a send queue
// holds a write besides each announcement.
func receiveSlots(buffers int) int { return buffers + 4 }
func sendSlots(buffers int) int    { return 2*buffers + 8 }

// newLink makes all but the data buffers and the connection.
func newLink(dev *verbs.Device, buffers int, bare bool) (*link, error) {
	l := &link{receives: receiveSlots(buffers), bare: bare}
	sends := sendSlots(buffers)
	if err := l.create(dev, sends); err != nil {
		return nil, errors.Join(err, l.close())
	}
	for i := range sends {
		l.free = append(l.free, l.receives+i)
	}
	l.wrs = make([]verbs.SendWR, 0, 2*sends)
	l.sges = make([]verbs.SGE, 0, 2*sends)
	return l, nil
}

func (l *link) create(dev *verbs.Device, sends int) (err error) {
	if l.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if l.cq, err = dev.CreateCQ(2*sends + l.receives); err != nil {
		return err
	}
	cfg := verbs.QPConfig{SendCQ: l.cq, MaxSendWR: 2 * sends, MaxRecvWR: l.receives, MaxSendSGE: 1, MaxRecvSGE: 1}
	if l.qp, err = l.pd.CreateQP(cfg); err != nil {
		return err
	}
	l.ctl, err = l.pd.AllocMR((l.receives+sends)*maxMessage, verbs.LocalWrite)
	return err
}

// allocate makes the data buffers, open to the peer's writes if access says so.
func (l *link) allocate(buffers, chunk int, access verbs.Access) (err error) {
	if buffers > math.MaxInt/chunk { // on a 32-bit system
		return failf(CodeTooLarge, "%d buffers of %d bytes are more than this system can address", buffers, chunk)
	}
	l.data, err = l.pd.AllocMR(buffers*chunk, verbs.LocalWrite|access)
	return err
}

// postReceive posts the receive of a slot.
func (l *link) postReceive(slot int) error {
	l.recv[0] = verbs.RecvWR{ID: receiveID(slot)}
	if !l.bare {
		l.recvSGE[0] = l.ctl.SGE(slot*maxMessage, maxMessage)
		l.recv[0].SGL = l.recvSGE[:]
	}
	_, err := l.qp.PostRecv(l.recv[:])
	return err
}

// longest returns the bytes of memory of each receive.
func (l *link) longest() uint32 {
	if l.bare {
		return 0
	}
	return maxMessage
}

// message returns the n bytes that came into a receive slot; n is longest at most.
func (l *link) message(slot, n int) []byte { return l.ctl.Bytes()[slot*maxMessage:][:n] }

// stage adds a work request to those that flush posts.
func (l *link) stage(wr verbs.SendWR, mr *verbs.MR, offset, n int) {
	if n > 0 {
		l.sges = append(l.sges, mr.SGE(offset, n))
		wr.SGL = l.sges[len(l.sges)-1:]
	}
	l.wrs = append(l.wrs, wr)
}

// stageMessage adds the sending of msg, which is copied. buffer is the data
// buffer that becomes free with its completion, or none.
func (l *link) stageMessage(msg []byte, buffer int) error {
	if len(l.free) == 0 {
		return failf(CodeProtocol, "the peer does not take the messages that it provokes")
	}
	slot := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	copy(l.ctl.Bytes()[slot*maxMessage:][:maxMessage], msg)
	l.stage(verbs.SendWR{ID: sendID(slot, buffer), Op: verbs.OpSend, Flags: verbs.Signaled}, l.ctl, slot*maxMessage, len(msg))
	return nil
}

// flush posts what was staged, in one call.
func (l *link) flush() error {
	if len(l.wrs) == 0 {
		return nil
	}
	_, err := l.qp.PostSend(l.wrs)
	l.wrs, l.sges = l.wrs[:0], l.sges[:0]
	return err
}

// release takes back the slot of a message that is sent.
func (l *link) release(slot int) { l.free = append(l.free, slot) }

// part disconnects, which gets what was posted to the peer, if that takes no
// longer than limit. The peer may be gone already, so failures mean nothing.
func (l *link) part(limit time.Duration) {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = l.conn.Disconnect(ctx) // the transfer has its result already
}

// close gives everything back. Nobody may use the memory any more.
func (l *link) close() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	for _, mr := range []*verbs.MR{l.data, l.ctl} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if l.cq != nil {
		errs = append(errs, l.cq.Close())
	}
	if l.pd != nil {
		errs = append(errs, l.pd.Close())
	}
	return errors.Join(errs...)
}

// closeLink closes the link of a transfer that is decided. What cannot be given back
// is told to the log: it changes nothing about the file.
func closeLink(l *link, log *slog.Logger) {
	if err := l.close(); err != nil {
		log.LogAttrs(context.Background(), slog.LevelError, "resources of the device not given back", slog.Any("err", err))
	}
}

// The ids of work requests: the control slot, the data buffer plus one, and what
// kind it is.
const (
	idSlotBits = 24
	idReceive  = 1 << 62
	idWrite    = 1 << 61
)

func receiveID(slot int) uint64      { return idReceive | uint64(slot) }
func sendID(slot, buffer int) uint64 { return uint64(buffer+1)<<idSlotBits | uint64(slot) }
func writeID(buffer int) uint64      { return idWrite | uint64(buffer+1)<<idSlotBits }

func idSlot(id uint64) int   { return int(id & (1<<idSlotBits - 1)) }
func idBuffer(id uint64) int { return int(id>>idSlotBits&(1<<idSlotBits-1)) - 1 }
