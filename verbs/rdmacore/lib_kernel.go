//go:build linux && !(rdma && cgo)

package rdmacore

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/ucm"
	"cinnabar/verbs/internal/uverbs"
)

type (
	contextHandle   = *uverbs.Context
	pdHandle        = *uverbs.PD
	mrHandle        = *uverbs.MR
	mwHandle        = *uverbs.MW
	channelHandle   = *uverbs.Channel
	cqHandle        = *uverbs.CQ
	srqHandle       = *uverbs.SRQ
	qpHandle        = *uverbs.QP
	ahHandle        = *uverbs.AH
	cmChannelHandle = *ucm.Channel
	cmHandle        = *ucm.ID
)

// loaded returns nil, because the kernel's interface takes no library.
func loaded(string) error { return nil }

func listDevices() ([]rawDevice, error) {
	list, err := uverbs.Devices()
	devices := make([]rawDevice, len(list))
	for i, d := range list {
		devices[i] = rawDevice{name: d.Name, guid: d.GUID, nodeType: d.NodeType, transport: d.Transport}
	}
	return devices, err
}

// openContext opens a device. asyncFD belongs to the context.
func openContext(name string) (ctx contextHandle, asyncFD int, err error) {
	ctx, err = uverbs.Open(name)
	if other, ok := errors.AsType[*uverbs.DriverError](err); ok {
		return nil, 0, fmt.Errorf("%w; this program was built without rdma-core, and drives only rxe and siw by itself; build it with CGO_ENABLED=1 and -tags rdma, "+
			"which takes a C compiler and the packages libibverbs-dev and librdmacm-dev", other)
	}
	if errors.Is(err, syscall.ENOTTY) || errors.Is(err, syscall.EPROTONOSUPPORT) {
		err = fmt.Errorf("the kernel is older than Linux 5.6; build the program with CGO_ENABLED=1 and -tags rdma, or use a newer kernel: %w", err)
	}
	if err != nil {
		return nil, 0, err
	}
	return ctx, ctx.AsyncFD(), nil
}

func closeContext(ctx contextHandle) error { return ctx.Close() }

// queryDevice returns the limits as the driver gives them, without name, ports and the fields that this package sets.
func queryDevice(ctx contextHandle) (a verbs.DeviceAttr, ports int, err error) {
	r, err := ctx.QueryDevice()
	return verbs.DeviceAttr{
		FWVersion: r.Firmware, NodeGUID: verbs.GUID(r.NodeGUID), SysImageGUID: verbs.GUID(r.SysGUID),
		VendorID: r.Vendor, VendorPartID: r.Part, HWVersion: r.HW,
		MaxMRSize: r.MaxMRSize, PageSizeCap: r.PageSizeCap,
		MaxQP: r.MaxQP, MaxQPWR: r.MaxQPWR, MaxSGE: r.MaxSGE, MaxSGERead: r.MaxSGERd,
		MaxCQ: r.MaxCQ, MaxCQE: r.MaxCQE, MaxMR: r.MaxMR, MaxPD: r.MaxPD,
		MaxQPRDAtom: r.MaxRdAtomic, MaxQPInitRDAtom: r.MaxInitRdAtomic,
		MaxSRQ: r.MaxSRQ, MaxSRQWR: r.MaxSRQWR, MaxSRQSGE: r.MaxSRQSGE, MaxAH: r.MaxAH, MaxMW: r.MaxMW,
		AtomicCap: verbs.AtomicCap(r.AtomicCap), Caps: windowCaps(r.CapFlags),
	}, r.Ports, err
}

func queryPort(ctx contextHandle, num int) (verbs.PortAttr, error) {
	r, err := ctx.QueryPort(num)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		Num: uint8(num), State: verbs.PortState(r.State), MaxMTU: verbs.MTU(r.MaxMTU), ActiveMTU: verbs.MTU(r.ActiveMTU),
		LinkLayer: linkLayers[r.LinkLayer], MaxMsgSize: uint64(r.MaxMsg), LID: uint16(r.LID), SMLID: uint16(r.SMLID),
		PKeys: []uint16{0xffff}, GIDTableLen: int(r.GIDs),
	}, nil
}

