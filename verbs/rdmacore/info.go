package rdmacore

import (
	"cinnabar/verbs"
)

// Info describes a device in a listing.
type Info struct {
	Name      string // as in ibv_devices: "mlx5_0", "rxe0"
	Transport verbs.TransportType
	NodeType  verbs.NodeType
	NodeGUID  verbs.GUID
	Ports     []Port
}

// Port is a port of a listed device.
type Port struct {
	Num   uint8
	GIDs  []GID  // the entries of the port's table that are set, in order
	GID   int    // index in GIDs of the one that queue pairs connected by hand send from; -1: none
	Why   string // the reason for that choice, for people
	State string // "4: ACTIVE", as the kernel says it
}
