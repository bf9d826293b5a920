package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
)

// openDevice opens the device of that name or, without a name, the first of the machine's own that can be used, and the
// software device if there is none. why is the reason, for people.
func openDevice(ctx context.Context, name string) (dev *verbs.Device, why string, err error) {
	if name != "" {
		dev, err = cli.OpenDevice(ctx, name)
		return dev, "as --device says", err
	}
	list := cli.Devices(ctx)
	dev, why = firstUsable(list[1:])
	if dev != nil {
		return dev, why, nil
	}
	dev, err = cli.OpenDevice(ctx, cli.SoftwareDevice)
	return dev, "software device (" + why + ")", err
}

// firstUsable opens the first device on which two processes of this machine can meet. Without one it returns the reason for
// each device, or the reason why there is none.
func firstUsable(list []cli.Device) (dev *verbs.Device, why string) {
	if len(list) == 0 {
		_, err := rdmacore.Devices()
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, "this machine has no RDMA device that this program can use; see docs/real-hardware.md"
		}
		if err != nil {
			return nil, cli.OneLine(err)
		}
		return nil, "this machine has no RDMA device"
	}
	var reasons []string
	for _, entry := range list {
		dev, err := entry.Open()
		if err == nil {
			if err = usable(dev); err == nil {
				return dev, "an RDMA device of this machine"
			}
			cli.Shut(dev)
		}
		reasons = append(reasons, fmt.Sprintf("%s cannot be used: %s", entry.Name, cli.OneLine(err)))
	}
	return nil, strings.Join(reasons, "; ")
}

// usable returns the reason why two processes of this machine cannot meet on the device, or nil.
func usable(dev *verbs.Device) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	if len(attr.Ports) == 0 {
		return errors.New("it has no port")
	}
	switch p := attr.Ports[0]; {
	case p.State != verbs.PortActive:
		return fmt.Errorf("port %d is %s", p.Num, p.State)
	case len(p.Addrs) == 0:
		return fmt.Errorf("port %d has no IP address; give its network interface one", p.Num)
	}
	return nil
}

// loopbackOf is where a process listens on the device for another one of this machine: at the loopback address, or, on
// a device that serves only the addresses of its own network interface, at the first of those.
func loopbackOf(dev *verbs.Device) (netip.AddrPort, error) {
	attr, err := dev.Query()
	if err != nil {
		return netip.AddrPort{}, err
	}
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if len(attr.Ports) == 0 || len(attr.Ports[0].Addrs) == 0 {
		return netip.AddrPortFrom(at, 0), nil
	}
	addrs := attr.Ports[0].Addrs
	for _, a := range addrs {
		if a == at {
			return netip.AddrPortFrom(at, 0), nil
		}
	}
	for _, a := range addrs {
		if a.Is4() || a.Is4In6() {
			return netip.AddrPortFrom(a.Unmap(), 0), nil
		}
	}
	return netip.AddrPortFrom(addrs[0], 0), nil
}
