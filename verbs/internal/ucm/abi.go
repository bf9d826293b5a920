//go:build linux

package ucm

import (
	"encoding/binary"
	"runtime"

	"cinnabar/internal/hostmem"
)

// order is the byte order of the kernel's structures, but for addresses and GUIDs.
var order = binary.NativeEndian

// Commands: RDMA_USER_CM_CMD_* of rdma/rdma_user_cm.h.
const (
	cmdCreateID     = 0
	cmdDestroyID    = 1
	cmdResolveRoute = 4
	cmdConnect      = 6
	cmdListen       = 7
	cmdAccept       = 8
	cmdReject       = 9
	cmdDisconnect   = 10
	cmdInitQPAttr   = 11
	cmdGetEvent     = 12
	cmdSetOption    = 14
	cmdQuery        = 19
	cmdBind         = 20
	cmdResolveAddr  = 21
)

// Other numbers of rdma/rdma_user_cm.h and infiniband/verbs.h.
const (
	psTCP      = 0x0106 // RDMA_PS_TCP
	qptRC      = 2      // IBV_QPT_RC
	queryAddr  = 0      // RDMA_USER_CM_QUERY_ADDR
	optLevelID = 0      // RDMA_OPTION_ID
	noIndex    = 1<<32 - 1
)

// Sizes in bytes of the structures struct rdma_ucm_* and, for a sockaddr, of struct __kernel_sockaddr_storage.
const (
	headerSize       = 8   // cmd_hdr
	createSize       = 24  // create_id
	createRespSize   = 4   // create_id_resp
	destroySize      = 16  // destroy_id
	destroyRespSize  = 4   // destroy_id_resp
	bindSize         = 136 // bind
	resolveAddrSize  = 272 // resolve_addr
	resolveRouteSize = 8   // resolve_route
	querySize        = 16  // query
	queryRespSize    = 280 // query_addr_resp
	connParamSize    = 272 // conn_param
	connectSize      = 288 // connect
	listenSize       = 8   // listen
	acceptSize       = 296 // accept
	rejectSize       = 264 // reject
	disconnectSize   = 4   // disconnect
	initQPAttrSize   = 16  // init_qp_attr
	getEventSize     = 8   // get_event
	eventRespSize    = 336 // event_resp
	setOptionSize    = 24  // set_option
	qpAttrSize       = 144 // struct ib_uverbs_qp_attr of rdma/ib_user_verbs.h
	storageSize      = 128
)

// maxPrivateData is the largest length in bytes that the structures can hold, because the length is one byte.
const maxPrivateData = 255

// request is a command as write(2) takes it: struct rdma_ucm_cmd_hdr, then the structure of the command. Offsets count in the latter.
type request []byte

func newRequest(cmd uint32, size int) request {
	r := make(request, headerSize+size)
	order.PutUint32(r, cmd)
	order.PutUint16(r[4:], uint16(size))
	return r
}

func (r request) put8(off int, v uint8)   { r[headerSize+off] = v }
func (r request) put16(off int, v uint16) { order.PutUint16(r[headerSize+off:], v) }
func (r request) put32(off int, v uint32) { order.PutUint32(r[headerSize+off:], v) }
func (r request) put64(off int, v uint64) { order.PutUint64(r[headerSize+off:], v) }

// point writes the address of b, which is not empty. Pin keeps b in place, because the kernel knows the address only.
func (r request) point(off int, b []byte, pin *runtime.Pinner) {
	pin.Pin(&b[0])
	r.put64(off, hostmem.Addr(b))
}

// body is the structure of the command.
func (r request) body(off, n int) []byte { return r[headerSize+off : headerSize+off+n] }

func createRequest(uid uint64) request {
	r := newRequest(cmdCreateID, createSize)
	r.put64(0, uid)
	r.put16(16, psTCP)
	r.put8(18, qptRC)
	return r
}

// idRequest is a command whose structure has the identifier at off.
func idRequest(cmd uint32, size, off int, id uint32) request {
	r := newRequest(cmd, size)
	r.put32(off, id)
	return r
}

