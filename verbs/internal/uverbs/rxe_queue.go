//go:build linux

package uverbs

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Where struct rxe_queue_buf of rdma/rdma_user_rxe.h has its fields.
const (
	rxeLogElemAt  = 0
	rxeMaskAt     = 4
	rxeProducerAt = 128
	rxeConsumerAt = 256
	rxeDataAt     = 384
)

// rxeQueue is a queue that is shared with the kernel. Its indices run from 0 to mask, so
// that one element is always free. The end that the process moves is kept in own, and the
// sizes are kept too: only the other end is read from shared memory, and masked, so that
// nothing that stands there leads out of the mapping.
type rxeQueue struct {
	mem  []byte // nil: it is not mapped
	data []byte // (mask+1) << shift bytes of mem
	// The ends: the producer's index and the consumer's.
	producer, consumer *atomic.Uint32
	mask, own          uint32
	shift              uint
}

// mapRxeQueue maps a queue that struct mminfo describes, whose elements have at least elem
// bytes. The kernel describes a queue that it has not made by zeros.
func mapRxeQueue(fd int, info []byte, elem int) (rxeQueue, error) {
	offset, size := native.Uint64(info), native.Uint32(info[8:])
	if size == 0 {
		return rxeQueue{}, nil
	}
	mem, err := unix.Mmap(fd, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return rxeQueue{}, err
	}
	q, err := newRxeQueue(mem, elem)
	if err != nil {
		_ = unix.Munmap(mem) // err is the news
	}
	return q, err
}

// newRxeQueue checks the head of a queue in mem. It fails with EPROTO if it makes no sense.
func newRxeQueue(mem []byte, elem int) (rxeQueue, error) {
	if len(mem) < rxeDataAt {
		return rxeQueue{}, syscall.EPROTO
	}
	shift, mask := native.Uint32(mem[rxeLogElemAt:]), native.Uint32(mem[rxeMaskAt:])
	slots := uint64(mask) + 1
	if shift > 20 || 1<<shift < elem || slots&(slots-1) != 0 || slots<<shift > uint64(len(mem)-rxeDataAt) {
		return rxeQueue{}, syscall.EPROTO
	}
	return rxeQueue{
		mem: mem, data: mem[rxeDataAt : rxeDataAt+slots<<shift], mask: mask, shift: uint(shift),
		producer: word(mem, rxeProducerAt), consumer: word(mem, rxeConsumerAt),
	}, nil
}

// slot returns the element of an index.
func (q *rxeQueue) slot(i uint32) []byte {
	at := uint64(i&q.mask) << q.shift
	return q.data[at : at+1<<q.shift : at+1<<q.shift]
}

// full reports whether the process, which produces, finds no free element.
func (q *rxeQueue) full() bool {
	return (q.own+1)&q.mask == q.consumer.Load()&q.mask
}

// advance takes the element at own into the queue. The kernel sees it after publish.
func (q *rxeQueue) advance() { q.own = (q.own + 1) & q.mask }

// publish shows the kernel what was produced.
func (q *rxeQueue) publish() { q.producer.Store(q.own) }

// withdraw takes back what was produced since start. The kernel must not have looked at it.
func (q *rxeQueue) withdraw(start uint32) {
	q.own = start
	q.publish()
}

// empty reports whether the kernel has consumed all that the process has produced.
func (q *rxeQueue) empty() bool { return q.own == q.consumer.Load()&q.mask }

func (q *rxeQueue) unmap() error {
	if q.mem == nil {
		return nil
	}
	err := unix.Munmap(q.mem)
	*q = rxeQueue{}
	return err
}
