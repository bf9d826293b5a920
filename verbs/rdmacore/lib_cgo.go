//go:build rdma && linux && cgo

package rdmacore

/*
#cgo LDFLAGS: -ldl
#cgo noescape cn_post_send
#cgo nocallback cn_post_send
#cgo noescape cn_post_recv
#cgo nocallback cn_post_recv
#cgo noescape cn_poll_cq
#cgo nocallback cn_poll_cq
#cgo noescape cn_arm_cq
#cgo nocallback cn_arm_cq
#cgo noescape cn_cq_event
#cgo nocallback cn_cq_event
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"cinnabar/verbs"
)

// Handles are addresses of objects of the C libraries. Go code never dereferences them.
type (
	contextHandle   uint64 // struct ibv_context
	pdHandle        uint64 // struct ibv_pd
	mrHandle        uint64 // struct ibv_mr
	mwHandle        uint64 // struct ibv_mw
	channelHandle   uint64 // struct ibv_comp_channel
	cqHandle        uint64 // struct ibv_cq
	srqHandle       uint64 // struct ibv_srq
	qpHandle        uint64 // struct ibv_qp
	ahHandle        uint64 // struct ibv_ah
	cmChannelHandle uint64 // struct rdma_event_channel
	cmHandle        uint64 // struct rdma_cm_id
)

// result returns the error for rc, the result of a shim function: a negative rc is a negated errno.
func result(rc C.int) error {
	if rc < 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// loaderError has the text of dlerror(3). Its cause, ENOENT for a library that is
// missing and ENOSYS for one that is too old, is not in the text.
type loaderError struct {
	text  string
	cause error
}

func (e *loaderError) Error() string { return e.text }
func (e *loaderError) Unwrap() error { return e.cause }

// loadError is about libraries that cannot be opened or lack a function.
func loadError(op string, err error) error {
	e := &verbs.Error{Op: op, Kind: errors.ErrUnsupported, Err: err,
		Detail: "the libraries of rdma-core cannot be opened; install the packages libibverbs1, librdmacm1 and ibverbs-providers"}
	if errors.Is(err, syscall.ENOSYS) {
		e.Detail = "the libraries of rdma-core are too old; install version 22 of it or a newer one"
	}
	return e
}

// load opens the libraries, once for the process.
var load = sync.OnceValue(func() error {
	var text [512]C.char
	if err := result(C.cn_load(&text[0], C.int(len(text)))); err != nil {
		return &loaderError{C.GoString(&text[0]), err}
	}
	return nil
})

// loaded opens the libraries; its error names a missing one.
func loaded(op string) error {
	if err := load(); err != nil {
		return loadError(op, err)
	}
	return nil
}

// maxDevices bounds a listing.
const maxDevices = 256

func listDevices() ([]rawDevice, error) {
	raw := make([]C.struct_cn_dev, maxDevices)
	n := C.cn_devices(&raw[0], maxDevices)
	if err := result(n); err != nil {
		return nil, err
	}
	devices := make([]rawDevice, n)
	for i := range devices {
		d := &raw[i]
		devices[i] = rawDevice{C.GoString(&d.name[0]), uint64(d.guid), int(d.node_type), int(d.transport)}
	}
	return devices, nil
}

// openContext opens a device. asyncFD belongs to the context.
func openContext(name string) (ctx contextHandle, asyncFD int, err error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var h C.uint64_t
	var fd C.int
	err = result(C.cn_open(cname, &h, &fd))
	return contextHandle(h), int(fd), err
}

func closeContext(ctx contextHandle) error { return result(C.cn_close(C.uint64_t(ctx))) }

// queryDevice returns the limits as the driver gives them, without name, ports and the fields that this package sets.
func queryDevice(ctx contextHandle) (a verbs.DeviceAttr, ports int, err error) {
	var r C.struct_cn_attr
	if err := result(C.cn_query_device(C.uint64_t(ctx), &r)); err != nil {
		return a, 0, err
	}
	return verbs.DeviceAttr{
		FWVersion: C.GoString(&r.fw[0]), NodeGUID: verbs.GUID(r.node_guid), SysImageGUID: verbs.GUID(r.sys_guid),
		VendorID: uint32(r.vendor), VendorPartID: uint32(r.part), HWVersion: uint32(r.hw),
		MaxMRSize: uint64(r.max_mr_size), PageSizeCap: uint64(r.page_size_cap),
		MaxQP: int(r.max_qp), MaxQPWR: int(r.max_qp_wr), MaxSGE: int(r.max_sge), MaxSGERead: int(r.max_sge_rd),
		MaxCQ: int(r.max_cq), MaxCQE: int(r.max_cqe), MaxMR: int(r.max_mr), MaxPD: int(r.max_pd),
		MaxQPRDAtom: int(r.max_rd_atom), MaxQPInitRDAtom: int(r.max_init_rd_atom),
		MaxSRQ: int(r.max_srq), MaxSRQWR: int(r.max_srq_wr), MaxSRQSGE: int(r.max_srq_sge), MaxAH: int(r.max_ah), MaxMW: int(r.max_mw),
		AtomicCap: verbs.AtomicCap(r.atomic_cap), Caps: windowCaps(uint64(r.cap_flags)),
	}, int(r.ports), nil
}

func queryPort(ctx contextHandle, num int) (verbs.PortAttr, error) {
	var r C.struct_cn_port
	if err := result(C.cn_query_port(C.uint64_t(ctx), C.int(num), &r)); err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		Num: uint8(num), State: verbs.PortState(r.state), MaxMTU: verbs.MTU(r.max_mtu), ActiveMTU: verbs.MTU(r.active_mtu),
		LinkLayer: linkLayers[uint32(r.link_layer)], MaxMsgSize: uint64(r.max_msg), LID: uint16(r.lid), SMLID: uint16(r.sm_lid),
		PKeys: []uint16{0xffff}, GIDTableLen: int(r.gids),
	}, nil
}

// maxGIDs bounds the entries that are looked at; a table has room for thousands.
const maxGIDs = 256

// queryGIDs returns the entries of all ports that are set. Older libraries lack the call.
func queryGIDs(ctx contextHandle) ([]rawGID, error) {
	raw := make([]C.struct_cn_gid, maxGIDs)
	n := C.cn_query_gids(C.uint64_t(ctx), &raw[0], maxGIDs)
	if err := result(n); err != nil {
		return nil, err
	}
	table := make([]rawGID, n)
	for i := range table {
		r := &raw[i]
		table[i] = rawGID{GID: GID{Index: int(r.index), Type: gidTypes[uint32(r._type)]}, port: int(r.port), netdev: int(r.netdev)}
		for j, b := range r.raw {
			table[i].Addr[j] = byte(b)
		}
	}
	return table, nil
}

// nextAsync does not block: it fails with EAGAIN when there is no event.
func nextAsync(ctx contextHandle) (rawAsync, error) {
	var r C.struct_cn_async
	err := result(C.cn_async_get(C.uint64_t(ctx), &r))
	return rawAsync{verbs.EventType(r._type), uint64(r.id)}, err
}

func allocPD(ctx contextHandle) (pdHandle, error) {
	var h C.uint64_t
	err := result(C.cn_alloc_pd(C.uint64_t(ctx), &h))
	return pdHandle(h), err
}

func deallocPD(h pdHandle) error { return result(C.cn_dealloc_pd(C.uint64_t(h))) }

// regMR registers memory that its owner keeps in place. iova is the address of the first byte in work requests.
func regMR(pd pdHandle, addr, iova, size uint64, access verbs.Access) (h mrHandle, lkey, rkey uint32, err error) {
	var mr C.uint64_t
	var keys [2]C.uint32_t
	err = result(C.cn_reg_mr(C.uint64_t(pd), C.uint64_t(addr), C.uint64_t(iova), C.uint64_t(size), C.uint32_t(access), &mr, &keys[0]))
	return mrHandle(mr), uint32(keys[0]), uint32(keys[1]), err
}

// reregMR makes the changes in flags. After an error, lost reports whether the region can only be closed.
func reregMR(h mrHandle, flags int, pd pdHandle, addr, size uint64, access verbs.Access) (lkey, rkey uint32, lost bool, err error) {
	var keys [2]C.uint32_t
	var gone C.int
	err = result(C.cn_rereg_mr(C.uint64_t(h), C.int(flags), C.uint64_t(pd), C.uint64_t(addr), C.uint64_t(size), C.uint32_t(access), &keys[0], &gone))
	return uint32(keys[0]), uint32(keys[1]), gone != 0, err
}

func deregMR(h mrHandle) error { return result(C.cn_dereg_mr(C.uint64_t(h))) }

// createChannel makes a completion channel, which owns fd.
func createChannel(ctx contextHandle) (ch channelHandle, fd int, err error) {
	var h C.uint64_t
	var n C.int
	err = result(C.cn_create_channel(C.uint64_t(ctx), &h, &n))
	return channelHandle(h), int(n), err
}

func destroyChannel(ch channelHandle) error { return result(C.cn_destroy_channel(C.uint64_t(ch))) }

func createCQ(ctx contextHandle, depth int, id uint64, ch channelHandle) (h cqHandle, granted int, err error) {
	var cq C.uint64_t
	var n C.int
	err = result(C.cn_create_cq(C.uint64_t(ctx), C.int(depth), C.uint64_t(id), C.uint64_t(ch), &cq, &n))
	return cqHandle(cq), int(n), err
}

func resizeCQ(cq cqHandle, depth int) (granted int, err error) {
	var n C.int
	err = result(C.cn_resize_cq(C.uint64_t(cq), C.int(depth), &n))
	return int(n), err
}

// moderateCQ rounds period up to microseconds.
func moderateCQ(cq cqHandle, count int, period time.Duration) error {
	us := (period + time.Microsecond - 1) / time.Microsecond
	return result(C.cn_moderate_cq(C.uint64_t(cq), C.uint16_t(count), C.uint16_t(us)))
}

func destroyCQ(cq cqHandle) error { return result(C.cn_destroy_cq(C.uint64_t(cq))) }

func armCQ(cq cqHandle, solicitedOnly bool) error {
	return result(C.cn_arm_cq(C.uint64_t(cq), flag(solicitedOnly)))
}

// nextCQEvent does not block: it fails with EAGAIN when there is no event.
func nextCQEvent(ch channelHandle) error { return result(C.cn_cq_event(C.uint64_t(ch))) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func createSRQ(pd pdHandle, id uint64, init *verbs.SRQInit) (h srqHandle, err error) {
	var srq C.uint64_t
	wr, sge := C.uint32_t(init.MaxWR), C.uint32_t(init.MaxSGE)
	err = result(C.cn_create_srq(C.uint64_t(pd), C.uint64_t(id), &wr, &sge, C.uint32_t(init.Limit), &srq))
	return srqHandle(srq), err
}

func modifySRQ(h srqHandle, limit int) error {
	return result(C.cn_modify_srq(C.uint64_t(h), C.uint32_t(limit)))
}

func destroySRQ(h srqHandle) error { return result(C.cn_destroy_srq(C.uint64_t(h))) }

func createQP(in rawQP) (h qpHandle, num uint32, granted verbs.QPCap, err error) {
	r := C.struct_cn_qp_init{
		pd: C.uint64_t(in.pd), send_cq: C.uint64_t(in.sendCQ), recv_cq: C.uint64_t(in.recvCQ), srq: C.uint64_t(in.srq),
		id: C.uint64_t(in.id), _type: C.uint32_t(in.typ), sig_all: C.uint32_t(flag(in.signalAll)),
		send_wr: C.uint32_t(in.cap.MaxSendWR), recv_wr: C.uint32_t(in.cap.MaxRecvWR),
		send_sge: C.uint32_t(in.cap.MaxSendSGE), recv_sge: C.uint32_t(in.cap.MaxRecvSGE), inline_size: C.uint32_t(in.cap.MaxInline),
	}
	if err := result(C.cn_create_qp(&r)); err != nil {
		return 0, 0, granted, err
	}
	granted = verbs.QPCap{
		MaxSendWR: int(r.send_wr), MaxRecvWR: int(r.recv_wr), MaxSendSGE: int(r.send_sge), MaxRecvSGE: int(r.recv_sge),
		MaxInline: int(r.inline_size),
	}
	return qpHandle(r.qp), uint32(r.num), granted, nil
}

// rawPath returns the C form of a, a path to a peer. sgid is the index of the source GID in the port's table.
func rawPath(a *verbs.AHAttr, sgid int) C.struct_cn_path {
	r := C.struct_cn_path{
		flow_label: C.uint32_t(a.FlowLabel), dlid: C.uint16_t(a.DLID), sl: C.uint8_t(a.SL), path_bits: C.uint8_t(a.PathBits),
		port: C.uint8_t(a.PortNum), sgid_index: C.uint8_t(sgid), traffic_class: C.uint8_t(a.TrafficClass), hop_limit: C.uint8_t(a.HopLimit),
	}
	if a.HopLimit == 0 {
		r.hop_limit = defaultHopLimit
	}
	if a.GID != [16]byte{} {
		r.global = 1
	}
	for i, b := range a.GID {
		r.dgid[i] = C.uint8_t(b)
	}
	return r
}

// modifyQP sets the attributes that a.Mask names; sgid is the index of the source GID of a.AH.
func modifyQP(h qpHandle, a *verbs.QPAttr, sgid int) error {
	r := C.struct_cn_qp_attr{
		path: rawPath(&a.AH, sgid),
		mask: C.uint32_t(a.Mask), state: C.uint32_t(a.State), cur_state: C.uint32_t(a.CurState), access: C.uint32_t(a.Access),
		qkey: C.uint32_t(a.QKey), rq_psn: C.uint32_t(a.RQPSN), sq_psn: C.uint32_t(a.SQPSN), dest_qpn: C.uint32_t(a.DestQPN),
		path_mtu: C.uint32_t(a.PathMTU), pkey_index: C.uint16_t(a.PKeyIndex),
		port: C.uint8_t(max(a.Port, a.AH.PortNum)), timeout: C.uint8_t(a.Timeout), retry: C.uint8_t(a.RetryCount),
		rnr_retry: C.uint8_t(a.RNRRetry), min_rnr: C.uint8_t(a.MinRNRTimer), rd_atomic: C.uint8_t(a.MaxRDAtomic),
		dest_rd_atomic: C.uint8_t(a.MaxDestRDAtomic),
	}
	r.path.port = r.port
	if a.Mask&verbs.AttrState != 0 && a.State == verbs.StateSQD {
		r.sqd_notify = 1
	}
	return result(C.cn_modify_qp(C.uint64_t(h), &r))
}

func queryQP(h qpHandle) (verbs.QPAttr, error) {
	var r C.struct_cn_qp_attr
	if err := result(C.cn_query_qp(C.uint64_t(h), &r)); err != nil {
		return verbs.QPAttr{}, err
	}
	a := verbs.QPAttr{
		Mask:  verbs.QPAttrMask(r.mask) | verbs.AttrCap,
		State: verbs.QPState(r.state), Access: verbs.Access(r.access), Port: uint8(r.port), QKey: uint32(r.qkey), PathMTU: verbs.MTU(r.path_mtu),
		Timeout: uint8(r.timeout), RetryCount: uint8(r.retry), RNRRetry: uint8(r.rnr_retry), MinRNRTimer: uint8(r.min_rnr),
		MaxRDAtomic: uint8(r.rd_atomic), MaxDestRDAtomic: uint8(r.dest_rd_atomic), RQPSN: uint32(r.rq_psn), SQPSN: uint32(r.sq_psn),
		DestQPN: uint32(r.dest_qpn),
	}
	if a.Mask&verbs.AttrAV != 0 {
		a.AH = pathAttr(&r.path)
		a.AH.PortNum = max(a.AH.PortNum, a.Port)
	}
	return a, nil
}

// pathAttr returns the path to a peer of which r is the C form. It is the inverse of rawPath.
func pathAttr(r *C.struct_cn_path) verbs.AHAttr {
	a := verbs.AHAttr{DLID: uint16(r.dlid), SL: uint8(r.sl), PathBits: uint8(r.path_bits), PortNum: uint8(r.port)}
	if r.global == 0 {
		return a
	}
	a.FlowLabel, a.TrafficClass, a.HopLimit = uint32(r.flow_label), uint8(r.traffic_class), uint8(r.hop_limit)
	a.SGIDIndex, a.HasSGIDIndex = uint8(r.sgid_index), true
	for i, b := range r.dgid {
		a.GID[i] = byte(b)
	}
	return a
}

func destroyQP(h qpHandle) error { return result(C.cn_destroy_qp(C.uint64_t(h))) }

// createAH creates an address handle of the protection domain pd for the path a. sgid is the index of the source GID.
func createAH(pd pdHandle, a *verbs.AHAttr, sgid int) (ahHandle, error) {
	var h C.uint64_t
	r := rawPath(a, sgid)
	err := result(C.cn_create_ah(C.uint64_t(pd), &r, &h))
	return ahHandle(h), err
}

func allocMW(pd pdHandle, t verbs.MWType) (mwHandle, uint32, error) {
	var h C.uint64_t
	var rkey C.uint32_t
	err := result(C.cn_alloc_mw(C.uint64_t(pd), C.uint32_t(t), &h, &rkey))
	return mwHandle(h), uint32(rkey), err
}

func deallocMW(h mwHandle) error { return result(C.cn_dealloc_mw(C.uint64_t(h))) }

func destroyAH(h ahHandle) error { return result(C.cn_destroy_ah(C.uint64_t(h))) }
