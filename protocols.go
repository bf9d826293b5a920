package cinnabar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"cinnabar/codes"
	"cinnabar/internal/na/ofitcp"
	"cinnabar/internal/na/sm"
)

// Protocol is a network protocol of Mercury's, on a device of this host: a line of C's hg_info.
type Protocol struct {
	Class  string // of Mercury's plugins: "ofi", "na"
	Name   string // "tcp"
	Device string // such as the name of an interface; empty if Err says that the protocol is not there at all
	Addr   string // of an engine that is opened on the device, without the port; empty if Err is not nil
	Err    error  // why no engine can be opened; nil if one can
}

// String returns class and name as they stand in addresses: "ofi+tcp".
func (p Protocol) String() string { return p.Class + "+" + p.Name }

// absent are protocols of Mercury's that this package does not have.
var absent = []Protocol{
	{Class: "ofi", Name: "tcp;ofi_rxm", Err: errors.New("it is another protocol than that of the native tcp provider; use ofi+tcp at both ends")},
	{Class: "ofi", Name: "verbs;ofi_rxm", Err: errors.New("RPCs do not use RDMA hardware; use ofi+tcp over its network interface")},
	{Class: "ucx", Name: "all", Err: errors.New("there is no transport on UCX; use ofi+tcp at both ends")},
}

// Protocols lists what engines can be opened on, and what they cannot be opened on with the reason
// (HG_Get_na_protocol_info): interfaces of this host in the system's order, shared memory, then protocols that are not
// there at all.
// There is no traffic.
func Protocols(ctx context.Context) ([]Protocol, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, errorFrom("list protocols", "", "", err)
	}
	var list []Protocol
	for _, i := range interfaces {
		list = append(list, tcpOn(ctx, i))
	}
	return append(append(list, sharedMemory()), absent...), nil
}

// sharedMemory is na+sm, which has one device, as C calls it.
func sharedMemory() Protocol {
	p := Protocol{Class: "na", Name: "sm", Device: "shm", Addr: "na+sm://"}
	if err := sm.Available(); err != nil {
		p.Addr, p.Err = "", &Error{Op: "choose address", Addr: p.Device, Code: codes.AddrNotAvail, Err: err}
	}
	return p
}

// tcpOn is ofi+tcp on an interface.
func tcpOn(ctx context.Context, i net.Interface) Protocol {
	p := Protocol{Class: "ofi", Name: "tcp", Device: i.Name}
	addrs, err := i.Addrs()
	switch {
	case err != nil:
	case i.Flags&net.FlagUp == 0:
		err = errors.New("the interface is down")
	case len(addrs) == 0:
		err = errors.New("the interface has no IP address")
	default:
		var a netip.AddrPort
		if a, _, err = ofitcp.Choose(ctx, p.String()+"://"+i.Name, netip.Prefix{}, true); err == nil {
			p.Addr = withoutPort(p.String(), a.Addr())
			return p
		}
	}
	p.Err = &Error{Op: "choose address", Addr: i.Name, Code: codes.AddrNotAvail, Err: err}
	return p
}

// ChooseAddr returns the address that an engine opened by [Listen] with the same arguments would give to peers, without its port
// unless addr has one, and the reason for that choice. It resolves a host name in addr.
func ChooseAddr(ctx context.Context, addr string, cfg *Config) (chosen, reason string, err error) {
	const op = "choose address"
	scheme, _, _ := strings.Cut(addr, ":")
	switch scheme {
	case "ofi+tcp", "tcp":
	case "na+sm", "sm":
		p := sharedMemory()
		if _, name, _ := strings.Cut(addr, "://"); name != "" && p.Err == nil {
			return p.Addr + name, "the name that was given", nil
		}
		return p.Addr, "memory of this host; the rest of the address is the number of the process", p.Err
	default:
		return "", "", unknownProtocol(op, addr, scheme)
	}
	c := cfg.filled()
	a, reason, err := ofitcp.Choose(ctx, ofitcp.OnInterface(addr, c.Interface), c.Subnet, true)
	if err == nil {
		var told netip.AddrPort
		if told, err = parseAdvertised(c.Advertise); told.IsValid() {
			a, reason = netip.AddrPortFrom(told.Addr(), cmp.Or(told.Port(), a.Port())), "Config.Advertise, for "+a.Addr().String()
		}
	}
	if err != nil {
		return "", "", errorFrom(op, "", addr, err)
	}
	if a.Port() == 0 {
		return withoutPort("ofi+tcp", a.Addr()), reason, nil
	}
	return fmt.Sprintf("ofi+tcp://%v", a), reason, nil
}

// withoutPort is an address of an engine before it has a port.
func withoutPort(protocol string, a netip.Addr) string {
	if a.Is6() {
		return fmt.Sprintf("%s://[%v]", protocol, a)
	}
	return fmt.Sprintf("%s://%v", protocol, a)
}
