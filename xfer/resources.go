package xfer

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"cinnabar/internal/grace"
	"cinnabar/verbs"
)

// resources are the objects of a device that one transfer uses: a protection domain of its own,
// so that no peer can reach another's buffers, one completion queue for both
// directions, the queue pair, and the memory.
//
// The control memory is cut into slots of maxMessage bytes: one for each receive,
// then one for each message that can be under way.
type resources struct {
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

// choiceSlots is the number of further slots in each direction if the receiver may choose: for WANT, NOTE, and a NOTE that says that the file works.
const choiceSlots = 2*mostUnderWay + 1

// newResources makes all but the data buffers and the connection.
func newResources(dev *verbs.Device, buffers int, bare, chooses bool) (*resources, error) {
	r := &resources{receives: receiveSlots(buffers), bare: bare}
	sends := sendSlots(buffers)
	if chooses {
		r.receives, sends = r.receives+choiceSlots, sends+choiceSlots
	}
	if err := r.create(dev, sends); err != nil {
		return nil, errors.Join(err, r.close())
	}
	for i := range sends {
		r.free = append(r.free, r.receives+i)
	}
	r.wrs = make([]verbs.SendWR, 0, 2*sends)
	r.sges = make([]verbs.SGE, 0, 2*sends)
	return r, nil
}

func (r *resources) create(dev *verbs.Device, sends int) (err error) {
	if r.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if r.cq, err = dev.CreateCQ(2*sends + r.receives); err != nil {
		return err
	}
	cfg := verbs.QPConfig{SendCQ: r.cq, MaxSendWR: 2 * sends, MaxRecvWR: r.receives, MaxSendSGE: 1, MaxRecvSGE: 1}
	if r.qp, err = r.pd.CreateQP(cfg); err != nil {
		return err
	}
	r.ctl, err = r.pd.AllocMR((r.receives+sends)*maxMessage, verbs.LocalWrite)
	return err
}

// allocate makes the data buffers, open to the peer's writes if access says so.
func (r *resources) allocate(buffers, chunk int, access verbs.Access) (err error) {
	if buffers > math.MaxInt/chunk { // on a 32-bit system
		return failf(CodeTooLarge, "%d buffers of %d bytes are more than this system can address", buffers, chunk)
	}
	r.data, err = r.pd.AllocMR(buffers*chunk, verbs.LocalWrite|access)
	return err
}

// postReceive posts the receive of a slot.
func (r *resources) postReceive(slot int) error {
	r.recv[0] = verbs.RecvWR{ID: receiveID(slot)}
	if !r.bare {
		r.recvSGE[0] = r.ctl.SGE(slot*maxMessage, maxMessage)
		r.recv[0].SGL = r.recvSGE[:]
	}
	_, err := r.qp.PostRecv(r.recv[:])
	return err
}

// longest returns the bytes of memory of each receive.
func (r *resources) longest() uint32 {
	if r.bare {
		return 0
	}
	return maxMessage
}

// message returns the n bytes that came into a receive slot; n is longest at most.
func (r *resources) message(slot, n int) []byte { return r.ctl.Bytes()[slot*maxMessage:][:n] }

// stage adds a work request to those that flush posts.
func (r *resources) stage(wr verbs.SendWR, mr *verbs.MR, offset, n int) {
	if n > 0 {
		r.sges = append(r.sges, mr.SGE(offset, n))
		wr.SGL = r.sges[len(r.sges)-1:]
	}
	r.wrs = append(r.wrs, wr)
}

// stageMessage adds the sending of msg, which is copied. buffer is the data
// buffer that becomes free with its completion, or none.
func (r *resources) stageMessage(msg []byte, buffer int) error {
	if len(r.free) == 0 {
		return failf(CodeProtocol, "the peer does not take the messages that it provokes")
	}
	slot := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	copy(r.ctl.Bytes()[slot*maxMessage:][:maxMessage], msg)
	r.stage(verbs.SendWR{ID: sendID(slot, buffer), Op: verbs.OpSend, Flags: verbs.Signaled}, r.ctl, slot*maxMessage, len(msg))
	return nil
}

// flush posts the staged work requests in one call.
func (r *resources) flush() error {
	if len(r.wrs) == 0 {
		return nil
	}
	_, err := r.qp.PostSend(r.wrs)
	r.wrs, r.sges = r.wrs[:0], r.sges[:0]
	return err
}

// release takes back the slot of a message that is sent.
func (r *resources) release(slot int) { r.free = append(r.free, slot) }

// disconnect sends the posted messages and ends the connection, within limit, or within grace.Interrupted once
// ctx has ended. The peer may be gone already, so failures mean nothing.
func (r *resources) disconnect(ctx context.Context, limit time.Duration) {
	if r.conn == nil {
		return
	}
	ctx, cancel := grace.Period(ctx, limit)
	defer cancel()
	_ = r.conn.Disconnect(ctx) // the transfer has its result already
}

// close closes all objects. The memory must not be in use any more.
func (r *resources) close() error {
	var errs []error
	if r.qp != nil {
		errs = append(errs, r.qp.Close())
	}
	for _, mr := range []*verbs.MR{r.data, r.ctl} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if r.cq != nil {
		errs = append(errs, r.cq.Close())
	}
	if r.pd != nil {
		errs = append(errs, r.pd.Close())
	}
	return errors.Join(errs...)
}

// closeResources closes the objects of a transfer that has its result. It logs a failure, which changes nothing
// about the file.
func closeResources(r *resources, log *slog.Logger) {
	if err := r.close(); err != nil {
		log.LogAttrs(context.Background(), slog.LevelError, "resources of the device not given back", slog.Any("err", err))
	}
}

// The ids of work requests: the control slot, the data buffer plus one, and the
// kind.
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
