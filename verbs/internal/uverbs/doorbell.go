//go:build linux

package uverbs

import (
	"cinnabar/internal/hostmem"
	"cinnabar/internal/rawcall"

	"golang.org/x/sys/unix"
)

// rawPayload is the largest number of bytes that a doorbell may make the kernel move in a raw system call. The
// kernel moves them within the call. A doorbell of more bytes is an ordinary call, because other goroutines and the
// garbage collector would wait for the end of a raw one.
const rawPayload = 4 << 10

// longPayload stands for an unknown number of bytes.
const longPayload = 1 << 62

// doorbell is a command that is written often: struct ib_uverbs_post_send without
// requests, or struct ib_uverbs_req_notify_cq. The command has the address of resp, so a
// doorbell is part of an object on the heap, because Go does not move the objects there.
type doorbell struct {
	fd   int
	n    int
	cmd  [32]byte
	resp [4]byte
}

// initSend makes it the doorbell of a send queue.
func (d *doorbell) initSend(fd int, qp uint32) {
	const size, sendWRSize = 32, 56
	d.fd, d.n = fd, size
	native.PutUint32(d.cmd[0:], cmdPostSend)
	native.PutUint16(d.cmd[4:], size/4)
	native.PutUint16(d.cmd[6:], uint16(len(d.resp)/4))
	native.PutUint64(d.cmd[8:], hostmem.Addr(d.resp[:]))
	native.PutUint32(d.cmd[16:], qp)
	native.PutUint32(d.cmd[28:], sendWRSize)
}

// initNotify makes it the request for an event of a completion queue.
func (d *doorbell) initNotify(fd int, cq uint32) {
	const size = 16
	d.fd, d.n = fd, size
	native.PutUint32(d.cmd[0:], cmdReqNotifyCQ)
	native.PutUint16(d.cmd[4:], size/4)
	native.PutUint32(d.cmd[8:], cq)
}

// notify asks for the event of the next completion, or of the next solicited one.
func (d *doorbell) notify(solicited bool) error {
	var v uint32
	if solicited {
		v = 1
	}
	native.PutUint32(d.cmd[12:], v)
	return d.ring(0) // nothing moves
}

// ring writes the command. payload is the number of bytes that the kernel may move in the call: those of the
// requests that are posted now, or longPayload if earlier ones may be waiting.
func (d *doorbell) ring(payload uint64) error {
	if payload > rawPayload {
		_, err := unix.Write(d.fd, d.cmd[:d.n])
		return err
	}
	_, err := rawcall.Write(d.fd, d.cmd[:d.n])
	return err
}