// queryGIDs returns the entries of all ports that are set. Older kernels lack the command.
func queryGIDs(ctx contextHandle) ([]rawGID, error) {
	list, err := ctx.QueryGIDs()
	table := make([]rawGID, len(list))
	for i, g := range list {
		table[i] = rawGID{GID: GID{Index: g.Index, Type: gidTypes[g.Type], Addr: g.GID}, port: g.Port, netdev: g.Netdev}
	}
	return table, err
}

// nextAsync does not block: it fails with EAGAIN when there is no event.
func nextAsync(ctx contextHandle) (rawAsync, error) {
	typ, id, err := ctx.NextAsync()
	return rawAsync{verbs.EventType(typ), id}, err
}

func allocPD(ctx contextHandle) (pdHandle, error) { return ctx.AllocPD() }

func deallocPD(h pdHandle) error { return h.Close() }

// regMR registers memory that its owner keeps in place. iova is the address of the first byte in work requests.
func regMR(pd pdHandle, addr, iova, size uint64, access verbs.Access) (h mrHandle, lkey, rkey uint32, err error) {
	if h, err = pd.RegMR(addr, iova, size, uint32(access)); err != nil {
		return nil, 0, 0, err
	}
	return h, h.LKey, h.RKey, nil
}

// reregMR makes the changes in flags. After an error, lost reports whether the region can only be closed.
func reregMR(h mrHandle, flags int, pd pdHandle, addr, size uint64, access verbs.Access) (lkey, rkey uint32, lost bool, err error) {
	lost, err = h.Rereg(flags, pd, addr, size, uint32(access))
	return h.LKey, h.RKey, lost, err
}

func deregMR(h mrHandle) error { return h.Close() }

func allocMW(pd pdHandle, t verbs.MWType) (mwHandle, uint32, error) {
	w, err := pd.AllocMW(uint32(t))
	if err != nil {
		return nil, 0, err
	}
	return w, w.RKey, nil
}

func deallocMW(h mwHandle) error { return h.Close() }

// createChannel makes a completion channel, which owns fd.
func createChannel(ctx contextHandle) (ch channelHandle, fd int, err error) {
	if ch, err = ctx.CreateChannel(); err != nil {
		return nil, 0, err
	}
	return ch, ch.FD(), nil
}

func destroyChannel(ch channelHandle) error { return ch.Close() }

// nextCQEvent does not block: it fails with EAGAIN when there is no event.
func nextCQEvent(ch channelHandle) error { return ch.Next() }

func createCQ(ctx contextHandle, depth int, id uint64, ch channelHandle) (h cqHandle, granted int, err error) {
	if h, err = ctx.CreateCQ(depth, id, ch); err != nil {
		return nil, 0, err
	}
	return h, h.Depth(), nil
}

func resizeCQ(cq cqHandle, depth int) (granted int, err error) {
	err = cq.Resize(depth)
	return cq.Depth(), err
}

// moderateCQ rounds period up to microseconds.
func moderateCQ(cq cqHandle, count int, period time.Duration) error {
	return cq.Moderate(count, int((period+time.Microsecond-1)/time.Microsecond))
}

func destroyCQ(cq cqHandle) error { return cq.Close() }

func armCQ(cq cqHandle, solicitedOnly bool) error { return cq.Arm(solicitedOnly) }

