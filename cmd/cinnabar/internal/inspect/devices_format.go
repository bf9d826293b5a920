package inspect

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
)

// The layout of ibv_devinfo: labels of the device begin one tab in and their
// values stand at column 40; those of a port begin three tabs in, values at
// column 48. Tabs fill the gap, so scripts that read ibv_devinfo read this.
const (
	tabWidth    = 8
	deviceTabs  = 1
	deviceValue = 40
	portTabs    = 3
	portValue   = 48
)

// devinfoWriter prints labelled lines in the layout of ibv_devinfo.
type devinfoWriter struct{ cli.Printer }

// line prints a label indented by tabs and its value at the given column.
func (i *devinfoWriter) line(tabs, column int, label, format string, args ...any) {
	at := tabs*tabWidth + len(label) + 1
	fill := max(1, (column-at+tabWidth-1)/tabWidth)
	i.Printf("%s%s:%s%s\n", strings.Repeat("\t", tabs), label, strings.Repeat("\t", fill), fmt.Sprintf(format, args...))
}

func (i *devinfoWriter) device(label, format string, args ...any) {
	i.line(deviceTabs, deviceValue, label, format, args...)
}

func (i *devinfoWriter) port(label, format string, args ...any) {
	i.line(portTabs, portValue, label, format, args...)
}

// writeDevinfo prints a in ibv_devinfo's layout. A port other than 0 restricts
// the ports to that one. Fields that the device does not have are left out.
func writeDevinfo(w io.Writer, a *verbs.DeviceAttr, port int, verbose bool) error {
	i := &devinfoWriter{cli.Printer{W: w}}
	i.Printf("hca_id:\t%s\n", a.Name)
	i.device("transport", "%s (%d)", a.Transport, int(a.Transport))
	if a.FWVersion != "" {
		i.device("fw_ver", "%s", a.FWVersion)
	}
	i.device("node_guid", "%s", a.NodeGUID)
	i.device("sys_image_guid", "%s", a.SysImageGUID)
	i.device("vendor_id", "0x%04x", a.VendorID)
	i.device("vendor_part_id", "%d", a.VendorPartID)
	i.device("hw_ver", "0x%X", a.HWVersion)
	i.device("phys_port_cnt", "%d", len(a.Ports))
	if verbose {
		writeLimits(i, a)
	}
	for n := range a.Ports {
		if p := &a.Ports[n]; port == 0 || int(p.Num) == port {
			writePort(i, p, verbose)
		}
	}
	return i.Err
}

// deviceLimit is a limit of a device under ibv_devinfo's name.
type deviceLimit struct {
	label string
	value int
}

// deviceLimits are the limits that every device has, in ibv_devinfo's order.
func deviceLimits(a *verbs.DeviceAttr) []deviceLimit {
	return []deviceLimit{
		{"max_qp", a.MaxQP}, {"max_qp_wr", a.MaxQPWR}, {"max_sge", a.MaxSGE}, {"max_sge_rd", a.MaxSGERead},
		{"max_cq", a.MaxCQ}, {"max_cqe", a.MaxCQE}, {"max_mr", a.MaxMR}, {"max_pd", a.MaxPD},
		{"max_qp_rd_atom", a.MaxQPRDAtom}, {"max_qp_init_rd_atom", a.MaxQPInitRDAtom},
	}
}

// writeLimits prints the part of the device that only -v shows.
func writeLimits(i *devinfoWriter, a *verbs.DeviceAttr) {
	i.device("max_mr_size", "0x%x", a.MaxMRSize)
	i.device("page_size_cap", "0x%x", a.PageSizeCap)
	for _, l := range deviceLimits(a) {
		i.device(l.label, "%d", l.value)
	}
	i.device("atomic_cap", "%s (%d)", a.AtomicCap, uint32(a.AtomicCap))
	if a.MaxAH > 0 {
		i.device("max_ah", "%d", a.MaxAH)
	}
	i.device("max_srq", "%d", a.MaxSRQ)
	if a.MaxSRQ > 0 {
		i.device("max_srq_wr", "%d", a.MaxSRQWR)
		i.device("max_srq_sge", "%d", a.MaxSRQSGE)
	}
	i.device("max_inline_data", "%d", a.MaxInline)
	i.device("max_private_data", "%d", a.MaxPrivateData)
	i.device("read_sink", "%s", verbs.LocalWrite|a.ReadSink)
	i.device("qp_types", "%s", cli.Join(a.QPTypes))
	i.device("capabilities", "%s", a.Caps)
}

