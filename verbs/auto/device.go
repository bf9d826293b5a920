package auto

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiverbs"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// Device is an RDMA device for engines: a value for cinnabar.Config.Device. Several engines may use one Device. All methods are safe for
// concurrent use. The methods of a nil *Device may be called: Close does nothing, and OpenEndpoint fails.
type Device struct {
	network ofiverbs.Device
	reason  string
}

// Verbs returns the underlying device, for programs that use package verbs beside an engine. It returns nil for a nil Device.
func (d *Device) Verbs() *verbs.Device {
	if d == nil {
		return nil
	}
	return d.network.Verbs
}

// Reason returns the reason for the choice of this device as a text for logs, such as "it has the address 192.168.1.7". It is empty for a
// nil Device.
func (d *Device) Reason() string {
	if d == nil {
		return ""
	}
	return d.reason
}

// Close closes the device. It fails with [verbs.ErrBusy] while an engine or another object uses the device. A Close after a successful one
// does nothing.
func (d *Device) Close() error {
	if dev := d.Verbs(); dev != nil {
		return dev.Close()
	}
	return nil
}

// OpenEndpoint opens the network of an engine on the device. Only engines call it. It fails if the Device is nil.
func (d *Device) OpenEndpoint(ctx context.Context, cfg na.DeviceConfig) (na.Endpoint, error) {
	return ofiverbs.Device{Verbs: d.Verbs()}.OpenEndpoint(ctx, cfg)
}

// Use returns a Device for dev, which the program has opened. Close of the Device closes dev.
func Use(dev *verbs.Device) *Device {
	return &Device{network: ofiverbs.Device{Verbs: dev}, reason: "the program has opened it"}
}

// Software opens the software device. The device logs its events to log; nil discards them. Software also logs a warning, because peers in C
// cannot reach the device unless their Mercury accepts iWARP devices. The device asks for no CRC on connections within this host (see
// [iwarp.Config].NoLocalCRC).
func Software(log *slog.Logger) (*Device, error) {
	dev, err := iwarp.Open(iwarp.Config{Logger: log, NoLocalCRC: true})
	if err != nil {
		return nil, err
	}
	if log != nil {
		log.Warn("the RDMA device in software is used: programs in C reach it only with a Mercury that accepts iWARP devices")
	}
	return &Device{network: ofiverbs.Device{Verbs: dev}, reason: "the device in software was asked for"}, nil
}

// Open opens the first device with an active port that fits addr. An addr like "ofi+verbs://192.168.1.7:1234" asks for the device with that
// IP address, "ofi+verbs://eth0" for one with an address of that network interface, "ofi+verbs://mlx5_0" for the device of that name, and
// "ofi+verbs://mlx5_0/192.168.1.7:1234" for the device that has both. "ofi+verbs" asks for any device. If no device fits, the error names each
// device and the reason why it does not fit. That error matches [errors.ErrUnsupported], and so does the error if
// the machine has no RDMA device, its kernel modules do not answer, or the system is not Linux. A card does
// not fit if the program was built without rdma-core (see package verbs/rdmacore).
func Open(addr string) (*Device, error) {
	list, err := candidates()
	if err != nil {
		return nil, err
	}
	name, ip := parts(addr)
	return choose(list, name, ip)
}

// Candidate is a device that the operating system offers.
type Candidate struct {
	Name  string       // such as "mlx5_0"
	Addrs []netip.Addr // the IP addresses of all its ports
	// Reason says why the device fits, such as "it has the address 192.168.1.7". It is empty if Err is set. [Open] takes the first device
	// that fits.
	Reason string
	Err    error // the reason why the device does not fit; nil if it fits
}

// Candidates returns the devices of this machine in the order in which [Open] tries them for addr. It opens and closes each of them. If the
// machine has none, it returns the error that Open returns then.
func Candidates(addr string) ([]Candidate, error) {
	list, err := candidates()
	if err != nil {
		return nil, err
	}
	name, ip := parts(addr)
	found := make([]Candidate, len(list))
	for i, c := range list {
		found[i] = c.examine(name, ip)
	}
	return found, nil
}

