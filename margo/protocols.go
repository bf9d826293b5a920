package margo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/na/ofitcp"
	"cinnabar/internal/na/sm"
)

// MercuryProtocol is the version of Mercury's headers that engines send and accept: that of Mercury 2.1 and later
// (HG_CORE_PROTOCOL_VERSION).
const MercuryProtocol = wire.Protocol

// Class describes the network of an engine (HG_Class_get_name and the other HG_Class_get functions).
type Class struct {
	Name      string // of Mercury's plugin: "ofi", "na"
	Protocol  string // "tcp", "sm"
	Listening bool   // peers may send requests
	// InputEager and OutputEager are the bytes of arguments and results that fit one message. The receiver fetches longer ones from the
	// sender's memory, which takes two more messages. With ChecksumsAuto the sizes are those of messages without checksums; four bytes
	// less fit messages with them.
	InputEager, OutputEager int
}

// ClassOf returns the description of the network of e.
func ClassOf(e *cinnabar.Engine) Class {
	protocol, _, _ := strings.Cut(e.Addr(), "://")
	name, protocol, _ := strings.Cut(protocol, "+")
	inv := e.State(0)
	return Class{Name: name, Protocol: protocol, Listening: inv.Listening, InputEager: inv.MaxRequest, OutputEager: inv.MaxResponse}
}

// Protocol is one of Mercury's network protocols on a device of this host: a line of C's hg_info.
type Protocol struct {
	Class  string // of Mercury's plugins: "ofi", "na"
	Name   string // "tcp"
	Device string // such as the name of an interface; empty if no device can have the protocol
	Addr   string // of an engine that is opened on the device, without the port; empty if Err is not nil
	Err    error  // the reason why no engine can be opened; nil if one can
}

// String returns class and name as they stand in addresses: "ofi+tcp".
func (p Protocol) String() string { return p.Class + "+" + p.Name }

// absent are protocols of Mercury's that this module does not have.
var absent = []Protocol{
	{Class: "ofi", Name: "tcp;ofi_rxm", Err: errors.New("it is another protocol than that of the native tcp provider; use ofi+tcp at both ends")},
	{Class: "ofi", Name: "verbs;ofi_rxm", Err: errors.New("the program must open a device with package verbs/auto for it, and pass it in Config.Device")},
	{Class: "ucx", Name: "all", Err: errors.New("there is no transport on UCX; use ofi+tcp at both ends")},
}

// Protocols lists the protocols on which engines can be opened, and those on which they cannot with the reason
// (HG_Get_na_protocol_info): the interfaces of this host in the system's order, shared memory, then the protocols that this module does
// not have. Protocols sends nothing.
func Protocols(ctx context.Context) ([]Protocol, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, &cinnabar.Error{Op: "list protocols", Code: codes.OtherError, Err: err}
	}
	var list []Protocol
	for _, i := range interfaces {
		list = append(list, tcpOn(ctx, i))
	}
	return append(append(list, sharedMemory()), absent...), nil
}

const chooseAddress = "choose address" // as cinnabar.Error.Op

// sharedMemory returns na+sm, which has one device, named as in C.
func sharedMemory() Protocol {
	p := Protocol{Class: "na", Name: "sm", Device: "shm", Addr: "na+sm://"}
	if err := sm.Available(); err != nil {
		p.Addr, p.Err = "", &cinnabar.Error{Op: chooseAddress, Addr: p.Device, Code: codes.AddrNotAvail, Err: err}
	}
	return p
}

// tcpOn returns ofi+tcp on an interface.
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
	p.Err = &cinnabar.Error{Op: chooseAddress, Addr: i.Name, Code: codes.AddrNotAvail, Err: err}
	return p
}

// ChooseAddr returns the address that an engine opened by [cinnabar.Listen] with the same arguments would give to peers, without its port
// unless addr has one, and the reason for that choice. It resolves a host name in addr. A nil cfg is the zero Config.
func ChooseAddr(ctx context.Context, addr string, cfg *cinnabar.Config) (chosen, reason string, err error) {
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
		err := fmt.Errorf("protocol %q is not known; use ofi+tcp or na+sm", scheme)
		return "", "", &cinnabar.Error{Op: chooseAddress, Addr: addr, Code: codes.ProtoNoSupport, Err: err}
	}
	if cfg == nil {
		cfg = new(cinnabar.Config)
	}
	a, reason, err := ofitcp.Choose(ctx, ofitcp.OnInterface(addr, cfg.Interface), cfg.Subnet, true)
	if err != nil {
		return "", "", chooseError(addr, err)
	}
	advertised, err := ofitcp.ParseAdvertise(cfg.Advertise)
	if err != nil {
		return "", "", argumentError(chooseAddress, "Advertise is %q; it is an IP address, with or without a port: %w", cfg.Advertise, err)
	}
	if advertised.IsValid() {
		a, reason = netip.AddrPortFrom(advertised.Addr(), cmp.Or(advertised.Port(), a.Port())), "Config.Advertise, for "+a.Addr().String()
	}
	if a.Port() == 0 {
		return withoutPort("ofi+tcp", a.Addr()), reason, nil
	}
	return fmt.Sprintf("ofi+tcp://%v", a), reason, nil
}

// kindCodes are the codes of the errors of ofitcp.Choose.
var kindCodes = map[na.Kind]codes.Code{
	na.NotAvailable: codes.AddrNotAvail, na.Invalid: codes.InvalidArg, na.Unsupported: codes.ProtoNoSupport, na.Unreachable: codes.HostUnreach,
}

// chooseError returns the error of ofitcp.Choose as one of package cinnabar.
func chooseError(addr string, err error) error {
	e := &cinnabar.Error{Op: chooseAddress, Addr: addr, Code: codes.Of(err), Err: err}
	if e.Code == codes.OtherError {
		e.Code = cmp.Or(kindCodes[na.KindOf(err)], e.Code)
	}
	if inner, ok := errors.AsType[*na.Error](err); ok && inner.Err != nil {
		e.Err = inner.Err // without its address, which e has
	}
	return e
}

// withoutPort returns the address of an engine that has no port yet.
func withoutPort(protocol string, a netip.Addr) string {
	if a.Is6() {
		return fmt.Sprintf("%s://[%v]", protocol, a)
	}
	return fmt.Sprintf("%s://%v", protocol, a)
}
