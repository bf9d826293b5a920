//go:build linux && !(rdma && cgo)

package rdmacore

import (
	"net/netip"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/ucm"
	"cinnabar/verbs/internal/uverbs"
	"cinnabar/verbs/rdmacm"
)

func cmChannel() (ch cmChannelHandle, fd int, err error) {
	if ch, err = ucm.OpenChannel(); err != nil {
		return nil, 0, err
	}
	return ch, ch.FD(), nil
}

func cmDestroyChannel(ch cmChannelHandle) { _ = ch.Close() } // the descriptor is only read, so nothing is lost with it

// cmNext does not block: it fails with EAGAIN when there is no event.
func cmNext(ch cmChannelHandle) (cmEvent, error) {
	ev, err := ch.Next()
	if err != nil {
		return cmEvent{}, err
	}
	p := &ev.Param
	return cmEvent{
		typ: rdmacm.EventType(ev.Type), status: ev.Status, ctx: ev.Ctx, child: ev.Child, device: ev.Device,
		param: cmParam{data: p.Data, qpn: p.QPN, responder: p.Responder, depth: p.Depth, retry: p.Retry, rnrRetry: p.RNRRetry},
	}, nil
}

func cmCreate(ch cmChannelHandle, ctx uint64) (cmHandle, error) { return ch.Create(ctx) }

// cmAdopt gives the identifier of a request a context of its own.
func cmAdopt(id cmHandle, ctx uint64) { id.Adopt(ctx) }

func cmDestroy(id cmHandle) error { return id.Destroy() }

func cmSetOption(id cmHandle, o cmOption, value int) error { return id.SetOption(int(o), value) }

func cmBind(id cmHandle, addr netip.AddrPort) error { return id.Bind(addr) }

func cmListen(id cmHandle, backlog int) error { return id.Listen(backlog) }

// cmResolveAddr looks for a way to the address to. From is the source address, or invalid: the routes choose it.
func cmResolveAddr(id cmHandle, from, to netip.AddrPort, ms int) error {
	return id.ResolveAddr(from, to, ms)
}

func cmResolveRoute(id cmHandle, ms int) error { return id.ResolveRoute(ms) }

// cmDevice returns the name of the device that the identifier is bound to, "" for none.
func cmDevice(id cmHandle) string { return id.Device() }

func cmAddrs(id cmHandle) (local, remote netip.AddrPort) { return id.Addrs() }

func cmConnect(id cmHandle, p cmParam) error { return id.Connect(p.raw()) }

func cmAccept(id cmHandle, p cmParam) error { return id.Accept(p.raw()) }

func cmReject(id cmHandle, data []byte) error {
	return id.Reject(data[:min(len(data), maxPrivateData)])
}

func cmEstablish(id cmHandle) error  { return id.Establish() }
func cmDisconnect(id cmHandle) error { return id.Disconnect() }

// cmStep moves a queue pair to a state with the attributes that the connection manager has for it.
func cmStep(id cmHandle, qp qpHandle, to verbs.QPState, access verbs.Access, responder, depth uint8) error {
	mask, a, err := id.QPAttr(uint32(to))
	if err != nil {
		return err
	}
	return qp.Modify(&uverbs.QPAttr{
		Path: uverbs.Path{
			DGID: a.AH.DGID, FlowLabel: a.AH.FlowLabel, DLID: a.AH.DLID, SL: a.AH.SL, PathBits: a.AH.SrcPathBits, Port: a.AH.Port, SGIDIndex: a.AH.SGIDIndex,
			TrafficClass: a.AH.TrafficClass, HopLimit: a.AH.HopLimit, Global: a.AH.Global,
		},
		Mask: mask, State: a.State, CurState: a.CurState, Access: uint32(access), QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPN: a.DestQPN,
		PathMTU: a.PathMTU, PKeyIndex: a.PKeyIndex, Port: a.Port, Timeout: a.Timeout, Retry: a.RetryCount, RNRRetry: a.RNRRetry, MinRNR: minRNRTimer,
		RdAtomic: depth, DestRdAtomic: responder,
	})
}

func (p *cmParam) raw() ucm.Param {
	return ucm.Param{
		Data: p.data[:min(len(p.data), maxPrivateData)], QPN: p.qpn, Responder: p.responder, Depth: p.depth, Retry: p.retry, RNRRetry: p.rnrRetry, SRQ: p.srq,
	}
}