// candidates returns the devices that the operating system offers, at least one.
func candidates() ([]candidate, error) {
	list, err := rdmacore.Devices()
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, verbs.Unsupported("choose RDMA device", "this machine has no RDMA device")
	}
	found := make([]candidate, len(list))
	for i, info := range list {
		found[i] = candidate{name: info.Name, open: func() (*verbs.Device, error) { return rdmacore.Open(info.Name) }}
	}
	return found, nil
}

// parts returns the name and the IP address in addr. Each is zero if addr has none.
func parts(addr string) (name string, ip netip.Addr) {
	if _, rest, ok := strings.Cut(addr, "://"); ok {
		addr = rest
	} else {
		return "", ip
	}
	host := addr
	if n, rest, ok := strings.Cut(addr, "/"); ok {
		name, host = n, rest
	}
	if ap, err := netip.ParseAddrPort(host); err == nil {
		return name, ap.Addr().Unmap()
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return name, a.Unmap()
	}
	if name == "" {
		name, _, _ = strings.Cut(host, ":")
	}
	return name, ip
}

// candidate is a device that can be opened.
type candidate struct {
	name string
	open func() (*verbs.Device, error)
}

// try opens the device, and returns it open if it fits. Otherwise dev is nil, and found.Err is the reason why it does not fit.
func (c *candidate) try(name string, ip netip.Addr) (dev *verbs.Device, found Candidate) {
	found.Name = c.name
	if dev, found.Err = c.open(); found.Err != nil {
		return nil, found
	}
	attr, err := dev.Query()
	if err == nil {
		found.Addrs = addrsOf(&attr)
		var unfit string
		if found.Reason, unfit = fits(&attr, name, ip); unfit == "" {
			return dev, found
		}
		err = errors.New(unfit)
	}
	found.Err = errors.Join(err, dev.Close())
	return nil, found
}

// examine returns the result of try, and closes the device.
func (c *candidate) examine(name string, ip netip.Addr) Candidate {
	dev, found := c.try(name, ip)
	if dev != nil {
		if err := dev.Close(); err != nil {
			found.Reason, found.Err = "", err
		}
	}
	return found
}

// choose opens the candidates in turn, and returns the first that fits.
func choose(list []candidate, name string, ip netip.Addr) (*Device, error) {
	var refused []string
	for _, c := range list {
		dev, found := c.try(name, ip)
		if dev != nil {
			return &Device{network: ofiverbs.Device{Verbs: dev}, reason: found.Reason}, nil
		}
		refused = append(refused, fmt.Sprintf("%s: %v", c.name, found.Err))
	}
	return nil, verbs.Unsupported("choose RDMA device", "no device fits: %s", strings.Join(refused, "; "))
}

// addrsOf returns the addresses of all ports of a device.
func addrsOf(attr *verbs.DeviceAttr) (addrs []netip.Addr) {
	for i := range attr.Ports {
		addrs = append(addrs, attr.Ports[i].Addrs...)
	}
	return addrs
}

// fits returns the reason why a device fits an address, or in unfit the reason why it does not. name and ip are the results of parts; name is
// the name of a device or of a network interface, or empty.
func fits(attr *verbs.DeviceAttr, name string, ip netip.Addr) (reason, unfit string) {
	addrs := addrsOf(attr)
	active := slices.ContainsFunc(attr.Ports, func(p verbs.PortAttr) bool { return p.State == verbs.PortActive })
	byInterface := name != "" && name != attr.Name && hasAddrOf(name, addrs)
	switch {
	case name != "" && name != attr.Name && !byInterface:
		return "", fmt.Sprintf("it is not %q, and has no address of a network interface of that name", name)
	case ip.IsValid() && !ip.IsUnspecified() && !slices.Contains(addrs, ip):
		return "", fmt.Sprintf("it has the addresses %v, not %v", addrs, ip)
	case !active:
		return "", "none of its ports is active"
	case ip.IsValid() && !ip.IsUnspecified():
		return fmt.Sprintf("it has the address %v", ip), ""
	case byInterface:
		return fmt.Sprintf("it has an address of the network interface %s", name), ""
	case name != "":
		return "it was named", ""
	}
	return "it is the first device with an active port", ""
}

// hasAddrOf reports whether the network interface of that name exists and has one of the addresses.
func hasAddrOf(name string, addrs []netip.Addr) bool {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	own, err := i.Addrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && slices.Contains(addrs, p.Addr().Unmap())
	})
}
