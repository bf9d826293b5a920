package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/verbs/auto"
	"cinnabar/verbs/iwarp"
)

const (
	classDir   = "sys/class/infiniband"
	maxDevices = 64
	maxPorts   = 16
	maxGIDs    = 1024 // entries of a port's table
)

// rdmaDevices returns the names of the machine's RDMA devices, sorted.
func (s *system) rdmaDevices() []string {
	list, err := s.names(classDir)
	if err != nil {
		return nil // without drivers there is no such directory
	}
	slices.Sort(list)
	return list[:min(len(list), maxDevices)]
}

// noDevice adds the finding that the probe was not tried, because the machine has no RDMA device.
func (x *exam) noDevice() {
	x.notTried("this machine has no RDMA device")
}

// loaded reports whether a module of the kernel is loaded or built in. A module without parameters that is built in has no directory, so
// the second name is that of a file that the module makes.
func (s *system) loaded(module, file string) bool {
	return s.exists("sys/module/"+module) || file != "" && s.exists(file)
}

func probeModules(_ context.Context, x *exam) {
	devices := x.rdmaDevices()
	var software []string
	for _, m := range []string{"rdma_rxe", "siw"} {
		if x.loaded(m, "") {
			software = append(software, m)
		}
	}
	if len(devices) == 0 {
		if len(software) > 0 {
			x.add(levelNote, strings.Join(software, " and ")+" is loaded, and no RDMA device exists", "a device of the kernel in software is added to a network interface", "rdma link add rxe0 type rxe netdev INTERFACE, or type siw")
			return
		}
		x.add(levelNote, "this machine has no RDMA device and no kernel module for one in software", "neither /"+classDir+" nor the modules rdma_rxe and siw are there",
			"none, unless hardware is expected: the software device of this program needs no module; modprobe rdma_rxe gives RoCE on a network interface")
		return
	}
	bad := false
	for _, m := range []struct{ module, file, use string }{
		{"ib_uverbs", "sys/class/infiniband_verbs", "programs cannot open RDMA devices"},
		{"rdma_ucm", "dev/infiniband/rdma_cm", "programs cannot connect over RDMA devices"},
	} {
		if !x.loaded(m.module, m.file) {
			bad = true
			x.add(levelFault, m.use, fmt.Sprintf("the kernel module %s is not loaded, and the machine has the device %s", m.module, devices[0]), "modprobe "+m.module)
		}
	}
	if !bad {
		x.ok("ib_uverbs and rdma_ucm are loaded, for %s", many(len(devices), "RDMA device"))
	}
}

func probeRDMAPorts(_ context.Context, x *exam) {
	devices := x.rdmaDevices()
	if len(devices) == 0 {
		x.noDevice()
		return
	}
	for _, d := range devices {
		dir := classDir + "/" + d
		ports, err := x.names(dir + "/ports")
		if err != nil || len(ports) == 0 {
			x.add(levelWarning, "device "+d+" has no port", "the directory /"+dir+"/ports is empty or missing", "see the kernel's log about the device")
			continue
		}
		slices.Sort(ports)
		for _, p := range ports[:min(len(ports), maxPorts)] {
			x.port(d, p, strings.Contains(x.word(dir+"/node_type"), "RNIC"))
		}
	}
}