// writePort prints one port, and the empty line that ends it.
func writePort(i *devinfoWriter, p *verbs.PortAttr, verbose bool) {
	i.Printf("\t\tport:\t%d\n", p.Num)
	i.port("state", "%s (%d)", portStateName(p.State), uint32(p.State))
	i.port("max_mtu", "%s (%d)", mtuName(p.MaxMTU), uint32(p.MaxMTU))
	i.port("active_mtu", "%s (%d)", mtuName(p.ActiveMTU), uint32(p.ActiveMTU))
	i.port("sm_lid", "%d", p.SMLID)
	i.port("port_lid", "%d", p.LID)
	i.port("port_lmc", "0x%02x", 0) // one LID per port wherever there are no subnets
	i.port("link_layer", "%s", p.LinkLayer)
	if verbose {
		i.port("max_msg_sz", "0x%x", p.MaxMsgSize)
		i.port("pkey_tbl_len", "%d", len(p.PKeys))
		i.port("gid_tbl_len", "%d", max(p.GIDTableLen, len(p.GIDs)))
		writeGIDs(i, p)
		for n, a := range p.Addrs {
			i.port(fmt.Sprintf("addr[%2d]", n), "%s", a)
		}
	}
	i.Printf("\n")
}

// writeGIDs prints the GIDs that are set: with place and type where the port has
// a table of them.
func writeGIDs(i *devinfoWriter, p *verbs.PortAttr) {
	for _, e := range p.GIDTable {
		name := gidName(e.GID)
		if e.Type == verbs.GIDRoCE2 {
			name = netip.AddrFrom16(e.GID).String()
		}
		if e.Type != verbs.GIDInfiniBand {
			name += ", " + e.Type.String()
		}
		i.port(fmt.Sprintf("GID[%3d]", e.Index), "%s", name)
	}
	if p.GIDTable != nil {
		return
	}
	for n, g := range p.GIDs {
		if !nullGID(g) {
			i.port(fmt.Sprintf("GID[%3d]", n), "%s", gidName(g))
		}
	}
}

// writeDeviceTable prints the table of ibv_devices.
func writeDeviceTable(w io.Writer, attrs []*verbs.DeviceAttr) error {
	i := &devinfoWriter{cli.Printer{W: w}}
	i.Printf("    %-16s\t   node GUID\n", "device")
	i.Printf("    %-16s\t----------------\n", "------")
	for _, a := range attrs {
		i.Printf("    %-16s\t%016x\n", a.Name, uint64(a.NodeGUID))
	}
	return i.Err
}

// writeDeviceList prints the names as ibv_devinfo -l does.
func writeDeviceList(w io.Writer, names []string) error {
	i := &devinfoWriter{cli.Printer{W: w}}
	plural := "s"
	if len(names) == 1 {
		plural = ""
	}
	i.Printf("%d HCA%s found:\n", len(names), plural)
	for _, n := range names {
		i.Printf("\t%s\n", n)
	}
	i.Printf("\n")
	return i.Err
}

// portStateName is the constant's name, which ibv_devinfo prints instead of
// ibv_port_state_str's text.
func portStateName(s verbs.PortState) string {
	switch s {
	case verbs.PortDown:
		return "PORT_DOWN"
	case verbs.PortInit:
		return "PORT_INIT"
	case verbs.PortArmed:
		return "PORT_ARMED"
	case verbs.PortActive:
		return "PORT_ACTIVE"
	case verbs.PortNop, verbs.PortActiveDefer:
	}
	return "invalid state"
}

func mtuName(m verbs.MTU) string {
	if n := m.Bytes(); n > 0 {
		return fmt.Sprint(n)
	}
	return "invalid MTU"
}

// nullGID reports whether a GID names no interface; ibv_devinfo skips those.
func nullGID(g [16]byte) bool { return [8]byte(g[8:]) == [8]byte{} }

// gidName prints a GID as eight groups, without shortening.
func gidName(g [16]byte) string {
	groups := make([]string, 0, 8)
	for n := 0; n < len(g); n += 2 {
		groups = append(groups, fmt.Sprintf("%02x%02x", g[n], g[n+1]))
	}
	return strings.Join(groups, ":")
}
