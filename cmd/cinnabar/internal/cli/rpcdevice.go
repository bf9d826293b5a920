package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"cinnabar"
	"cinnabar/verbs/auto"
)

// softwareWord is the value of --device for the software device. The device's own name, [SoftwareDevice], is accepted as well.
const softwareWord = "software"

// engineDevice is the annotation of an option --device that takes softwareWord.
const engineDevice = "cinnabar_engine_device"

// RPCDevice has the options of a command that opens engines which depend on the network of their address: --device, and those of [Security]. Engines
// on ofi+verbs need a device, the others use none.
type RPCDevice struct {
	name     string
	s        Streams
	security Security
}

// RegisterServer is Register for a command that serves until it is interrupted. It reads its certificates again at SIGHUP.
func (d *RPCDevice) RegisterServer(f *pflag.FlagSet, s Streams) {
	d.Register(f, s)
	d.security.reloads = true
}

// Register adds the options to a command.
func (d *RPCDevice) Register(f *pflag.FlagSet, s Streams) {
	d.s = s
	defer d.security.Register(f, s)
	DeviceFlagFor(f, &d.name, "RDMA device for an ADDRESS of ofi+verbs: a name, or "+softwareWord+" for the software device, which unmodified C programs cannot reach (default the device that has the address, or else the first with an active port)")
	f.Lookup("device").Annotations = map[string][]string{engineDevice: nil}
}

// OverVerbs reports whether an engine at address needs an RDMA device.
func OverVerbs(address string) bool {
	protocol, _, _ := strings.Cut(address, ":")
	return slices.Contains([]string{"verbs", "verbs;ofi_rxm"}, strings.TrimPrefix(protocol, "ofi+"))
}

// Open sets the fields of cfg for engines at address: the token, the TLS configuration, and the RDMA device, which it opens if address is one of
// ofi+verbs. The caller calls release after it has closed the engines.
func (d *RPCDevice) Open(ctx context.Context, address string, cfg *cinnabar.Config) (release func() error, err error) {
	stop, err := d.security.Apply(ctx, address, cfg)
	if err != nil {
		return nil, err
	}
	if !OverVerbs(address) {
		if d.name != "" {
			stop()
			return nil, Usagef("--device %s was given for %s; only engines on ofi+verbs use an RDMA device", d.name, address)
		}
		return func() error { stop(); return nil }, nil
	}
	dev, err := d.open(ctx, address)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w; or use the RDMA device in software: --device %s", err, softwareWord)
	}
	if err != nil {
		return nil, err
	}
	cfg.Device = dev
	return dev.Close, nil
}

func (d *RPCDevice) open(ctx context.Context, address string) (*auto.Device, error) {
	switch d.name {
	case softwareWord, SoftwareDevice:
		log := LoggerOf(ctx)
		if log == nil { // otherwise auto.Software writes the warning to log
			d.s.Notef("warning: the RDMA device in software is used; programs in C reach it only with a Mercury that accepts iWARP devices\n")
		}
		return auto.Software(log)
	case "":
		return auto.Open(address)
	}
	_, where, _ := strings.Cut(address, "://")
	if named, host, ok := strings.Cut(where, "/"); ok {
		if named != d.name {
			return nil, Usagef("--device %s was given, and %s names the device %s; choose one", d.name, address, named)
		}
		where = host
	}
	if _, err := netip.ParseAddrPort(where); err != nil { // where is a port, the name of the device, or the name of a network interface
		where = ""
	}
	return auto.Open("ofi+verbs://" + d.name + "/" + where)
}