func createSRQ(pd pdHandle, id uint64, init *verbs.SRQInit) (h srqHandle, err error) {
	if h, err = pd.CreateSRQ(id, init.MaxWR, init.MaxSGE); err != nil {
		return nil, err
	}
	if init.Limit == 0 {
		return h, nil
	}
	if err := h.SetLimit(init.Limit); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func modifySRQ(h srqHandle, limit int) error { return h.SetLimit(limit) }

func destroySRQ(h srqHandle) error { return h.Close() }

func createQP(in rawQP) (h qpHandle, num uint32, granted verbs.QPCap, err error) {
	h, err = in.pd.CreateQP(uverbs.QPInit{
		SendCQ: in.sendCQ, RecvCQ: in.recvCQ, SRQ: in.srq, ID: in.id, Type: uint32(in.typ), SignalAll: in.signalAll,
		MaxSendWR: in.cap.MaxSendWR, MaxRecvWR: in.cap.MaxRecvWR, MaxSendSGE: in.cap.MaxSendSGE, MaxRecvSGE: in.cap.MaxRecvSGE, MaxInline: in.cap.MaxInline,
	})
	if err != nil {
		return nil, 0, granted, err
	}
	granted = verbs.QPCap{
		MaxSendWR: h.Cap.MaxSendWR, MaxRecvWR: h.Cap.MaxRecvWR, MaxSendSGE: h.Cap.MaxSendSGE, MaxRecvSGE: h.Cap.MaxRecvSGE, MaxInline: h.Cap.MaxInline,
	}
	return h, h.Num, granted, nil
}

// rawPath returns the kernel's form of a, a path to a peer. sgid is the index of the source GID in the port's table.
func rawPath(a *verbs.AHAttr, sgid int) uverbs.Path {
	r := uverbs.Path{
		DGID: a.GID, FlowLabel: a.FlowLabel, DLID: a.DLID, SL: a.SL, PathBits: a.PathBits, Port: a.PortNum, SGIDIndex: uint8(sgid),
		TrafficClass: a.TrafficClass, HopLimit: a.HopLimit, Global: a.GID != [16]byte{},
	}
	if a.HopLimit == 0 {
		r.HopLimit = defaultHopLimit
	}
	return r
}

// pathAttr returns the path to a peer of which r is the kernel's form. It is the inverse of rawPath.
func pathAttr(r *uverbs.Path) verbs.AHAttr {
	a := verbs.AHAttr{DLID: r.DLID, SL: r.SL, PathBits: r.PathBits, PortNum: r.Port}
	if r.Global {
		a.FlowLabel, a.TrafficClass, a.HopLimit = r.FlowLabel, r.TrafficClass, r.HopLimit
		a.SGIDIndex, a.HasSGIDIndex, a.GID = r.SGIDIndex, true, r.DGID
	}
	return a
}

// modifyQP sets the attributes that a.Mask names; sgid is the index of the source GID of a.AH.
func modifyQP(h qpHandle, a *verbs.QPAttr, sgid int) error {
	r := uverbs.QPAttr{
		Path: rawPath(&a.AH, sgid),
		Mask: uint32(a.Mask), State: uint32(a.State), CurState: uint32(a.CurState), Access: uint32(a.Access),
		QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPN: a.DestQPN, PathMTU: uint32(a.PathMTU), PKeyIndex: a.PKeyIndex,
		Port: max(a.Port, a.AH.PortNum), Timeout: a.Timeout, Retry: a.RetryCount, RNRRetry: a.RNRRetry, MinRNR: a.MinRNRTimer,
		RdAtomic: a.MaxRDAtomic, DestRdAtomic: a.MaxDestRDAtomic,
	}
	if a.Mask&verbs.AttrState != 0 && a.State == verbs.StateSQD {
		r.SQDNotify = 1
	}
	r.Path.Port = r.Port
	return h.Modify(&r)
}

func queryQP(h qpHandle) (verbs.QPAttr, error) {
	r, err := h.Query()
	if err != nil {
		return verbs.QPAttr{}, err
	}
	a := verbs.QPAttr{
		Mask:  verbs.QPAttrMask(r.Mask) | verbs.AttrCap,
		State: verbs.QPState(r.State), Access: verbs.Access(r.Access), Port: r.Port, QKey: r.QKey, PathMTU: verbs.MTU(r.PathMTU),
		Timeout: r.Timeout, RetryCount: r.Retry, RNRRetry: r.RNRRetry, MinRNRTimer: r.MinRNR,
		MaxRDAtomic: r.RdAtomic, MaxDestRDAtomic: r.DestRdAtomic, RQPSN: r.RQPSN, SQPSN: r.SQPSN, DestQPN: r.DestQPN,
	}
	if a.Mask&verbs.AttrAV != 0 {
		a.AH = pathAttr(&r.Path)
		a.AH.PortNum = max(a.AH.PortNum, a.Port)
	}
	return a, nil
}

func destroyQP(h qpHandle) error { return h.Close() }

// createAH creates an address handle of the protection domain pd for the path a. sgid is the index of the source GID.
func createAH(pd pdHandle, a *verbs.AHAttr, sgid int) (ahHandle, error) {
	r := rawPath(a, sgid)
	return pd.CreateAH(&r)
}

func destroyAH(h ahHandle) error { return h.Close() }