// port adds findings about the port of an RDMA device.
func (x *exam) port(device, port string, iwarp bool) {
	dir := classDir + "/" + device + "/ports/" + port
	name := fmt.Sprintf("port %s of %s", port, device)
	state, phys, link := x.word(dir+"/state"), x.word(dir+"/phys_state"), x.word(dir+"/link_layer")
	switch {
	case strings.HasPrefix(state, "4"): // 4: ACTIVE
	case strings.HasPrefix(state, "2") && link != "Ethernet": // 2: INIT
		x.add(levelWarning, name+" is not active", "its state is "+state+": no subnet manager has set it up", "start a subnet manager on the fabric, for example opensm")
		return
	default:
		x.add(levelWarning, name+" is not active", fmt.Sprintf("its state is %q, and that of its link %q", state, phys), "connect the cable, and ip link set INTERFACE up for its network interface")
		return
	}
	attrs := path.Join(dir, "gid_attrs")
	gids, types, netdev := 0, map[string]int{}, ""
	list, _ := x.names(dir + "/gids") // the error leaves no GID, which is a finding
	for _, g := range list[:min(len(list), maxGIDs)] {
		a, err := netip.ParseAddr(x.word(dir + "/gids/" + g))
		if err != nil || a.IsUnspecified() {
			continue
		}
		gids++
		types[x.word(attrs+"/types/"+g)]++
		if n := x.word(attrs + "/ndevs/" + g); n != "" {
			netdev = n
		}
	}
	switch {
	case gids == 0:
		x.add(levelWarning, name+" has no GID", "all entries of its table are zero", "give its network interface an IP address: ip addr add ADDRESS/PREFIX dev INTERFACE")
		return
	case link == "Ethernet" && !iwarp && types["RoCE v2"] == 0:
		x.add(levelWarning, name+" has no GID of RoCE v2", fmt.Sprintf("its %d GIDs are of other types", gids), "choose RoCE v2 in the configuration of the driver: cma_roce_mode, or configfs of rdma_cm")
		return
	}
	text := fmt.Sprintf("%s is active (%s, %s) with %s", name, link, x.word(dir+"/rate"), many(gids, "GID"))
	mtu, known := x.number("sys/class/net/" + strings.ReplaceAll(netdev, "/", "") + "/mtu")
	if netdev == "" || !known || link != "Ethernet" || iwarp {
		x.ok("%s", text)
		return
	}
	active := roceMTU(mtu)
	switch {
	case active < 1024:
		x.add(levelWarning, fmt.Sprintf("%s sends at most %d bytes in a packet", name, active), fmt.Sprintf("its network interface %s has an MTU of %d", netdev, mtu), "ip link set "+netdev+" mtu 4200, on both sides and on the switches between")
	case active < 4096:
		x.add(levelNote, fmt.Sprintf("%s sends at most %d bytes in a packet of 4096 possible", name, active), fmt.Sprintf("its network interface %s has an MTU of %d", netdev, mtu), "for more throughput: ip link set "+netdev+" mtu 4200, on both sides and on the switches between")
	default:
		x.ok("%s, and %d bytes in a packet", text, active)
	}
}

// roceHeaders are the bytes of a packet of RoCE besides its data, as the kernel counts them (iboe_get_mtu of ib_addr.h): GRH or IPv6, UDP, BTH,
// the headers of XRC and of atomic operations, and ICRC.
const roceHeaders = 40 + 8 + 12 + 4 + 28 + 4

// roceMTU returns the largest path MTU that fits an interface.
func roceMTU(mtu int64) int {
	for _, n := range []int{4096, 2048, 1024, 512, 256} {
		if int64(n) <= mtu-roceHeaders {
			return n
		}
	}
	return 0
}

