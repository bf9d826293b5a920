//go:build rdma && linux && cgo

package rdmacore

import (
	"errors"
	"io/fs"
	"net/netip"
	"syscall"

	"cinnabar/verbs"
	"cinnabar/verbs/driver"
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
		return nil, &driver.Error{Op: op, Err: err, Detail: "the kernel's RDMA modules do not answer; load them with `modprobe ib_uverbs rdma_ucm`"}
	}
	if len(raw) == 0 {
		return nil, driver.Unsupported(op, "this machine has no RDMA device; load the card's driver, "+
			"or make one in software with `rdma link add rxe0 type rxe netdev NAME`")
	}
	list := make([]Info, len(raw))
	for i, r := range raw {
		list[i] = Info{
			Name: r.name, Transport: driver.TransportType(r.transport), NodeType: driver.NodeType(r.nodeType),
			NodeGUID: driver.GUID(r.guid), Ports: readPorts(r.name),
		}
	}
	return list, nil
}

// loaded opens the libraries or says what is missing.
func loaded(op string) error {
	if err := load(); err != nil {
		return &driver.Error{Op: op, Kind: errors.ErrUnsupported, Err: err, Detail: "the libraries of rdma-core are missing or too old (22 is needed); " +
			"install the packages libibverbs1, librdmacm1 and ibverbs-providers"}
	}
	return nil
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
	if err := d.start(asyncFD); err != nil {
		return nil, errors.Join(&driver.Error{Op: op, Detail: name, Err: err}, closeContext(ctx))
	}
	return verbs.NewDevice(d), nil
}

// openError says what stands in the way.
func openError(op, name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &driver.Error{Op: op, Err: err, Detail: name + ": no permission on /dev/infiniband/uverbs*; " +
			"add the user to the group that owns them, or give a container --device=/dev/infiniband"}
	case errors.Is(err, syscall.ENODEV):
		return &driver.Error{Op: op, Kind: driver.ErrInvalid, Err: err, Detail: "no device is named " + name + "; `rdma link` and Devices list them"}
	}
	return &driver.Error{Op: op, Detail: name, Err: err}
}

// start asks for what never changes and begins to read events.
func (d *device) start(asyncFD int) (err error) {
	if err := d.learn(); err != nil {
		return err
	}
	if d.cm, err = newCM(d); err != nil {
		return err
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
			a.Transport, a.NodeType = driver.TransportType(r.transport), driver.NodeType(r.nodeType)
		}
	}
	a.Name, a.QPTypes = d.name, []driver.QPType{driver.RC}
	a.MaxQPWR = min(a.MaxQPWR-1, 1<<20) // one request is our own, see qp.drain
	a.MaxQPRDAtom, a.MaxQPInitRDAtom = min(a.MaxQPRDAtom, 255), min(a.MaxQPInitRDAtom, 255)
	a.MaxSGE = min(a.MaxSGE, batchSGE)
	a.Caps = driver.CapRNRWait | driver.CapExactStatus | driver.CapRawState | driver.CapWriteImm | driver.CapSendImm
	a.MaxPrivateData = 56 // the request of the InfiniBand connection manager, less rdma_cm's header
	if a.Transport == driver.TransportIWARP {
		a.Caps = driver.CapActiveFirst
		a.MaxPrivateData = maxPrivateData
		a.AtomicCap = driver.AtomicNone
	}
	if a.AtomicCap != driver.AtomicNone {
		a.Caps |= driver.CapAtomics
	}
	if a.MaxSRQ > 0 {
		a.Caps |= driver.CapSRQ
	}
	if a.MaxSGERead > 1 {
		a.Caps |= driver.CapMultiSGERead
	}
	d.attr = a
	d.attr.MaxInline = d.probeInline()
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

// probeInline finds out how many bytes an inline request can carry: no query tells.
func (d *device) probeInline() int {
	pd, err := allocPD(d.ctx)
	if err != nil {
		return 0
	}
	defer func() { _ = deallocPD(pd) }() // it is empty
	cq, _, err := createCQ(d.ctx, 1, 0, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = destroyCQ(cq) }()
	for _, n := range []int{1024, 512, 256, 128, 80, 64, 32} {
		h, _, granted, err := createQP(rawQP{pd: pd, sendCQ: cq, recvCQ: cq, typ: driver.RC,
			cap: driver.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: n}})
		if err == nil {
			_ = destroyQP(h) // it was never connected
			return max(granted.MaxInline, n)
		}
	}
	return 0
}

// Query describes the device as it is now.
func (d *device) Query() (driver.DeviceAttr, error) {
	a := d.attr
	a.Ports = nil
	for i := range d.ports {
		p, err := queryPort(d.ctx, i+1)
		if err != nil {
			return a, &driver.Error{Op: "query device", Detail: d.name, Err: err}
		}
		fillAddrs(&p, d.port(i+1), a.Transport)
		a.Ports = append(a.Ports, p)
	}
	return a, nil
}

// fillAddrs sets GIDs, the chosen one first, and the addresses for Listen and Dial.
func fillAddrs(p *driver.PortAttr, port Port, transport driver.TransportType) {
	if port.GID >= 0 {
		p.GIDs = append(p.GIDs, port.GIDs[port.GID].Addr)
	}
	for i, g := range port.GIDs {
		if i != port.GID {
			p.GIDs = append(p.GIDs, g.Addr)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, a := range portAddrs(port, transport) {
		if !seen[a] {
			seen[a] = true
			p.Addrs = append(p.Addrs, a)
		}
	}
}
