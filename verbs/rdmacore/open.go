//go:build linux

package rdmacore

import (
	"errors"
	"net/netip"

	"cinnabar/verbs"
)

// Devices lists the RDMA devices of the machine. The error, when there is none,
// says why: libraries that are missing, no device, no permission.
func Devices() ([]Info, error) {
	const op = "list RDMA devices"
	if err := loaded(op); err != nil {
		return nil, err
	}
	raw, err := listDevices()
	if err != nil {
		return nil, listError(op, err)
	}
	if len(raw) == 0 {
		return nil, verbs.Unsupported(op, "%s", whyNone())
	}
	list := make([]Info, len(raw))
	for i, r := range raw {
		list[i] = Info{
			Name: r.name, Transport: verbs.TransportType(r.transport), NodeType: verbs.NodeType(r.nodeType),
			NodeGUID: verbs.GUID(r.guid), Ports: readPorts(r.name),
		}
	}
	return list, nil
}

// Open opens the device of that name, as Devices lists it. Several devices, and
// the same one several times, may be open at once; their objects do not mix.
func Open(name string) (*verbs.Device, error) {
	const op = "open RDMA device"
	if err := loaded(op); err != nil {
		return nil, err
	}
	ctx, asyncFD, err := openContext(name)
	if err != nil {
		return nil, openError(op, name, err)
	}
	d := &device{
		name: name, ctx: ctx, qps: map[uint64]*qp{}, cqs: map[uint64]*cq{}, srqs: map[uint64]*srq{}, ids: map[uint64]*cmID{},
	}
	d.events.Init()
	d.removal.gone = make(chan struct{})
	if err := d.start(asyncFD); err != nil {
		return nil, errors.Join(&verbs.Error{Op: op, Detail: name, Err: err}, closeContext(ctx))
	}
	return verbs.NewDevice(d), nil
}

// start queries the attributes that never change and begins to read events.
func (d *device) start(asyncFD int) (err error) {
	if err := d.learn(); err != nil {
		return err
	}
	if d.cm, err = newCM(d); err != nil {
		return err
	}
	for i := range d.ports {
		d.cm.lookOut(portAddrs(d.port(i+1), d.attr.Transport))
	}
	if d.async, err = watch(asyncFD, d.readAsync); err != nil {
		d.cm.close()
		return err
	}
	return nil
}

// learn asks for the device's limits and works out its capabilities.
func (d *device) learn() error {
	a, ports, err := queryDevice(d.ctx)
	if err != nil {
		return err
	}
	d.ports = ports
	listed, err := listDevices()
	if err != nil {
		return err
	}
	for _, r := range listed {
		if r.name == d.name {
			a.Transport, a.NodeType = verbs.TransportType(r.transport), verbs.NodeType(r.nodeType)
		}
	}
	a.Name = d.name
	a.MaxQPWR = min(a.MaxQPWR-1, 1<<20) // one request is our own, see qp.drain
	a.MaxQPRDAtom, a.MaxQPInitRDAtom = min(a.MaxQPRDAtom, 255), min(a.MaxQPInitRDAtom, 255)
	a.MaxSGE, a.MaxSRQSGE = min(a.MaxSGE, batchSGE), min(a.MaxSRQSGE, batchSGE)
	windows := a.Caps
	a.Caps = windows | verbs.CapRNRWait | verbs.CapExactStatus | verbs.CapRawState | verbs.CapWriteImm | verbs.CapSendImm |
		verbs.CapTypeOfService | verbs.CapAckTimeout // not on iWARP, whose drivers ignore both options without an error
	a.MaxPrivateData = 56 // the request of the InfiniBand connection manager, less rdma_cm's header
	a.ReadSink = verbs.LocalWrite
	if a.Transport == verbs.TransportIWARP {
		a.Caps = windows | verbs.CapActiveFirst
		a.ReadSink |= verbs.RemoteWrite
		a.MaxPrivateData = maxMPAData
		a.AtomicCap = verbs.AtomicNone
		a.MaxAH = 0
	}
	if a.AtomicCap != verbs.AtomicNone {
		a.Caps |= verbs.CapAtomics
	}
	if a.MaxSRQ > 0 {
		a.Caps |= verbs.CapSRQ
	}
	if a.MaxSGERead > 1 {
		a.Caps |= verbs.CapMultiSGERead
	}
	d.attr = a
	d.probe()
	d.maxMessage = 1<<32 - 1
	for i := range ports {
		p, err := queryPort(d.ctx, i+1)
		if err != nil {
			return err
		}
		d.maxMessage = min(d.maxMessage, p.MaxMsgSize)
	}
	return nil
}

// Query describes the device as it is now.
func (d *device) Query() (verbs.DeviceAttr, error) {
	d.mu.RLock() // Close waits
	defer d.mu.RUnlock()
	if d.closed {
		return verbs.DeviceAttr{}, verbs.Errorf("query device", verbs.ErrClosed, "the device is closed")
	}
	a := d.attr
	a.Ports = nil
	for i := range d.ports {
		p, err := queryPort(d.ctx, i+1)
		if err != nil {
			return a, &verbs.Error{Op: "query device", Detail: d.name, Err: err}
		}
		fillAddrs(&p, d.port(i+1), a.Transport)
		a.Ports = append(a.Ports, p)
	}
	return a, nil
}

// fillAddrs sets GIDs, the chosen one first, and the addresses for Listen and Dial.
func fillAddrs(p *verbs.PortAttr, port Port, transport verbs.TransportType) {
	if port.GID >= 0 {
		p.GIDs = append(p.GIDs, port.GIDs[port.GID].Addr)
	}
	for i, g := range port.GIDs {
		if i != port.GID {
			p.GIDs = append(p.GIDs, g.Addr)
		}
	}
	for _, g := range port.GIDs {
		p.GIDTable = append(p.GIDTable, verbs.GIDEntry{Index: g.Index, GID: g.Addr, Type: gidType(p.LinkLayer, g.Type)})
	}
	seen := map[netip.Addr]bool{}
	for _, a := range portAddrs(port, transport) {
		if !seen[a] {
			seen[a] = true
			p.Addrs = append(p.Addrs, a)
		}
	}
}
