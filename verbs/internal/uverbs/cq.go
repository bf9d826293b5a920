//go:build linux

package uverbs

import (
	"errors"
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// Channel is a non-blocking descriptor that events of completion queues arrive at.
type Channel struct{ fd int }

// CreateChannel makes a channel.
func (c *Context) CreateChannel() (*Channel, error) {
	r := newRequest(cmdCreateChannel, 4) // struct ib_uverbs_create_comp_channel_resp
	if err := r.send(c.fd); err != nil {
		return nil, err
	}
	fd, err := nonBlocking(int(int32(r.respU32(0))))
	if err != nil {
		return nil, err
	}
	return &Channel{fd}, nil
}

// FD is the channel's descriptor. It belongs to the channel.
func (ch *Channel) FD() int { return ch.fd }

// Next takes one event. It fails with EAGAIN if no event waits.
func (ch *Channel) Next() error {
	var b [8]byte // struct ib_uverbs_comp_event_desc
	return readEvent(ch.fd, b[:])
}

// Close closes the descriptor.
func (ch *Channel) Close() error { return unix.Close(ch.fd) }

// CQ is a completion queue.
type CQ struct {
	ctx    *Context
	handle uint32
	depth  int
	ring   cqRing
}

// CreateCQ makes a queue of at least depth completions. Asynchronous events about it
// carry id. Its completion events go to ch, unless that is nil.
func (c *Context) CreateCQ(depth int, id uint64, ch *Channel) (*CQ, error) {
	const respSize = 8 // struct ib_uverbs_create_cq_resp
	if depth < 0 || depth > math.MaxInt32 {
		return nil, syscall.EINVAL
	}
	channel := int32(-1)
	if ch != nil {
		channel = int32(ch.fd)
	}
	r := newRequest(cmdCreateCQ, respSize+c.prov.sizes().cq).u64(id).u32(uint32(depth), 0, uint32(channel), 0)
	if err := r.send(c.fd); err != nil {
		return nil, err
	}
	q := &CQ{ctx: c, handle: r.respU32(0), depth: int(r.respU32(4))}
	var err error
	if q.ring, err = c.prov.openCQ(q, r.resp[respSize:]); err != nil {
		return nil, errors.Join(err, q.destroy())
	}
	return q, nil
}

func (q *CQ) destroy() error {
	return newRequest(cmdDestroyCQ, 8).u32(q.handle, 0).destroy(q.ctx.fd) // struct ib_uverbs_destroy_cq_resp
}

// Depth is how many completions the queue holds.
func (q *CQ) Depth() int { return q.depth }

// Resize changes the depth. It fails with EOPNOTSUPP where the driver cannot, and with
// EINVAL if there are more completions in the queue.
func (q *CQ) Resize(depth int) error {
	const respSize = 8 // struct ib_uverbs_resize_cq_resp
	size := q.ctx.prov.sizes().resizeCQ
	if size == 0 {
		return syscall.EOPNOTSUPP
	}
	if depth < 0 || depth > math.MaxInt32 {
		return syscall.EINVAL
	}
	r := newRequest(cmdResizeCQ, respSize+size).u32(q.handle, uint32(depth))
	if err := r.send(q.ctx.fd); err != nil {
		return err
	}
	q.depth = int(r.respU32(0))
	return q.ring.resized(r.resp[respSize:])
}

// Moderate fails with EOPNOTSUPP, because neither driver moderates events.
func (q *CQ) Moderate(count, periodUS int) error { return syscall.EOPNOTSUPP }

// Arm asks for one event of the next completion, or of the next solicited one. Completions that are in the queue already may make no event, so the
// caller polls after Arm.
func (q *CQ) Arm(solicited bool) error { return q.ring.arm(solicited) }

// Poll takes up to len(out) completions. It does not block.
func (q *CQ) Poll(out []WC) (int, error) { return q.ring.poll(out) }

// Close ends the queue. It fails with EBUSY while queue pairs use it.
func (q *CQ) Close() error {
	if err := q.destroy(); err != nil {
		return err
	}
	return q.ring.close()
}
