package auto

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
// concurrent use.
type Device struct {
	network ofiverbs.Device
	reason  string
}

// Verbs returns the underlying device, for programs that use package verbs beside an engine.
func (d *Device) Verbs() *verbs.Device { return d.network.Verbs }

// Reason returns the reason for the choice of this device as a text for logs, such as "it has the address 192.168.1.7".
func (d *Device) Reason() string { return d.reason }

// Close closes the device. It fails with [verbs.ErrBusy] while an engine or another object uses the device. A Close after a successful one
// does nothing.
func (d *Device) Close() error { return d.network.Verbs.Close() }

// OpenEndpoint opens the network of an engine on the device. Only engines call it.
func (d *Device) OpenEndpoint(ctx context.Context, cfg na.DeviceConfig) (na.Endpoint, error) {
	return d.network.OpenEndpoint(ctx, cfg)
}

// Use returns a Device for dev, which the program has opened. Close of the Device closes dev.
func Use(dev *verbs.Device) *Device {
	return &Device{network: ofiverbs.Device{Verbs: dev}, reason: "the program has opened it"}
}

// Software opens the software device. The device logs its events to log; nil discards them. Software itself logs a line at Warn, because
// peers in C cannot reach the device unless their Mercury accepts iWARP devices.
func Software(log *slog.Logger) (*Device, error) {
	dev, err := iwarp.Open(iwarp.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	if log != nil {
		log.Warn("the RDMA device in software is used: programs in C reach it only with a Mercury that accepts iWARP devices")
	}
	return &Device{network: ofiverbs.Device{Verbs: dev}, reason: "the device in software was asked for"}, nil
}

// Open opens the first device with an active port that fits addr. An addr like "ofi+verbs://192.168.1.7:1234" asks for the device with that
// IP address, "ofi+verbs://mlx5_0" for the device of that name, and "ofi+verbs://mlx5_0/192.168.1.7:1234" for both. "ofi+verbs" fits every
// device. If no device fits, the error names each device and the reason why it does not fit. The error matches
// [errors.ErrUnsupported] then, and in builds and on machines without RDMA.
func Open(addr string) (*Device, error) {
	list, err := rdmacore.Devices()
	if err != nil {
		return nil, err
	}
	name, ip := parts(addr)
	candidates := make([]candidate, len(list))
	for i, info := range list {
		candidates[i] = candidate{name: info.Name, open: func() (*verbs.Device, error) { return rdmacore.Open(info.Name) }}
	}
	return choose(candidates, name, ip)
}

// parts returns the name and the IP address in an address, each if there is one.
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

// choose opens the candidates in turn, and returns the first that fits.
func choose(list []candidate, name string, ip netip.Addr) (*Device, error) {
	var refused []string
	for _, c := range list {
		dev, err := c.open()
		if err != nil {
			refused = append(refused, fmt.Sprintf("%s: %v", c.name, err))
			continue
		}
		attr, err := dev.Query()
		if err == nil {
			reason, unfit := fits(&attr, name, ip)
			if unfit == "" {
				return &Device{network: ofiverbs.Device{Verbs: dev}, reason: reason}, nil
			}
			err = errors.New(unfit)
		}
		refused = append(refused, fmt.Sprintf("%s: %v", c.name, errors.Join(err, dev.Close())))
	}
	return nil, verbs.Unsupported("choose RDMA device", "no device fits: %s", strings.Join(refused, "; "))
}

// fits returns the reason why a device is taken, or the reason why it is not.
func fits(attr *verbs.DeviceAttr, name string, ip netip.Addr) (reason, unfit string) {
	var addrs []netip.Addr
	active := false
	for i := range attr.Ports {
		addrs = append(addrs, attr.Ports[i].Addrs...)
		active = active || attr.Ports[i].State == verbs.PortActive
	}
	switch {
	case name != "" && name != attr.Name:
		return "", fmt.Sprintf("it is not %q", name)
	case ip.IsValid() && !ip.IsUnspecified() && !slices.Contains(addrs, ip):
		return "", fmt.Sprintf("it has the addresses %v, not %v", addrs, ip)
	case !active:
		return "", "none of its ports is active"
	case ip.IsValid() && !ip.IsUnspecified():
		return fmt.Sprintf("it has the address %v", ip), ""
	case name != "":
		return "it was named", ""
	}
	return "it is the first device with an active port", ""
}