func destroyRequest(id uint32) request { return idRequest(cmdDestroyID, destroySize, 8, id) }

func bindRequest(id uint32, addr sockaddr) request {
	r := idRequest(cmdBind, bindSize, 0, id)
	r.put16(4, uint16(len(addr)))
	copy(r.body(8, storageSize), addr)
	return r
}

// resolveAddrRequest is the command to resolve to. From is empty if the routes are to choose it.
func resolveAddrRequest(id uint32, from, to sockaddr, ms uint32) request {
	r := idRequest(cmdResolveAddr, resolveAddrSize, 0, id)
	r.put32(4, ms)
	r.put16(8, uint16(len(from)))
	r.put16(10, uint16(len(to)))
	copy(r.body(16, storageSize), from)
	copy(r.body(144, storageSize), to)
	return r
}

func resolveRouteRequest(id, ms uint32) request {
	r := idRequest(cmdResolveRoute, resolveRouteSize, 0, id)
	r.put32(4, ms)
	return r
}

func queryRequest(id uint32) request {
	r := idRequest(cmdQuery, querySize, 8, id)
	r.put32(12, queryAddr)
	return r
}

func listenRequest(id, backlog uint32) request {
	r := idRequest(cmdListen, listenSize, 0, id)
	r.put32(4, backlog)
	return r
}

func connectRequest(id uint32, p *Param) request {
	r := idRequest(cmdConnect, connectSize, connParamSize, id)
	putConnParam(r.body(0, connParamSize), p)
	return r
}

func acceptRequest(id uint32, uid uint64, p *Param) request {
	r := idRequest(cmdAccept, acceptSize, 280, id)
	r.put64(0, uid)
	putConnParam(r.body(8, connParamSize), p)
	return r
}

// establishRequest is the answer to a CONNECT_RESPONSE: an ACCEPT whose parameters are not valid.
func establishRequest(id uint32) request { return idRequest(cmdAccept, acceptSize, 280, id) }

// rejectRequest leaves the reason 0, for which the kernel takes IB_CM_REJ_CONSUMER_DEFINED; kernels before 5.10 know no other.
func rejectRequest(id uint32, data []byte) request {
	r := idRequest(cmdReject, rejectSize, 0, id)
	r.put8(4, uint8(copy(r.body(8, maxPrivateData), data)))
	return r
}

func disconnectRequest(id uint32) request {
	return idRequest(cmdDisconnect, disconnectSize, 0, id)
}

func qpAttrRequest(id, state uint32) request {
	r := idRequest(cmdInitQPAttr, initQPAttrSize, 8, id)
	r.put32(12, state)
	return r
}

func setOptionRequest(id uint32, option, size int) request {
	r := idRequest(cmdSetOption, setOptionSize, 8, id)
	r.put32(12, optLevelID)
	r.put32(16, uint32(option))
	r.put32(20, uint32(size))
	return r
}

// putConnParam writes struct rdma_ucm_conn_param.
func putConnParam(b []byte, p *Param) {
	order.PutUint32(b, p.QPN)
	b[264] = uint8(copy(b[8:8+maxPrivateData], p.Data))
	if p.SRQ {
		b[265] = 1
	}
	b[266], b[267] = p.Responder, p.Depth
	b[269], b[270] = p.Retry, p.RNRRetry
	b[271] = 1 // valid
}

func parseConnParam(b []byte) Param {
	return Param{
		Data: append([]byte(nil), b[8:8+int(b[264])]...),
		QPN:  order.Uint32(b), SRQ: b[265] != 0,
		Responder: b[266], Depth: b[267],
		Retry: b[269], RNRRetry: b[270],
	}
}

// rawEvent is struct rdma_ucm_event_resp.
type rawEvent struct {
	uid    uint64
	id     uint32
	typ    uint32
	status int
	param  Param
}

func parseEvent(b []byte) rawEvent {
	return rawEvent{
		uid: order.Uint64(b), id: order.Uint32(b[8:]), typ: order.Uint32(b[12:]),
		status: int(int32(order.Uint32(b[16:]))), param: parseConnParam(b[20 : 20+connParamSize]),
	}
}
