//go:build rdma && linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"net"
	"net/netip"
	"strconv"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

func cmChannel() (ch cmChannelHandle, fd int, err error) {
	var h C.uint64_t
	var n C.int
	err = result(C.cn_cm_channel(&h, &n))
	return cmChannelHandle(h), int(n), err
}

func cmDestroyChannel(ch cmChannelHandle) { C.cn_cm_destroy_channel(C.uint64_t(ch)) }

// cmNext does not block: it fails with EAGAIN when there is no event.
func cmNext(ch cmChannelHandle) (cmEvent, error) {
	var r C.struct_cn_cm_event
	if err := result(C.cn_cm_event_get(C.uint64_t(ch), &r)); err != nil {
		return cmEvent{}, err
	}
	p := &r.param
	ev := cmEvent{
		typ: rdmacm.EventType(r._type), status: int(r.status), ctx: uint64(r.ctx), child: cmHandle(r.child),
		param: cmParam{qpn: uint32(p.qpn), responder: uint8(p.responder), depth: uint8(p.depth), retry: uint8(p.retry), rnrRetry: uint8(p.rnr_retry)},
	}
	ev.device = C.GoString(&r.device[0])
	for _, b := range p.data[:p.len] {
		ev.param.data = append(ev.param.data, byte(b))
	}
	return ev, nil
}

func cmCreate(ch cmChannelHandle, ctx uint64) (cmHandle, error) {
	var id C.uint64_t
	err := result(C.cn_cm_create(C.uint64_t(ch), C.uint64_t(ctx), &id))
	return cmHandle(id), err
}

// cmAdopt gives the identifier of a request a context of its own.
func cmAdopt(id cmHandle, ctx uint64) { C.cn_cm_adopt(C.uint64_t(id), C.uint64_t(ctx)) }

func cmDestroy(id cmHandle) error { return result(C.cn_cm_destroy(C.uint64_t(id))) }

func cmSetOption(id cmHandle, o cmOption, value int) error {
	return result(C.cn_cm_option(C.uint64_t(id), C.int(o), C.int(value)))
}

func cmBind(id cmHandle, addr netip.AddrPort) error {
	a := toAddr(addr)
	return result(C.cn_cm_bind(C.uint64_t(id), &a))
}

func cmListen(id cmHandle, backlog int) error {
	return result(C.cn_cm_listen(C.uint64_t(id), C.int(backlog)))
}

// cmResolveAddr looks for a way to the address to. From is the source address, or invalid: the routes choose it.
func cmResolveAddr(id cmHandle, from, to netip.AddrPort, ms int) error {
	a := toAddr(to)
	if !from.IsValid() {
		return result(C.cn_cm_resolve_addr(C.uint64_t(id), nil, &a, C.int(ms)))
	}
	s := toAddr(from)
	return result(C.cn_cm_resolve_addr(C.uint64_t(id), &s, &a, C.int(ms)))
}

func cmResolveRoute(id cmHandle, ms int) error {
	return result(C.cn_cm_resolve_route(C.uint64_t(id), C.int(ms)))
}

// cmDevice returns the name of the device that the identifier is bound to, "" for none.
func cmDevice(id cmHandle) string {
	var name [64]C.char
	C.cn_cm_device(C.uint64_t(id), &name[0], C.int(len(name)))
	return C.GoString(&name[0])
}

func cmAddrs(id cmHandle) (local, remote netip.AddrPort) {
	var l, r C.struct_cn_addr
	C.cn_cm_addrs(C.uint64_t(id), &l, &r)
	return fromAddr(&l), fromAddr(&r)
}

func cmConnect(id cmHandle, p cmParam) error {
	r := toParam(p)
	return result(C.cn_cm_connect(C.uint64_t(id), &r))
}

func cmAccept(id cmHandle, p cmParam) error {
	r := toParam(p)
	return result(C.cn_cm_accept(C.uint64_t(id), &r))
}

func cmReject(id cmHandle, data []byte) error {
	r := toParam(cmParam{data: data})
	return result(C.cn_cm_reject(C.uint64_t(id), &r))
}

func cmEstablish(id cmHandle) error  { return result(C.cn_cm_establish(C.uint64_t(id))) }
func cmDisconnect(id cmHandle) error { return result(C.cn_cm_disconnect(C.uint64_t(id))) }

// cmStep moves a queue pair to a state with the attributes that the connection manager has for it.
func cmStep(id cmHandle, qp qpHandle, to verbs.QPState, access verbs.Access, responder, depth uint8) error {
	s := C.struct_cn_step{state: C.uint32_t(to), access: C.uint32_t(access), responder: C.uint8_t(responder), depth: C.uint8_t(depth), min_rnr: minRNRTimer}
	return result(C.cn_cm_step(C.uint64_t(id), C.uint64_t(qp), &s))
}

func toParam(p cmParam) C.struct_cn_param {
	r := C.struct_cn_param{
		qpn: C.uint32_t(p.qpn), responder: C.uint8_t(p.responder), depth: C.uint8_t(p.depth),
		retry: C.uint8_t(p.retry), rnr_retry: C.uint8_t(p.rnrRetry), srq: C.uint8_t(flag(p.srq)),
	}
	data := p.data[:min(len(p.data), maxPrivateData)]
	r.len = C.uint8_t(len(data))
	for i, b := range data {
		r.data[i] = C.uint8_t(b)
	}
	return r
}

func toAddr(a netip.AddrPort) C.struct_cn_addr {
	r := C.struct_cn_addr{family: 6, port: C.uint16_t(a.Port())}
	ip := a.Addr().Unmap()
	if ip.Is4() {
		r.family = 4
	}
	for i, b := range ip.AsSlice() {
		r.ip[i] = C.uint8_t(b)
	}
	if zone := ip.Zone(); zone != "" {
		if ifc, err := net.InterfaceByName(zone); err == nil {
			r.scope = C.uint32_t(ifc.Index)
		} else if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			r.scope = C.uint32_t(n)
		}
	}
	return r
}

func fromAddr(r *C.struct_cn_addr) netip.AddrPort {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.ip[i])
	}
	switch r.family {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(r.port))
	case 6:
		ip := netip.AddrFrom16(b).Unmap()
		if r.scope != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.Itoa(int(r.scope)))
		}
		return netip.AddrPortFrom(ip, uint16(r.port))
	}
	return netip.AddrPort{}
}
