//go:build linux

package uverbs

import (
	"errors"
	"fmt"
)

// provider is what differs between drivers: the private parts of requests and
// responses, and the queues that are mapped.
type provider interface {
	// driverID is the driver's RDMA_DRIVER_* of rdma/ib_user_ioctl_verbs.h.
	driverID() uint32
	sizes() respSizes
	// firmware formats ib_uverbs_query_device_resp.fw_ver as the driver's library does.
	firmware(version uint64) string
	// mrRequest is the driver's part of the request that registers memory; nil if it has none.
	mrRequest() []byte
	// The open functions map the queues of an object that the kernel has made; resp is
	// the driver's part of the response. If they fail they leave nothing mapped, and the
	// caller destroys the object.
	//
	// openCQ may change cq.depth to what is granted; cq.handle and cq.ctx are set.
	openCQ(cq *CQ, resp []byte) (cqRing, error)
	// openSRQ finds srq.ctx and srq.maxSGE, the granted entries of a request, set.
	openSRQ(srq *SRQ, resp []byte) (srqRing, error)
	// openQP may change qp.Cap. qp.handle, qp.Num, qp.typ, qp.signalAll and qp.srq are set.
	openQP(qp *QP, resp []byte) (qpRing, error)
	// openAH takes what work requests name the address handle by.
	openAH(ah *AH, resp []byte) error
}

// respSizes are the sizes of the driver's parts of responses in bytes, multiples of 4.
type respSizes struct {
	context, mr, cq, resizeCQ, srq, qp, ah int
}

// cqRing is a completion queue that is mapped. The caller serialises its methods.
type cqRing interface {
	// poll takes up to len(out) completions.
	poll(out []WC) (int, error)
	arm(solicited bool) error
	// resized maps the queue again after the kernel has resized it. If it fails the old
	// queue is unmapped too, because the kernel no longer uses it; poll then fails with EIO.
	resized(resp []byte) error
	close() error // unmaps
}

// qpRing is a pair of work queues that is mapped. postSend and postRecv may run at the
// same time. They return how many requests were taken; an error is about the next one.
type qpRing interface {
	postSend(wrs []SendWR, sges []SGE) (int, error)
	postRecv(wrs []RecvWR, sges []SGE) (int, error)
	close() error // unmaps
}

// srqRing is a shared receive queue that is mapped.
type srqRing interface {
	postRecv(wrs []RecvWR, sges []SGE) (int, error)
	close() error // unmaps
}

// providers are the drivers that Open tries.
var providers []provider

// DriverError is the error of Open for a device whose driver this package does not know.
type DriverError struct {
	Name   string // of the device
	Driver string // "" if unknown
}

func (e *DriverError) Error() string {
	return fmt.Sprintf("uverbs: %s has driver %q, which is neither rxe nor siw", e.Name, e.Driver)
}

// Is reports that the error is a case of errors.ErrUnsupported.
func (e *DriverError) Is(target error) bool { return target == errors.ErrUnsupported }