func probeRDMAFiles(_ context.Context, x *exam) {
	const dir = "dev/infiniband"
	if len(x.rdmaDevices()) == 0 { // the directory may exist nevertheless, because rdma_ucm makes the file rdma_cm
		x.noDevice()
		return
	}
	list, _ := x.names(dir) // the error leaves no file, which is a finding
	slices.Sort(list)
	const remedy = "run as root, add the user to the group of the file (rdma), or set its mode by a rule of udev; for a container --device=/dev/infiniband"
	verbsFiles, good := 0, 0
	for _, name := range list[:min(len(list), maxDevices)] {
		uverbs := strings.HasPrefix(name, "uverbs")
		if !uverbs && name != "rdma_cm" {
			continue
		}
		if uverbs {
			verbsFiles++
		}
		file := dir + "/" + name
		if err := accessible(x.path(file)); err != nil {
			st, statErr := os.Stat(x.path(file))
			cause := cli.OneLine(err)
			if statErr == nil {
				cause = fmt.Sprintf("the mode of the file is %v, and this process runs as uid %d", st.Mode(), os.Geteuid())
			}
			x.add(levelFault, "this user may not open /"+file, cause, remedy)
			continue
		}
		good++
	}
	switch {
	case verbsFiles == 0:
		x.add(levelFault, "there is no file /"+dir+"/uverbs* for the machine's RDMA devices", "the module ib_uverbs is not loaded, or a container hides the files", "modprobe ib_uverbs; for a container --device=/dev/infiniband")
	case good > 0:
		x.ok("this user may open %d files in /%s", good, dir)
	}
}

// deviceOpener is an RDMA device of the machine.
type deviceOpener struct {
	name string
	err  error // the reason why it cannot be used
	open func() (*auto.Device, error)
}

func machineDevices() ([]deviceOpener, error) {
	list, err := auto.Candidates("ofi+verbs")
	if err != nil {
		return nil, err
	}
	found := make([]deviceOpener, len(list))
	for i, c := range list {
		found[i] = deviceOpener{c.Name, c.Err, func() (*auto.Device, error) { return auto.Open("ofi+verbs://" + c.Name) }}
	}
	return found, nil
}

func probeRDMADevices(ctx context.Context, x *exam) {
	list, err := x.devices()
	if err != nil {
		x.notTried("%s", cli.OneLine(err))
		return
	}
	for n, d := range list[:min(len(list), maxDevices)] {
		one, cancel := share(ctx, len(list)-n)
		x.device(one, d)
		cancel()
	}
}

// device registers memory on a device, writes it over a connection within this host, and makes a call.
func (x *exam) device(ctx context.Context, d deviceOpener) {
	if d.err != nil {
		x.add(levelWarning, "device "+d.name+" cannot be used", cli.OneLine(d.err), "see the findings of rdma-ports and rdma-files; cinnabar devices describes the device")
		return
	}
	dev, err := d.open()
	if err != nil {
		x.add(levelFault, "device "+d.name+" cannot be opened", cli.OneLine(err), "see the findings of rdma-modules and rdma-files")
		return
	}
	at, text, err := describe(dev.Verbs())
	if err == nil {
		err = writeOver(ctx, dev.Verbs(), at)
	}
	if err == nil {
		err = callOver(ctx, "ofi+verbs://"+netip.AddrPortFrom(at, 0).String(), dev)
	}
	if err = errors.Join(err, dev.Close()); err != nil {
		x.add(levelFault, "device "+d.name+" fails", cli.OneLine(err), deviceRemedy(err))
		return
	}
	x.ok("device %s: registered memory, written and called (%s)", d.name, text)
}

// deviceRemedy is the remedy for an error of a device.
func deviceRemedy(err error) string {
	if errors.Is(err, verbs.ErrLockLimit) || errors.Is(err, syscall.ENOMEM) {
		return lockRemedy
	}
	if isTimeout(err) {
		return "packets of RoCE go to UDP port 4791, those of iWARP to TCP: " + firewallRemedy
	}
	return "see the findings of rdma-ports, memlock and loopback; cinnabar devices -v describes the device"
}

// describe returns an address of the device's first active port, at which two ends on this host can connect, and a text about the port.
func describe(dev *verbs.Device) (netip.Addr, string, error) {
	attr, err := dev.Query()
	if err != nil {
		return netip.Addr{}, "", err
	}
	for _, p := range attr.Ports {
		if p.State != verbs.PortActive || len(p.Addrs) == 0 {
			continue
		}
		at := p.Addrs[0]
		for _, a := range p.Addrs {
			if a.IsLoopback() || a.Is4() && !at.Is4() {
				at = a
			}
		}
		return at, fmt.Sprintf("address %v, MTU %d of %d", at, p.ActiveMTU.Bytes(), p.MaxMTU.Bytes()), nil
	}
	return netip.Addr{}, "", errors.New("no port is active and has an IP address")
}

