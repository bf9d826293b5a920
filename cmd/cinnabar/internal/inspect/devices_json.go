package inspect

import (
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
)

// deviceJSON is a device as devices --json prints it, with the fields of ibv_devinfo -v under the same names.
type deviceJSON struct {
	Name         string         `json:"name"`
	Transport    string         `json:"transport"`
	FWVersion    string         `json:"fw_ver,omitempty"`
	NodeGUID     string         `json:"node_guid"`
	SysImageGUID string         `json:"sys_image_guid"`
	VendorID     uint32         `json:"vendor_id"`
	VendorPartID uint32         `json:"vendor_part_id"`
	HWVersion    uint32         `json:"hw_ver"`
	QPTypes      string         `json:"qp_types"`
	Capabilities string         `json:"capabilities"`
	AtomicCap    string         `json:"atomic_cap"`
	MaxMRSize    uint64         `json:"max_mr_size"` // bytes
	Limits       map[string]int `json:"limits"`
	Ports        []portJSON     `json:"ports"`
}

// portJSON is one port.
type portJSON struct {
	Port       uint8    `json:"port"`
	State      string   `json:"state"`
	MaxMTU     int      `json:"max_mtu"`    // bytes
	ActiveMTU  int      `json:"active_mtu"` // bytes
	LID        uint16   `json:"port_lid"`
	LinkLayer  string   `json:"link_layer"`
	MaxMsgSize uint64   `json:"max_msg_sz"` // bytes
	Addresses  []string `json:"addresses"`
}

// describeDevice describes a device with that port, or with all ports if port is 0.
func describeDevice(a *verbs.DeviceAttr, port int) deviceJSON {
	d := deviceJSON{
		Name: a.Name, Transport: a.Transport.String(), FWVersion: a.FWVersion, NodeGUID: a.NodeGUID.String(), SysImageGUID: a.SysImageGUID.String(),
		VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVersion: a.HWVersion,
		QPTypes: cli.Join(a.QPTypes), Capabilities: a.Caps.String(), AtomicCap: a.AtomicCap.String(), MaxMRSize: a.MaxMRSize,
		Limits: map[string]int{}, Ports: []portJSON{},
	}
	for _, l := range deviceLimits(a) {
		d.Limits[l.label] = l.value
	}
	for _, p := range a.Ports {
		if port != 0 && int(p.Num) != port {
			continue
		}
		out := portJSON{
			Port: p.Num, State: portStateName(p.State), MaxMTU: p.MaxMTU.Bytes(), ActiveMTU: p.ActiveMTU.Bytes(), LID: p.LID,
			LinkLayer: p.LinkLayer, MaxMsgSize: p.MaxMsgSize, Addresses: []string{},
		}
		for _, at := range p.Addrs {
			out.Addresses = append(out.Addresses, at.String())
		}
		d.Ports = append(d.Ports, out)
	}
	return d
}
