//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"runtime"
	"syscall"

	"cinnabar/internal/hostmem"

	"golang.org/x/sys/unix"
)

// Commands, enum ib_uverbs_write_cmds of rdma/ib_user_verbs.h.
const (
	cmdQueryDevice   = 1
	cmdQueryPort     = 2
	cmdAllocPD       = 3
	cmdDeallocPD     = 4
	cmdCreateAH      = 5
	cmdDestroyAH     = 8
	cmdRegMR         = 9
	cmdDeregMR       = 13
	cmdAllocMW       = 14
	cmdDeallocMW     = 16
	cmdCreateChannel = 17
	cmdCreateCQ      = 18
	cmdResizeCQ      = 19
	cmdDestroyCQ     = 20
	cmdReqNotifyCQ   = 23
	cmdCreateQP      = 24
	cmdQueryQP       = 25
	cmdModifyQP      = 26
	cmdDestroyQP     = 27
	cmdPostSend      = 28
	cmdCreateSRQ     = 32
	cmdModifySRQ     = 33
	cmdQuerySRQ      = 34
	cmdDestroySRQ    = 35
)

const (
	headerSize = 8  // struct ib_uverbs_cmd_hdr
	bodyAt     = 16 // where the fields of a command begin that has a response
)

var native = binary.NativeEndian

// request is a command that is being built: struct ib_uverbs_cmd_hdr, the address of
// the response if the command has one, then fields in the order of the kernel's struct.
type request struct {
	b    []byte
	resp []byte
}

// newRequest starts a command with a response of the given number of bytes; 0 means no response.
func newRequest(command uint32, respLen int) *request {
	r := &request{b: make([]byte, headerSize, 256)}
	native.PutUint32(r.b, command)
	if respLen > 0 {
		r.resp = make([]byte, respLen)
		r.u64(0)
	}
	return r
}

func (r *request) u64(values ...uint64) *request {
	for _, v := range values {
		r.b = native.AppendUint64(r.b, v)
	}
	return r
}

func (r *request) u32(values ...uint32) *request {
	for _, v := range values {
		r.b = native.AppendUint32(r.b, v)
	}
	return r
}

func (r *request) u16(values ...uint16) *request {
	for _, v := range values {
		r.b = native.AppendUint16(r.b, v)
	}
	return r
}

func (r *request) raw(b ...byte) *request {
	r.b = append(r.b, b...)
	return r
}

// finish fills the fields that depend on the lengths. The caller has pinned resp.
func (r *request) finish() {
	native.PutUint16(r.b[4:], uint16(len(r.b)/4))
	native.PutUint16(r.b[6:], uint16(len(r.resp)/4))
	if len(r.resp) > 0 {
		native.PutUint64(r.b[headerSize:], hostmem.Addr(r.resp))
	}
}

// send carries the command out. The response is in r.resp afterwards.
func (r *request) send(fd int) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(r.resp) > 0 {
		pin.Pin(&r.resp[0])
	}
	r.finish()
	for {
		n, err := unix.Write(fd, r.b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n != len(r.b) {
			err = syscall.EPROTO // not EIO, which says that the device is gone
		}
		return err
	}
}

func (r *request) respU32(at int) uint32 { return native.Uint32(r.resp[at:]) }

// destroy carries out a command that ends an object. The kernel has ended the objects of
// a device that is gone (EIO), so it then succeeds.
func (r *request) destroy(fd int) error {
	if err := r.send(fd); err != nil && !errors.Is(err, syscall.EIO) {
		return err
	}
	return nil
}