// writtenSize is how much memory writeOver registers on each side, in bytes.
const writtenSize = 1 << 20

// writeOver registers memory at two ends of a connection between two queue pairs of dev, writes from one to the other, and compares.
func writeOver(ctx context.Context, dev *verbs.Device, at netip.Addr) (err error) {
	var open []io.Closer
	defer func() {
		for _, c := range slices.Backward(open) {
			err = errors.Join(err, c.Close())
		}
	}()
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	open = append(open, pd)
	cq, err := dev.CreateCQ(16)
	if err != nil {
		return err
	}
	open = append(open, cq)
	from, err := pd.AllocMR(writtenSize, verbs.LocalWrite|attr.ReadSink)
	if err != nil {
		return err
	}
	open = append(open, from)
	to, err := pd.AllocMR(writtenSize, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	if err != nil {
		return err
	}
	open = append(open, to)
	fill(from.Bytes(), probeByte)
	var qps [2]*verbs.QP
	for i := range qps {
		if qps[i], err = pd.CreateQP(verbs.QPConfig{SendCQ: cq}); err != nil {
			return err
		}
		open = append(open, qps[i])
	}
	if err := connectPair(ctx, dev, qps, at); err != nil {
		return err
	}
	// A write completes when the device is done with the sender's memory. A read on the same connection follows it, and so shows that it has
	// arrived.
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		if op == verbs.OpRead {
			clear(from.Bytes())
		}
		_, err = qps[0].PostSend([]verbs.SendWR{{Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{from.SGE(0, writtenSize)}, Remote: to.Remote()}})
		if err == nil {
			err = awaitOne(ctx, cq)
		}
		if err != nil {
			return err
		}
	}
	if bytes.Count(from.Bytes(), []byte{probeByte}) != writtenSize {
		return errors.New("the memory that was written and read back has other bytes than before")
	}
	return nil
}

// connectPair connects two queue pairs of one device.
func connectPair(ctx context.Context, dev *verbs.Device, qps [2]*verbs.QP, at netip.Addr) error {
	l, err := verbs.Listen(dev, netip.AddrPortFrom(at, 0))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := make(chan struct{})
	var acceptErr error // set before accepted is closed
	go func() {         // ends with ctx
		defer close(accepted)
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(ctx, qps[1], verbs.ConnParam{})
		}
		acceptErr = err
	}()
	_, err = verbs.Dial(ctx, qps[0], l.Addr(), verbs.ConnParam{})
	if err != nil {
		cancel()
		<-accepted // acceptErr follows from err
		return errors.Join(err, l.Close())
	}
	<-accepted
	return errors.Join(acceptErr, l.Close())
}

// awaitOne waits for one completion.
func awaitOne(ctx context.Context, cq *verbs.CQ) error {
	var wc [1]verbs.WC
	if _, err := cq.Wait(ctx, wc[:]); err != nil {
		return err
	}
	return wc[0].Err()
}

func probeSoftware(ctx context.Context, x *exam) {
	dev, err := iwarp.Open(iwarp.Config{Name: cli.SoftwareDevice, NoLocalCRC: true})
	if err != nil {
		x.add(levelFault, "the software device cannot be opened", cli.OneLine(err), "see the findings of memory and nofile")
		return
	}
	err = errors.Join(writeOver(ctx, dev, netip.AddrFrom4([4]byte{127, 0, 0, 1})), dev.Close())
	if err != nil {
		x.add(levelFault, "an RDMA write on the software device fails", cli.OneLine(err), "see the findings of loopback, memory and nofile")
		return
	}
	x.ok("%s of memory were registered at each end of a connection, written and read", cli.SizeText(writtenSize))
}
